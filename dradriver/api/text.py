"""From the bytes of a file to plain data: YAML, of which JSON is a part.

Words mean what they say: only `true`, `false` and `null` are no texts, while YAML 1.1 also makes a truth value of
`off` and a number of `0x233010DE`. A key that stands there twice is a mistake, as are tags. Whatever the bytes are,
time and memory are bounded, and nothing but `TextError` comes out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from dradriver.api.problems import Problem, Step

MOST_BYTES: Final = 1 << 20
"""What a ConfigMap can hold."""
MOST_VALUES: Final = 20_000
"""Of a document, those behind aliases counted each time."""
DEEPEST: Final = 20

_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_WORDS: Final = {
    word: value
    for value, words in (
        (None, ("", "~", "null", "Null", "NULL")),
        (True, ("true", "True", "TRUE")),
        (False, ("false", "False", "FALSE")),
    )
    for word in words
}
# The parser that is written in C is ten times faster, and not there on every machine.
_PARSER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TextError(ValueError):
    """A text that is no document at all; the message says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A document.

    Attributes:
        value: dicts, lists, texts, whole numbers, truth values and None.
        problems: keys that stand there again; the first of them counts.
    """

    value: object
    problems: tuple[Problem, ...] = ()


def parse(data: bytes) -> Text:
    """Read one document.

    Raises:
        TextError: it is too large, not UTF-8, not YAML, or more or less than one document.
    """
    if len(data) > MOST_BYTES:
        raise TextError(f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        # A mark that some editors write at the beginning is no part of the text.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        return _Builder(yaml.parse(text, Loader=_PARSER)).document()
    except yaml.MarkedYAMLError as error:
        raise TextError(f"it is not YAML: {_where(error.problem_mark)}{error.problem}") from error
    except yaml.YAMLError as error:
        raise TextError("it is not YAML: it has control characters") from error


class _Builder:
    """Makes values of a parser's events; the parser itself keeps no document and needs no stack."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._left = MOST_VALUES
        self._anchors: dict[str, tuple[object, int]] = {}
        self._problems: list[Problem] = []

    def document(self) -> Text:
        value: object = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                documents += 1
                if documents > 1:
                    raise TextError(f"{_where(event.start_mark)}a second document begins; only one is allowed")
                value = self._value(event, ())
        if not documents or value is None:
            raise TextError("it is empty")
        return Text(value=value, problems=tuple(self._problems))

    def _value(self, event: Any, path: tuple[Step, ...]) -> object:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if event.tag is not None and event.tag != "!":
            raise TextError(f"{_where(event.start_mark)}tags such as {event.tag!r} are not supported")
        if len(path) > DEEPEST:
            raise TextError(f"{_where(event.start_mark)}it is nested deeper than {DEEPEST} levels")
        before = self._left
        self._count(1)
        value = self._content(event, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, before - self._left
        return value

    def _content(self, event: Any, path: tuple[Step, ...]) -> object:
        match event:
            case yaml.ScalarEvent():
                return _plain(event.value) if event.implicit[0] else event.value
            case yaml.SequenceStartEvent():
                return self._list(path)
            case _:
                return self._mapping(path)

    def _list(self, path: tuple[Step, ...]) -> list[object]:
        values: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._value(event, (*path, len(values))))
        return values

    def _mapping(self, path: tuple[Step, ...]) -> dict[str, object]:
        values: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = _key(event)
            value = self._value(next(self._events), (*path, key))
            if key in values:
                text = f"stands there twice, the second time at line {event.start_mark.line + 1}"
                self._problems.append(Problem(path=(*path, key), text=text))
            else:
                values[key] = value
        return values

    def _alias(self, event: Any) -> object:
        if event.anchor not in self._anchors:
            raise TextError(f"{_where(event.start_mark)}there is no anchor &{event.anchor} before")
        value, size = self._anchors[event.anchor]
        self._count(size)
        return value

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise TextError(f"it has more than {MOST_VALUES} values")


def _key(event: Any) -> str:
    """Take a key as it is written: `1` and `off` are names like others."""
    if not isinstance(event, yaml.ScalarEvent) or (event.tag is not None and event.tag != "!"):
        raise TextError(f"{_where(event.start_mark)}a key must be a text")
    return str(event.value)


def _plain(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _INTEGER.fullmatch(text) else text


def _where(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
