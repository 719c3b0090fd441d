"""What of a pod's rules for nodes is certain without the scheduler: its node selector, and taints of nodes."""

from collections.abc import Sequence

from controller.watching.model import PodShape, SeenNode, Taint

_MOST_NAMED = 3


def why_excluded(shape: PodShape, nodes: Sequence[SeenNode]) -> str:
    """Say why none of these nodes is for a pod; "" if one may be.

    Rules of affinity are not looked at: they can only exclude more.

    Args:
        shape: of the pod.
        nodes: at least one.
    """
    # Mostly one of the first is fit, and then the others need no look.
    if any(is_selected(shape, node) and not untolerated(shape, node) for node in nodes):
        return ""
    selected = [node for node in nodes if is_selected(shape, node)]
    if not selected:
        wanted = ",".join(f"{key}={value}" for key, value in shape.selector)
        return f"the pod's node selector {wanted} matches none of them; correct it, or label a node"
    found = sorted({_text(taint) for node in selected for taint in untolerated(shape, node)})
    which = "they have" if len(selected) == len(nodes) else "those that the pod's node selector matches have"
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (
        f"{which} taints that the pod does not tolerate: {', '.join(found[:_MOST_NAMED])}{more}; "
        "add a toleration, or remove the taint"
    )


def is_selected(shape: PodShape, node: SeenNode) -> bool:
    """Tell whether a node has the labels of the pod's selector."""
    return set(shape.selector) <= set(node.labels)


def untolerated(shape: PodShape, node: SeenNode) -> tuple[Taint, ...]:
    """Taints that keep a pod away from a node."""
    return tuple(taint for taint in node.taints if not any(_tolerates(each, taint) for each in shape.tolerations))


def _tolerates(toleration: Taint, taint: Taint) -> bool:
    """Follow core/v1; an operator that is not known here is taken to tolerate, since nothing certain follows."""
    if toleration.effect not in {"", taint.effect} or toleration.key not in {"", taint.key}:
        return False
    if toleration.operator == "Equal":
        return toleration.key == taint.key and toleration.value == taint.value
    return True


def _text(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
