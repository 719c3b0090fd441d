"""The plugin as it is installed: its own dependencies and no others, with bytecode.

A developer's environment holds more, and libraries load what they find (structlog: rich), which costs a tenth of
the memory; a checkout may lack bytecode, which triples the time to start.
"""

import os
import re
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def install(folder: Path) -> Path:
    """Make an environment of links to what is installed here; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in sorted(_closure("dradriver")):
        for path in _top_level(distribution(name)):
            _link(packages / path.name, path)
    return folder / "bin" / "python"


def environment(folder: Path) -> dict[str, str]:
    """Variables for that Python: bytecode goes into a folder of the benchmark's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def _link(link: Path, target: Path) -> None:
    if not link.exists():
        link.symlink_to(target)


def _closure(root: str) -> set[str]:
    """Names of what a distribution needs, directly or not, extras left out."""
    found = {root}
    waiting = [root]
    while waiting:
        fresh = set(_needed(waiting.pop())) - found
        found |= fresh
        waiting.extend(fresh)
    return found


def _needed(name: str) -> Iterator[str]:
    for line in requires(name) or ():
        requirement, _, marker = line.partition(";")
        match = _NAME.match(requirement)
        if match and "extra" not in marker and _is_installed(match[0]):
            yield match[0].lower()


def _is_installed(name: str) -> bool:
    """A requirement for another platform or Python is not here."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _top_level(package: Distribution) -> set[Path]:
    """Folders and modules that a distribution put into site-packages, its metadata included."""
    root = Path(str(package.locate_file("")))
    names = {file.parts[0] for file in package.files or () if file.parts[0] not in {"..", "__pycache__"}}
    # A checkout is installed by a path file, which links cannot follow.
    return {root / name if not name.endswith(".pth") else CHECKOUT / "dradriver" for name in names}
