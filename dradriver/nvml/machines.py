"""GPUs of machines that are known by name only: what NVML would tell there, without any hardware.

A simulated node is made for it in a temporary folder and read as every other node.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from dradriver.gpu.model import Gpu
from dradriver.nvml.errors import LIBRARY_NOT_FOUND, SimulationUnusable
from dradriver.nvml.opening import open_nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpu:
    """A kind of GPU that a machine's name may contain.

    Attributes:
        name: as in `8xh100-80gb`.
        product_name: as NVML tells it.
        memory_mib: None where it has no memory of its own.
        mig_capable: it can be cut into partitions.
    """

    name: str
    product_name: str
    memory_mib: int | None
    mig_capable: bool


def known_gpus() -> tuple[KnownGpu, ...]:
    """List the kinds of GPUs that are known."""
    # Not loaded where a real GPU is used.
    from dradriver.simulation.models import MODELS  # noqa: PLC0415

    return tuple(
        KnownGpu(name=name, product_name=model.product, memory_mib=model.memory_mib, mig_capable=model.mig_capable)
        for name, model in MODELS.items()
    )


def read_machine(machine: str, *, driver: str | None = None) -> tuple[Gpu, ...]:
    """Read the GPUs of a machine as it was delivered, in the order of their bus ids.

    MIG mode is on, since older GPUs tell what they can be cut into only then. UUIDs are new each time.

    Args:
        machine: `8xh100-80gb`, `4xa30,2xl4`, or a file; see docs/simulation.md.
        driver: its version; None for the one that the machine's file names, or a recent one.

    Raises:
        SimulationUnusable: there is no such machine, or no such version; its text is for people.
    """
    with tempfile.TemporaryDirectory(prefix="dradriver-") as folder:
        node = Path(folder) / "node"
        _make(node, machine, driver)
        nvml = open_nvml(simulation=node)
        try:
            return nvml.gpus()
        finally:
            nvml.close()


def _make(node: Path, machine: str, driver: str | None) -> None:
    from dradriver.simulation import description  # noqa: PLC0415 (likewise)
    from dradriver.simulation.errors import SimulationError  # noqa: PLC0415
    from dradriver.simulation.store import Store  # noqa: PLC0415

    try:
        wanted = description.read_machine(machine)
        version = description.check_driver(driver) if driver is not None else None
        gpus = tuple(replace(gpu, mig=None) for gpu in wanted.gpus)
        Store(node).create(description.build(replace(wanted, gpus=gpus), mig=True, driver=version))
    except (SimulationError, OSError) as error:
        raise SimulationUnusable("read_machine", LIBRARY_NOT_FOUND, cause=str(error)) from error
