"""Spec files in the runtime's folder: written whole or not at all, one for each claim."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dradriver.cdi.errors import SpecFileError
from dradriver.cdi.spec import CdiSpec


class SpecFolder:
    """The folder that the runtime reads transient specs from.

    Args:
        folder: such as /var/run/cdi; made when the first spec is written.
        kind: `vendor/class` of every spec kept here.
    """

    def __init__(self, folder: Path, *, kind: str) -> None:
        self._folder = folder
        self._prefix = kind.replace("/", "-") + "_"

    def path(self, identity: str) -> Path:
        """Tell where the spec of a claim UID lies."""
        return self._folder / f"{self._prefix}{identity}.json"

    def write(self, identity: str, spec: CdiSpec) -> Path:
        """Write or replace a spec in one step.

        No fsync: the folder does not outlive a reboot, and neither do the containers that use it.

        Raises:
            SpecFileError: the folder or file cannot be written.
        """
        path = self.path(identity)
        text = _text(spec)
        # The runtime reads only *.json and *.yaml, so an unfinished file is invisible to it.
        temporary = path.with_suffix(".tmp")
        with _translated(path, "write"):
            try:
                # What lies there is not followed, nor waited for: it may be a link, or a pipe.
                temporary.unlink(missing_ok=True)
                _with_folder(self._folder, lambda: temporary.write_text(text))
                temporary.replace(path)
            except OSError:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
            # Another driver's spec of the same claim would make the name ambiguous, and unusable.
            path.with_suffix(".yaml").unlink(missing_ok=True)
        return path

    def exists(self, identity: str) -> bool:
        """Tell whether a claim UID has a spec here, whatever it says.

        Raises:
            SpecFileError: the folder cannot be read.
        """
        path = self.path(identity)
        with _translated(path, "read"):
            return path.exists()

    def is_known(self, identity: str) -> bool:
        """Tell whether anybody has given a claim UID a spec, another driver too: its containers may run already.

        Raises:
            SpecFileError: the folder cannot be read.
        """
        path = self.path(identity)
        with _translated(path, "read"):
            return any(path.with_suffix(suffix).exists() for suffix in (".json", ".yaml"))

    def is_written(self, identity: str, spec: CdiSpec) -> bool:
        """Tell whether exactly this spec is there."""
        path = self.path(identity)
        try:
            return path.is_file() and path.read_text() == _text(spec)
        except (OSError, ValueError):
            return False

    def remove_unfinished(self, identity: str) -> None:
        """Remove what a process that was killed had begun to write; nobody may be writing this spec.

        Raises:
            SpecFileError: it is there and stays.
        """
        temporary = self.path(identity).with_suffix(".tmp")
        with _translated(temporary, "remove"):
            temporary.unlink(missing_ok=True)

    def remove(self, identity: str, *, path: str = "") -> None:
        """Remove a spec; one that is not there is fine.

        Args:
            identity: claim UID.
            path: where it was written, if that was in another folder than today's.

        Raises:
            SpecFileError: it is there and stays.
        """
        for place in {self.path(identity), Path(path or self.path(identity))}:
            with _translated(place, "remove"):
                for suffix in (".json", ".tmp", ".yaml"):
                    place.with_suffix(suffix).unlink(missing_ok=True)

    def identities(self) -> frozenset[str]:
        """List the claim UIDs that have a spec here.

        Raises:
            SpecFileError: the folder cannot be read.
        """
        with _translated(self._folder, "read"):
            paths = tuple(self._folder.glob(f"{self._prefix}*.json"))
        return frozenset(path.stem.removeprefix(self._prefix) for path in paths)


def _text(spec: CdiSpec) -> str:
    return json.dumps(spec.to_json(), separators=(",", ":"))


def _with_folder(folder: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        write()


@contextmanager
def _translated(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecFileError(
            f"cannot {verb} the CDI spec {path}: {os.strerror(error.errno or 0)}; "
            "check that the folder given by --cdi-root is the runtime's and writable"
        ) from error
