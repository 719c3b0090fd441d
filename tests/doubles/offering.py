"""A node whose offering is looked at step by step: hardware, records and preparer are real, the API server is small."""

from doubles.preparing import POOL, PreparingNode
from doubles.versions import Kubernetes

from dradriver import api
from dradriver.gpu.policy import GpuRule, OfferPolicy, Order
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.nodeconfig import Wanted
from dradriver.numbering import GpuMemory
from dradriver.offering import Around, Offering


def wanted(mig="dynamic", profiles="standard", *, sharing=None, order=Order.PACKED, settled=True, **more):
    rule = GpuRule(mig=MigOffer(mig), profiles=parse_choice(profiles), sharing=sharing)
    policy = OfferPolicy(default=rule, order=order)
    return Wanted(policy=policy, settled=settled, **more)


class Slices:
    """Stands for the publisher."""

    def __init__(self):
        self.offers = []

    def set_slices(self, slices):
        self.offers.append(tuple(slices))

    @property
    def devices(self):
        """Name to device, of what was offered last."""
        return {device.name: device for part in self.offers[-1] for device in part.devices}


class Notes:
    """What is told of the node."""

    def __init__(self):
        self.subjects = {}

    def set(self, subject, notes):
        self.subjects[subject] = dict(notes)

    @property
    def now(self):
        return {key: note for notes in self.subjects.values() for key, note in notes.items()}

    @property
    def reasons(self):
        return sorted(note.reason for note in self.now.values())


class OfferingNode(PreparingNode):
    """As its process goes on, or is started anew by `again`."""

    def __init__(self, folder, server, client, *, want=None, **fields):
        self.server, self.client = server, client
        self.want = want or wanted()
        self.time = 100.0
        self.server.strip = Kubernetes(minor=37)
        self.slices, self.notes, self.outdated, self.not_ready = Slices(), Notes(), [], []
        super().__init__(folder=folder, **fields)
        self.begin()

    def begin(self):
        """Put together what a new process would."""
        self.slices, self.notes = Slices(), Notes()
        around = Around(
            driver=api.DRIVER_NAME,
            node_name=POOL,
            boot_id=self.boot_id,
            hardware=lambda: self.nvml,
            records=self.records,
            memory=GpuMemory(self.folder / "gpus.json", boot_id=self.boot_id),
            reporter=self.notes,
            on_read=lambda: None,
            on_look=lambda: None,
            on_show=lambda _shown: None,
            on_offer=lambda: None,
            on_outdated=lambda: self.outdated.append(True),
            unready=self.not_ready.append,
        )
        self.offering = Offering(around, wanted=lambda: self.want, clock=lambda: self.time)
        self.offering.attach(self.client, self.slices)

    def again(self):
        """Another process."""
        self.restart()
        self.begin()

    @property
    def boot_id(self):
        return (self.root / "proc/sys/kernel/random/boot_id").read_text().strip()

    def look(self, *, after=0.0):
        """Look once; returns after how many seconds it would look again."""
        self.time += after
        delay = self.offering.look()
        self.node = self.offering.node or self.node
        return delay

    @property
    def names(self):
        return sorted(self.slices.devices)

    def tainted(self, key):
        found = self.slices.devices.values()
        return sorted(device.name for device in found if any(taint.key.endswith(key) for taint in device.taints))

    def claim(self, *devices, **fields):
        """A claim that is allocated these devices and known to the API server."""
        reference = self.allocate(*devices, **fields)
        body = self.claims["ns", reference.name]
        self.server.put("resourceclaims", {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **body})
        return reference

    def released(self, claim):
        """As the kubelet and the controllers do when a pod has ended."""
        assert self.unprepare(claim) is None
        self.server.remove("resourceclaims", claim.name, "ns")

    def uuids(self):
        return [gpu.uuid for gpu in self.nvml.gpus()]
