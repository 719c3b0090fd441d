"""A preparer on a simulated node, with claims served from memory: everything real but the API server."""

import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from doubles.machines import simulation_main

from dradriver import api, simulation
from dradriver.cdi.files import SpecFolder
from dradriver.cdi.host import DriverRoot
from dradriver.cdi.nodes import DeviceTree
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.kube.errors import NotFoundError
from dradriver.kubelet import ClaimReference
from dradriver.nvml import open_nvml
from dradriver.observe.metrics import Metrics
from dradriver.prepare import Preparer
from dradriver.prepare.containers import Containers
from dradriver.prepare.node import Node
from dradriver.prepare.records import Records

POOL = "node-a"


def allocation(*devices, driver=api.DRIVER_NAME, pool=POOL, config=(), **fields):
    """An allocation of devices by name; requests are named r0, r1, ... unless given as (request, device)."""
    pairs = [device if isinstance(device, tuple) else (f"r{i}", device) for i, device in enumerate(devices)]
    results = [
        {"request": request, "driver": driver, "pool": pool, "device": device, **fields} for request, device in pairs
    ]
    return {"devices": {"results": results, "config": list(config)}}


@dataclass
class PreparingNode:
    """A node whose process can be killed (`restart`) while its hardware, records and CDI specs live on."""

    folder: Path
    machine: str = "2xh100-80gb"
    mig: str = "dynamic"
    mig_mode: str = ""
    claims: dict = field(default_factory=dict)
    reads: int = 0
    read_error: Exception | None = None

    def __post_init__(self):
        self.state = self.folder / "gpus"
        self.simulate("create", self.machine, *(["--mig", self.mig_mode] if self.mig_mode else []))
        self.nvml = None
        self.restart()

    def simulate(self, *arguments):
        assert simulation_main(["--state", str(self.state), *arguments]) == 0

    @property
    def root(self):
        return simulation.root(self.state)

    @property
    def cdi(self):
        return self.folder / "cdi"

    def restart(self):
        """Begin anew, as a process does that was killed."""
        if self.nvml is not None:
            self.nvml.close()
        self.nvml = open_nvml(simulation=self.state)
        self.records = Records(self.folder / "claims")
        self.records.load()
        self.node = self._node()
        root = self.root
        proc = root / "proc"
        self.containers = Containers(
            root=DriverRoot(here=root, host=PurePosixPath(root)),
            tree=DeviceTree(
                dev=root / "dev",
                host_dev=PurePosixPath(root / "dev"),
                proc=proc,
                sys=root / "sys",
                proc_devices=proc / "devices",
            ),
            specs=SpecFolder(self.cdi, kind=api.CDI_KIND),
        )
        self.metrics = Metrics(node=POOL, driver=api.DRIVER_NAME, version="0")
        self.preparer = Preparer(
            driver=api.DRIVER_NAME,
            read=self._read,
            records=self.records,
            containers=self.containers,
            boot_id=(proc / "sys/kernel/random/boot_id").read_text().strip(),
            node=lambda: self.node,
            metrics=self.metrics,
        )

    def _node(self):
        gpus = self.nvml.gpus()
        policy = OfferPolicy(default=GpuRule(mig=MigOffer(self.mig)))
        offer = make_offer(gpus, pool=POOL, policy=policy, numbers=number_gpus(gpus, {}))
        return Node(gpus={gpu.uuid: gpu for gpu in gpus}, offer=offer, hardware=self.nvml)

    def _read(self, reference, *, timeout):
        assert 0 < timeout <= 10
        self.reads += 1
        if self.read_error is not None:
            raise self.read_error
        claim = self.claims.get((reference.namespace, reference.name))
        if claim is None:
            raise NotFoundError(status=404, reason="NotFound", message="not found", target=f"GET {reference.name}")
        return claim

    def allocate(self, *devices, name="", **fields):
        """Make a claim that the scheduler has given these devices; returns what the kubelet would name it by."""
        uid = str(uuid.uuid4())
        name = name or f"claim-{uid[:8]}"
        self.claims["ns", name] = {
            "metadata": {"namespace": "ns", "name": name, "uid": uid},
            "status": {"allocation": allocation(*devices, **fields)},
        }
        return ClaimReference(namespace="ns", name=name, uid=uid)

    def prepare(self, *claims, seconds=2.0):
        answers = self.preparer.prepare(claims, deadline=time.monotonic() + seconds)
        assert set(answers) == {claim.uid for claim in claims}
        return answers[claims[0].uid] if len(claims) == 1 else [answers[claim.uid] for claim in claims]

    def unprepare(self, *claims, seconds=2.0):
        answers = self.preparer.unprepare(claims, deadline=time.monotonic() + seconds)
        assert set(answers) == {claim.uid for claim in claims}
        return answers[claims[0].uid] if len(claims) == 1 else [answers[claim.uid] for claim in claims]

    def instances(self):
        """Every GPU instance of the node, as (GPU minor, profile id, start)."""
        return sorted(
            (gpu.minor, instance.profile_id, instance.placement.start)
            for gpu in self.nvml.gpus()
            for instance in self.nvml.instances(gpu.uuid)
        )

    def specs(self):
        return sorted(self.containers.specs.identities())

    def is_clean(self):
        return not self.instances() and not self.specs() and not self.records.all()
