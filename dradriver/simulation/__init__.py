"""A simulated GPU node: NVML, and the host's files, without a GPU.

The state folder is the hardware: it outlives every process that uses it. The command line is
`python -m dradriver.simulation`.
"""

from pathlib import Path

from dradriver.simulation.store import Store

__all__ = ["open_library", "root"]


def open_library(state_dir: Path) -> object:
    """Load the simulated NVML library of a node, for `pynvml.nvmlLib`; its functions are named as in C.

    Whoever swaps the library has to clear `pynvml._nvmlGetFunctionPointer_cache`.

    Raises:
        errors.StateMissing, errors.StateDamaged: the folder holds no usable node.
    """
    from dradriver.simulation.nvml_api import Library  # noqa: PLC0415  # The command line does without it.

    Store(state_dir).render()
    return Library(state_dir)


def root(state_dir: Path) -> Path:
    """Folder that shows the node's /proc, /sys, /dev, /usr and /lib as far as GPUs are concerned, up to date.

    Raises:
        errors.StateMissing, errors.StateDamaged: the folder holds no usable node.
    """
    return Store(state_dir).render()
