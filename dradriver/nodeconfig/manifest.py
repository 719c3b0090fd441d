"""The documents in a file that a person has at hand: a document itself, or the manifest of a ConfigMap around it."""

from dataclasses import dataclass

from dradriver.api.problems import show_path
from dradriver.api.text import TextError, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A document.

    Attributes:
        place: where in the manifest, "" where the file is the document.
        data: its content.
    """

    place: str = ""
    data: bytes


def documents(data: bytes) -> tuple[Part, ...]:
    """Find the documents in a file; what is no ConfigMap is taken for one document."""
    texts = _texts(data)
    if texts is None:
        return (Part(data=data),)
    return tuple(Part(place=show_path(("data", key)), data=text.encode()) for key, text in texts.items())


def _texts(data: bytes) -> dict[str, str] | None:
    try:
        value = parse(data).value
    except TextError:
        # Whoever reads the document tells why.
        return None
    if not isinstance(value, dict) or value.get("kind") != "ConfigMap":
        return None
    texts = value.get("data")
    return {key: text for key, text in texts.items() if isinstance(text, str)} if isinstance(texts, dict) else {}
