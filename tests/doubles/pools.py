"""Small slices for tests: GPUs whose partitions share counters."""

from dradriver.resource import CounterConsumption, CounterSet, Device, Slice, Taint

DRIVER = "gpu.example.com"
NODE = "node-a"


def counter_slice(gpus: int) -> Slice:
    return Slice(counter_sets=tuple(CounterSet(name=f"gpu-{gpu}", counters={"memory": 8}) for gpu in range(gpus)))


def device_slice(
    gpu: int, *, taints: tuple[Taint, ...] = (), size: int = 2, memory: int = 80 * 2**30, share: int = 1
) -> Slice:
    def device(name: str, amount: int) -> Device:
        consumes = (CounterConsumption(counter_set=f"gpu-{gpu}", counters={"memory": amount}),)
        return Device(
            name=name, attributes={"type": "gpu"}, capacity={"memory": memory}, consumes=consumes, taints=taints
        )

    return Slice(devices=(device(f"gpu-{gpu}", 8), *(device(f"gpu-{gpu}-mig-{n}", share) for n in range(size - 1))))


def node_slices(gpus: int = 3) -> tuple[Slice, ...]:
    return (counter_slice(gpus), *(device_slice(gpu) for gpu in range(gpus)))


def sick(*, since: str | None = None) -> Taint:
    return Taint(key=f"{DRIVER}/xid", value="79", effect="NoSchedule", time_added=since)
