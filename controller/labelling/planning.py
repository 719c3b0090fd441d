"""Which labels to apply, given what is wanted and who holds what."""

from collections.abc import Mapping

from controller.labelling.projections import HeldLabels


def plan(wanted: Mapping[str, str], held: HeldLabels) -> dict[str, str] | None:
    """Find the labels to apply: all that are to be ours from then on.

    Args:
        wanted: names and values as the hardware says.
        held: what the node has.

    Returns:
        the labels, or None where the node has exactly these of us. A label that somebody else holds is left out, with
        the same value too: whoever applies another one later would otherwise have us to quarrel with. Applying without
        it gives it up, and the API server leaves it to the other one.
    """
    foreign = {name for name, _ in held.foreign}
    ours = {name: value for name, value in wanted.items() if name not in foreign}
    return None if ours == dict(held.mine) else ours
