"""`kubectl-dra`: one word, one module, loaded when it is asked for. kubectl finds it as `kubectl dra`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

COMMANDS: Final = {"plan": "controller.cli.plan:main"}
"""Word to the function that takes the words behind it and gives the exit status."""


def run(arguments: Sequence[str]) -> int:
    """Do what the first word says; returns the exit status, 2 for a word that is none."""
    word, *rest = arguments or ("",)
    if word not in COMMANDS:
        known = ", ".join(COMMANDS)
        told = f"no such command: {word!r}; there is {known}" if word else f"say what to do: {known}"
        print(f"kubectl dra: {told}", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[word].partition(":")
    status: int = getattr(import_module(module), function)(rest)
    return status
