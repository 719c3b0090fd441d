"""Which configuration of the device plugin a node has, by the rules of the plugin's side-car.

The value of the node's label names it. Without a label: the default that the side-car was started with, else the
fallbacks one after the other. Source: the device plugin's config-manager.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from controller.importing.sources import ONLY

LABEL: Final = "nvidia.com/device-plugin.config"
NAMED: Final = "default"
FALLBACKS: Final = ("named", "single", "empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The configuration of one node.

    Attributes:
        key: of the configuration; None where the device plugin has none and does not start.
        empty: whether it is the empty one, all fields of which have their defaults; `key` is "" then.
        trouble: why there is none; "" where there is one.
    """

    key: str | None = None
    empty: bool = False
    trouble: str = ""


def choose(
    keys: Collection[str],
    labels: Mapping[str, str],
    *,
    default: str = "",
    fallbacks: Collection[str] = FALLBACKS,
) -> Choice:
    """Choose among the entries of a ConfigMap, or the one file.

    Args:
        keys: of the entries.
        labels: of the node.
        default: what the side-car was started with as DEFAULT_CONFIG.
        fallbacks: what it was started with as FALLBACK_STRATEGIES; Helm charts differ in it.
    """
    if ONLY in keys:
        return Choice(key=ONLY)
    wanted = labels.get(LABEL, "")
    if wanted:
        return _named(keys, wanted, f"the label {LABEL} names {wanted!r}")
    if default:
        return _named(keys, default, f"the side-car's default is {default!r}")
    return _fall_back(keys, fallbacks)


def _named(keys: Collection[str], name: str, told: str) -> Choice:
    if name in keys:
        return Choice(key=name)
    return Choice(trouble=f"{told}, which the ConfigMap does not have; it has {', '.join(sorted(keys)) or 'nothing'}")


def _fall_back(keys: Collection[str], fallbacks: Collection[str]) -> Choice:
    for fallback in fallbacks:
        if fallback == "named" and NAMED in keys:
            return Choice(key=NAMED)
        if fallback == "single" and len(keys) == 1:
            return Choice(key=next(iter(keys)))
        if fallback == "empty":
            return Choice(key="", empty=True)
    return Choice(trouble=f"the node has no label {LABEL}, and no fallback ({', '.join(fallbacks)}) finds one")
