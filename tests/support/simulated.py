"""A simulated node, handled through its command line as its users do."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from doubles.machines import simulation_main


class SimulatedNode:
    """The hardware: GPUs and the host's files that belong to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"

    def run(self, *arguments: str) -> str:
        """Run one verb and give what it prints; its failure is ours."""
        printed, complained = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            status = _exit_status(["--state", str(self.folder), *arguments])
        assert status == 0, complained.getvalue()
        return printed.getvalue()

    def show(self) -> dict[str, Any]:
        """Everything about it."""
        shown: dict[str, Any] = json.loads(self.run("show"))
        return shown

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs as shown, by index."""
        gpus: list[dict[str, Any]] = self.show()["gpus"]
        return gpus

    def gpu(self, uuid: str) -> dict[str, Any]:
        """The GPU of that UUID as shown."""
        return next(gpu for gpu in self.gpus() if gpu["uuid"] == uuid)

    def instances(self) -> set[tuple[str, str, int]]:
        """All GPU instances: GPU UUID, profile name, first memory slice."""
        return {
            (gpu["uuid"], instance["profile"], instance["placement"]["start"])
            for gpu in self.gpus()
            for instance in gpu["instances"]
        }

    def majors(self) -> dict[str, int]:
        """Device majors by name, as the kernel tells them."""
        lines = (self.root / "proc/devices").read_text().splitlines()
        pairs = [line.split() for line in lines if line.strip()[:1].isdigit()]
        return {name: int(number) for number, name in pairs}

    def caps(self) -> dict[str, int]:
        """Minors of nvidia-caps by capability, such as `gpu0/gi1/ci0/access`."""
        lines = (self.root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
        return {name: int(minor) for name, minor in (line.split() for line in lines)}


def _exit_status(arguments: list[str]) -> object:
    try:
        return simulation_main(arguments)
    except SystemExit as end:
        return end.code
