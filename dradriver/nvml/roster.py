"""Who was met at which of NVML's indices: remembered across sessions, so that a GPU that stops answering has a name."""


class Roster:
    """GPUs by index and by UUID, as they were met last.

    Indices are not stable, so this is a guess wherever NVML does not confirm it, and all of it is dropped where NVML
    contradicts. Threads share it without a lock: each change is one dict operation.
    """

    def __init__(self) -> None:
        self._count: int | None = None
        self._uuids: dict[int, str] = {}
        self._bus_ids: dict[str, str] = {}

    def counted(self, count: int) -> None:
        """Note how many GPUs NVML has; where it is another number, indices mean other GPUs."""
        if count != self._count:
            self._uuids.clear()
        self._count = count

    def met(self, index: int, gpu_uuid: str) -> None:
        """Note which GPU NVML has at an index."""
        if self._uuids.get(index, gpu_uuid) != gpu_uuid:
            self._uuids.clear()
        self._uuids[index] = gpu_uuid

    def placed(self, gpu_uuid: str, pci_bus_id: str) -> None:
        """Note where a GPU sits."""
        self._bus_ids[gpu_uuid] = pci_bus_id

    def uuid_at(self, index: int) -> str | None:
        """Give who was met at this index; None where nobody was."""
        return self._uuids.get(index)

    def index_of(self, gpu_uuid: str) -> int | None:
        """Give where a GPU was met; None where it was not."""
        return next((index for index, uuid in tuple(self._uuids.items()) if uuid == gpu_uuid), None)

    def bus_id(self, gpu_uuid: str | None) -> str | None:
        """Give a GPU's PCI bus id as sysfs writes it; None where it was never read."""
        return None if gpu_uuid is None else self._bus_ids.get(gpu_uuid)
