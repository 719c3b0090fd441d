"""What the API server does not take of a bridge, in the bridge's own words."""

import re

from controller.api import Bridge
from dradriver.kube import ApiError, KubeError

_OF_EXPRESSION = re.compile(
    r'spec\.selectors\[\d+\]\.cel\.expression: [\w ]+: (?:"(?:[^"\\]|\\.)*": )?(?P<why>.*)', re.DOTALL
)
"""How it speaks of a selector that it cannot compile: field, kind of mistake, the expression in quotes, the reason."""

_LONGEST = 512


def why_refused(error: KubeError, bridge: Bridge) -> str:
    """Say why a write for a bridge was refused, and what to do.

    The selectors of a class are ours but for the user's expression, so a mistake in them is that one's. The reason of
    the API server is kept without the address that was called and without the rest of the class.

    Args:
        error: of the write.
        bridge: for which it was.
    """
    found = _OF_EXPRESSION.search(error.message) if bridge.spec.select.cel and isinstance(error, ApiError) else None
    if found is None:
        return f"{error}; correct the bridge, or the rights of the controller"
    reason = " ".join(found["why"].split())[:_LONGEST]
    return f"the API server refuses spec.select.cel: {reason}; correct the expression"
