"""Where configurations of the device plugin are written: a ConfigMap with one under each key, or one file.

The ConfigMap may be the manifest that `kubectl get configmap -o yaml` (or `json`) writes, with all that the API server
adds. What the device plugin's side-car sees of it is a folder with a file for each key, those of `binaryData` included.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controller.importing.deviceplugin import TOP_FIELDS, is_blank
from dradriver.api.problems import Problem, show_path, show_value
from dradriver.api.text import TextError, parse

ONLY = ""
"""Key of a configuration that is no entry of a ConfigMap, and therefore the one of every node."""


class SourceError(ValueError):
    """What was given holds no configuration at all; the message says why and what to give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Texts of configurations.

    Attributes:
        name: the ConfigMap's, with its namespace where it has one; "" for a file.
        texts: key to text; one with the key `ONLY` for a file.
        problems: entries that are no text.
    """

    name: str = ""
    texts: Mapping[str, bytes] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    @property
    def is_file(self) -> bool:
        """Whether there is one configuration for all nodes."""
        return ONLY in self.texts

    def __str__(self) -> str:
        return f"the ConfigMap {self.name}".rstrip()

    def place(self, key: str) -> str:
        """Say where in the ConfigMap a configuration stands; "" for a file."""
        return "" if self.is_file else show_path(("data", key))


def read_source(data: bytes) -> Source:
    """Find the configurations in a file.

    Raises:
        SourceError: it holds nothing, is the manifest of something else than a ConfigMap, or nothing in it is a
            configuration. The device plugin takes all of that for a configuration of defaults; a plan made of a slip
            of the pen would look like one that was meant.
    """
    if is_blank(data):
        raise SourceError(f"it is empty, so there is nothing to plan for; {_LOOK}, or {_DEFAULTS}")
    value = _parsed(data)
    if isinstance(value, dict) and "kind" in value:
        source = from_object(value)
        if not any(_may_be_configuration(text) for text in source.texts.values()) and not source.problems:
            listed = ", ".join(sorted(source.texts))
            raise SourceError(f"no entry of {source} ({listed}) has {_FIELDS}; {_LOOK}")
        return source
    if not _may_be_configuration(data):
        raise SourceError(f"it has none of the fields of a configuration ({_ALLOWED}); {_LOOK}, or {_DEFAULTS}")
    return Source(texts={ONLY: data})


_ALLOWED: Final = ", ".join(TOP_FIELDS)
_FIELDS: Final = f"a field of the device plugin's configuration ({_ALLOWED})"
_LOOK: Final = (
    "see that it is the ConfigMap of the device plugin (kubectl get configmaps -A; its DaemonSet tells the name)"
)
_DEFAULTS: Final = "write `version: v1` for a configuration of defaults"


def _parsed(data: bytes) -> object:
    """Parse a text; None for one that cannot be, of which whoever reads the configuration tells why."""
    try:
        return parse(data).value
    except TextError:
        return None


def _may_be_configuration(data: bytes) -> bool:
    """Tell whether a text has a field of a configuration, or is an empty one, or has mistakes that will be told."""
    value = None if is_blank(data) else _parsed(data)
    known = {field.lower() for field in TOP_FIELDS}
    return not isinstance(value, dict) or any(str(key).lower() in known for key in value)


def from_object(manifest: Mapping[str, Any]) -> Source:
    """Take the entries of a ConfigMap.

    Raises:
        SourceError: it is something else, or has no entries.
    """
    if manifest.get("kind") != "ConfigMap":
        raise SourceError(f"it is of kind {show_value(manifest.get('kind'))}; give a ConfigMap or one of its entries")
    problems: list[Problem] = []
    texts = {**_texts(manifest.get("data"), problems), **_binary(manifest.get("binaryData"), problems)}
    if not texts and not problems:
        raise SourceError("the ConfigMap has no data; give the one that the device plugin's --config-file is made of")
    return Source(name=_name(manifest.get("metadata")), texts=texts, problems=tuple(problems))


def _name(metadata: object) -> str:
    given = metadata if isinstance(metadata, dict) else {}
    return "/".join(str(given[part]) for part in ("namespace", "name") if given.get(part))


def _texts(entries: object, problems: list[Problem]) -> dict[str, bytes]:
    if not isinstance(entries, dict):
        if entries is not None:
            problems.append(
                Problem(path=("data",), text=f"is {show_value(entries)}; must be a mapping of keys to texts")
            )
        return {}
    for key, text in entries.items():
        if not isinstance(text, str):
            told = f"is {show_value(text)}; must be a text: write `{key}: |` and the configuration below it"
            problems.append(Problem(path=("data", key), text=told))
    return {key: text.encode() for key, text in entries.items() if isinstance(text, str) and key}


def _binary(entries: object, problems: list[Problem]) -> dict[str, bytes]:
    if not isinstance(entries, dict):
        return {}
    found = {}
    for key, text in entries.items():
        try:
            found[key] = base64.b64decode(str(text), validate=True)
        except (binascii.Error, ValueError):
            problems.append(Problem(path=("binaryData", key), text="must be a text in base64"))
    return {key: text for key, text in found.items() if key}
