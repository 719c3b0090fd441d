"""GPUs of simulated machines, read through the real NVML wrappers, as plain data."""

import tempfile
from functools import cache
from pathlib import Path

from dradriver.gpu.model import Gpu
from dradriver.nvml import open_nvml
from dradriver.simulation.__main__ import main


@cache
def gpus(machine: str, *, mig: str = "") -> tuple[Gpu, ...]:
    """GPUs of a machine as created, such as `8xh100-80gb`; `mig` may be `on` or `off`."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "node"
        arguments = ["--state", str(state), "create", machine, *(["--mig", mig] if mig else [])]
        assert simulation_main(arguments) == 0
        nvml = open_nvml(simulation=state)
        try:
            return nvml.gpus()
        finally:
            nvml.close()


def simulation_main(arguments: list[str]) -> int:
    """Run a verb of `python -m dradriver.simulation` in this process."""
    return main(arguments)


__all__ = ["gpus", "simulation_main"]
