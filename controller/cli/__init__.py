"""`kubectl-dra`: one word, one module, loaded when it is asked for. kubectl finds it as `kubectl dra`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Final

COMMANDS: Final = {
    "plan": ("controller.cli.plan:main", "what nodes need to move from the device plugin to DRA; --apply writes it"),
    "version": ("controller.cli:show_version", "the version of this program"),
}
"""Word to the function that takes the words behind it and gives the exit status, and what it is for."""

_HELP: Final = frozenset({"-h", "--help", "help"})
_VERSION: Final = "--version"


def run(arguments: Sequence[str]) -> int:
    """Do what the first word says; returns the exit status, 2 for a word that is none."""
    word, *rest = arguments or ("",)
    if word in _HELP and rest and rest[0] in COMMANDS:
        word, rest = rest[0], ["--help"]
    if word in _HELP:
        print(usage(), end="")
        return 0
    if word == _VERSION:
        word = "version"
    if word not in COMMANDS:
        told = f"no such command: {word!r}" if word else "say what to do"
        print(f"kubectl dra: {told}\n\n{usage()}", end="", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[word][0].partition(":")
    status: int = getattr(import_module(module), function)(rest)
    return status


def usage() -> str:
    """Say what there is, a line for each command."""
    lines = (f"  {word:<10}{purpose}\n" for word, (_, purpose) in COMMANDS.items())
    return f"usage: kubectl dra COMMAND ...\n\n{''.join(lines)}\nkubectl dra COMMAND --help tells more.\n"


def show_version(words: Sequence[str]) -> int:
    """Print the version; returns the exit status, 2 for words behind it."""
    if words and words[0] in _HELP:
        print("usage: kubectl dra version")
        return 0
    if words:
        print(f"kubectl dra version: {words[0]!r} means nothing here; leave it out", file=sys.stderr)
        return 2
    print(f"kubectl-dra {version('dradriver')}")
    return 0
