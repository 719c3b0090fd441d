"""Waiting for what another process does: on conditions, with a generous limit, never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds. More than the kubelet's longest pause between two attempts at one pod (85 s)."""


def wait_for(condition: Callable[[], T], what: str, *, seconds: float = PATIENCE, state: object = None) -> T:
    """Poll until `condition` gives something true, and return that.

    Args:
        condition: asked ten times a second; errors are not caught.
        what: completes the sentence "waited for ...".
        seconds: the limit.
        state: called at the end, for the message: what is there instead.

    Raises:
        AssertionError: the limit has passed.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            there = f"; there is: {state() if callable(state) else state}" if state is not None else ""
            raise AssertionError(f"waited {seconds:g} s for {what}{there}")
        time.sleep(0.1)
    return found
