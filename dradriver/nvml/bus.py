"""When NVML has to be initialized anew because GPUs came or went.

NVML looks for GPUs when it is initialized; one that is plugged in later, or given back by another driver, stays unknown
to a session that is open. The kernel knows: it lists the devices that the NVIDIA driver holds.
"""

from pathlib import Path

from dradriver.nvml.sysfs import held_gpus


class Bus:
    """The GPUs that the NVIDIA driver holds, as last seen.

    A new initialization takes seconds on a large node, so what stays as it is leads to none: where NVML goes on showing
    as few GPUs as before, the driver was told to exclude the others.

    Args:
        sys_root: where sysfs is mounted. Where it shows no NVIDIA driver, nothing ever changes.
    """

    def __init__(self, sys_root: Path) -> None:
        self._sys_root = sys_root
        self._held = held_gpus(sys_root)
        self._shown: int | None = None

    def has_changed(self) -> bool:
        """Look; tells whether the driver holds other GPUs than when this was asked last."""
        held = held_gpus(self._sys_root)
        if held == self._held:
            return False
        self._held, self._shown = held, None
        return True

    def falls_short(self, count: int) -> bool:
        """Tell whether NVML shows fewer GPUs (`count`) than the driver holds, and another number than last time.

        So it is where the kernel listed a GPU before the driver was through with it, and where one went and came back
        between two looks.
        """
        before, self._shown = self._shown, count
        return count < len(self._held) and count != before
