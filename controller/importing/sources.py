"""Where configurations of the device plugin are written: a ConfigMap with one under each key, or one file.

The ConfigMap may be the manifest that `kubectl get configmap -o yaml` (or `json`) writes, with all that the API server
adds. What the device plugin's side-car sees of it is a folder with a file for each key, those of `binaryData` included.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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

    def place(self, key: str) -> str:
        """Say where in the ConfigMap a configuration stands; "" for a file."""
        return "" if self.is_file else show_path(("data", key))


def read_source(data: bytes) -> Source:
    """Find the configurations in a file.

    Raises:
        SourceError: it is the manifest of something else than a ConfigMap, or of one without entries.
    """
    try:
        value = parse(data).value
    except TextError:
        # Whoever reads the configuration tells why.
        return Source(texts={ONLY: data})
    if not isinstance(value, dict) or "kind" not in value:
        return Source(texts={ONLY: data})
    return from_object(value)


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
