"""What the plugin knows of its node at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from dradriver.gpu.model import Gpu
from dradriver.gpu.offer import Offer
from dradriver.prepare.errors import HardwareError
from dradriver.prepare.partitions import Hardware


@dataclass(slots=True, kw_only=True)
class Node:
    """What the plugin knows of its node at this moment.

    Attributes:
        gpus: UUID to GPU.
        offer: the devices that are published.
        hardware: the session with the GPUs.
    """

    gpus: Mapping[str, Gpu]
    offer: Offer
    hardware: Hardware

    def gpu(self, uuid: str) -> Gpu:
        """Find a GPU.

        Raises:
            HardwareError: it is not there, or cannot be read.
        """
        gpu = self.gpus.get(uuid)
        if gpu is None:
            raise HardwareError(f"GPU {uuid} is not there now, or cannot be read: see the Events of the node")
        return gpu
