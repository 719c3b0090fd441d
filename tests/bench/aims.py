"""What is aimed at, what NVIDIA's driver was measured to take on a like machine, and what we take."""

from dataclasses import dataclass
from typing import Final

from bench.figures import Figure, aligned, in_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One aim.

    Attributes:
        most: the value not to exceed, in `unit`.
        theirs: NVIDIA's driver v0.5.0-dev on Kubernetes 1.37.2, two cores, a mock NVML; medians.
    """

    most: float
    theirs: str
    unit: str = "ms"


AIMS: Final = {
    "exec -> DRA socket up": Aim(most=150, theirs="81 ms"),
    "exec -> slices visible": Aim(most=600, theirs="1099 ms"),
    "Prepare of a whole GPU": Aim(most=6, theirs="13.8 ms (204 ms with its client limit)"),
    "own overhead of that": Aim(most=1, theirs="not known"),
    "repeated Prepare": Aim(most=3, theirs="6.3 ms"),
    "8 Prepares at once": Aim(most=60, theirs="744 ms"),
    "8 Unprepares at once": Aim(most=60, theirs="712 ms"),
    "record on disk, of a Prepare": Aim(most=5, theirs="not known"),
    "8 slow partitions at once": Aim(most=1.15, theirs="not known", unit="x"),
    "56 slow partitions at once": Aim(most=1.15, theirs="not known", unit="x"),
    "overhead for each of the 56": Aim(most=1, theirs="not known"),
    "Xid 79 -> all devices tainted": Aim(most=35, theirs="35 ms (a whole GPU, no MIG; forgotten at a restart)"),
    "idle RSS": Aim(most=65, theirs="58 MiB", unit="MiB"),
}


class Aims:
    """Collects our figure for each aim."""

    def __init__(self) -> None:
        self._ours: dict[str, tuple[float, float]] = {}

    def note(self, name: str, figure: Figure) -> None:
        """Take a figure's median, and its least value for what it is without the machine's other work."""
        self._ours[name] = (figure.median, min(figure.values))

    def show(self) -> None:
        """Print one line for each aim."""
        print("\nAims (medians; least in brackets)")
        rows = [("aim", "at most", "NVIDIA's", "ours", "")]
        rows += [self._row(name, aim) for name, aim in AIMS.items()]
        print(aligned(rows))

    def _row(self, name: str, aim: Aim) -> tuple[str, ...]:
        median, least = self._ours[name]
        ours = f"{in_unit(median, aim.unit)} ({in_unit(least, aim.unit)})"
        return (name, f"{aim.most:g} {aim.unit}", aim.theirs, ours, "met" if median <= aim.most else "missed")
