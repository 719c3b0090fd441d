"""A node's claims on sick GPUs, with an API server that has the claims and their pods, and a teller of their health."""

import threading
from dataclasses import dataclass, field
from typing import Any

from doubles.apiserver import ApiServer

from dradriver import api
from dradriver.gpu.health import Effect, Mark, Place
from dradriver.gpu.model import Placement
from dradriver.kube import Client
from dradriver.prepare.errands import Errands
from dradriver.prepare.eviction import EXTENDED_RESOURCE_CLAIM, Around
from dradriver.prepare.health_telling import HealthTeller
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Record, State

LIMIT = 30.0
NODE = "node-a"
GPU, OTHER_GPU = "GPU-0", "GPU-1"
PLACE = Place(profile_id=19, placement=Placement(start=4, size=1))
EPOCH = 1_700_000_000
"""Unix time at which the clock of a test begins."""

WHOLE = PlannedDevice(requests=("r0",), pool=NODE, device="gpu-0", gpu_uuid=GPU)
OTHER = PlannedDevice(requests=("r1",), pool=NODE, device="gpu-1", gpu_uuid=OTHER_GPU)
PARTITION = PlannedDevice(
    requests=("r0",),
    pool=NODE,
    device="gpu-0-mig-1g10gb-19-4",
    gpu_uuid=GPU,
    profile_id=PLACE.profile_id,
    profile_name="1g.10gb",
    placement=PLACE.placement,
    make=True,
)


def mark(effect, *, key=api.TaintKey.XID, value="79", text="GPU GPU-0 reported Xid 79 (lost): reboot", **fields):
    return Mark(key=key, value=value, effect=effect, text=text, **{"since": EPOCH, **fields})


LOST = mark(Effect.NO_EXECUTE)
SICK = mark(Effect.NO_SCHEDULE, value="48", text="GPU GPU-0 reported Xid 48 (double-bit): drain it")
MILD = mark(Effect.NONE, value="13", text="GPU GPU-0 reported Xid 13 (application): look at the program", place=PLACE)


def record(name, *devices, state=State.PREPARED):
    plan = Plan(namespace="ns" if name else "", name=name, uid=f"uid-{name}", devices=devices or (PARTITION,))
    return Record(boot_id="boot", state=state, plan=plan)


class Events:
    """Keeps Events instead of writing them."""

    def __init__(self):
        self.happened = []

    def record(self, happening):
        self.happened.append(happening)


@dataclass
class Ailing:
    """The node; `settle` returns when its thread is through with everything that is due."""

    server: ApiServer
    client: Client
    events: Any = field(default_factory=Events)
    now: float = 0.0
    taints_kept: bool = True

    def __post_init__(self):
        self.records, self.counts = {}, []
        self.errands = Errands("teller", clock=lambda: self.now)
        self.errands.start()
        around = Around(
            client=self.client,
            events=self.events,
            errands=self.errands,
            driver=api.DRIVER_NAME,
            node_name=NODE,
            taints_kept=lambda: self.taints_kept,
            on_not_evicted=self.counts.append,
            wall_clock=lambda: EPOCH + self.now,
        )
        self.teller = HealthTeller(around, records=lambda: tuple(self.records.values()))

    def hold(self, name, *devices, pods=("p",), tolerations=None, extended=False, state=State.PREPARED):
        """Prepare a claim for pods that run."""
        held = self.records[name] = record(name, *devices, state=state)
        results = [
            {"driver": api.DRIVER_NAME, "pool": device.pool, "device": device.device, "request": device.requests[0]}
            | ({"tolerations": tolerations} if tolerations else {})
            for device in held.plan.devices
        ]
        metadata = {"namespace": "ns", "name": name, "uid": held.plan.uid}
        if extended:
            metadata["annotations"] = {EXTENDED_RESOURCE_CLAIM: "true"}
        users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
        self.server.put("resourceclaims", {"metadata": metadata, "spec": {}, "status": status})
        for pod in pods:
            self.server.put(
                "pods",
                {"metadata": {"namespace": "ns", "name": pod, "uid": f"uid-{pod}"}, "status": {"phase": "Running"}},
            )

    def tell(self, **marks):
        """Say what the first GPU deserves, and the other one."""
        found = {GPU: marks.get("gpu", ()), OTHER_GPU: marks.get("other", ())}
        self.teller.told({uuid: deserved for uuid, deserved in found.items() if deserved})
        self.settle()

    def pass_time(self, seconds):
        self.now += seconds
        self.settle()

    def settle(self):
        # What is due is run before what waits.
        passed = threading.Event()
        self.errands.soon(passed.set)
        assert passed.wait(LIMIT)

    @property
    def told(self):
        """Reason, kind and name of what was told, in order."""
        return [(one.reason, one.regarding.kind, one.regarding.name) for one in self.events.happened]

    @property
    def notes(self):
        return [one.note for one in self.events.happened]

    def asked(self, plural):
        """Count requests for objects of a kind."""
        return self.server.count(lambda request: request.method == "GET" and f"/{plural}/" in request.path)
