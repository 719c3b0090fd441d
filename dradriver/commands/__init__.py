"""What `dradriver` does besides being the plugin: one word, one module, loaded when it is asked for."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

COMMANDS: Final = {
    "config": "dradriver.commands.config:main",
    "health": "dradriver.commands.health:main",
    "nodes": "dradriver.commands.nodes:main",
    "slices": "dradriver.commands.slices:main",
}
"""Word to the function that takes the words behind it and gives the exit status."""


def run(arguments: Sequence[str]) -> int:
    """Do what the first word says; returns the exit status, 2 for a word that is none."""
    word, *rest = arguments
    if word not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"dradriver: no such command: {word!r}; there is {known}, and without one the plugin", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[word].partition(":")
    status: int = getattr(import_module(module), function)(rest)
    return status
