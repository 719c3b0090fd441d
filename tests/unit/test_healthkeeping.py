"""What the keeper of health puts together: who is told what, and in which order."""

from types import SimpleNamespace

import pytest
from doubles.offering import OfferingNode

from dradriver.gpu.health import HealthWishes
from dradriver.healthkeeping import Around, HealthKeeping
from dradriver.nvml import Event, EventType
from dradriver.observe.metrics import Metrics
from dradriver.prepare.errands import Errands


class Told:
    """Stands in for everybody who is told."""

    def __init__(self):
        self.marks, self.resumed, self.notes, self.posts = [], [], {}, []

    def told(self, marks):
        self.marks.append(marks)

    def resume(self, marks):
        self.resumed.append(marks)

    def set(self, subject, notes):
        self.notes[subject] = notes

    def post(self, devices):
        self.posts.append({device.device: device for device in devices})


class Offered:
    """Stands in for the offering."""

    def __init__(self):
        self.marked, self.woken = [], []
        self.numbers = {"GPU-a": 0}

    def mark(self, marks):
        self.marked.append(marks)

    def wake(self, reason, *, gpu_uuid=""):
        self.woken.append(gpu_uuid)

    def place(self, _gpu, _instance):
        return None

    def claims(self, _gpu, _place):
        return []


@pytest.fixture
def make(tmp_path):
    def build():
        told, offering, errands = Told(), Offered(), Errands("teller", clock=lambda: 100.0)
        metrics = Metrics(node="node-a", driver="gpu.nvidia.com", version="0")
        around = Around(
            folder=tmp_path,
            boot_id="boot",
            hardware=lambda: None,
            offering=offering,
            wishes=HealthWishes,
            annotation=lambda: None,
            is_our_turn=lambda: True,
            metrics=metrics,
            reporter=told,
            board=told,
        )
        keeping = HealthKeeping(around)
        return SimpleNamespace(
            keeping=keeping, told=told, offering=offering, errands=errands, metrics=metrics.registry.get_sample_value
        )

    return build


def event(kind, data=0):
    return Event(gpu_uuid="GPU-a", type=kind, data=data, gpu_instance_id=None, compute_instance_id=None)


def test_what_an_earlier_process_knew_is_given_before_anything_is_offered_and_told_to_nobody_as_new(make):
    first = make()
    first.keeping._hear(event(EventType.XID, 79))
    second = make()
    second.keeping.load()
    assert second.offering.marked[-1].keys() == {"GPU-a"}
    second.keeping._listener = second.keeping._monitor = SimpleNamespace(
        marks=second.keeping._monitor.marks, start=lambda: None, catch_up=lambda: None
    )
    second.keeping.start(second.told, second.errands)
    assert second.told.resumed == [second.offering.marked[-1]]


def test_devices_get_their_taints_at_once_and_people_are_told_a_moment_later(make):
    node = make()
    node.keeping._teller, node.keeping._errands = node.told, node.errands
    node.keeping._hear(event(EventType.XID, 79))
    assert node.offering.marked[-1].keys() == {"GPU-a"}
    assert (node.told.marks, node.told.notes) == ([], {})
    node.keeping._tell()
    assert node.told.marks == [node.offering.marked[-1]]
    (note,) = node.told.notes["health"].values()
    assert note.reason == "GpuUnhealthy"
    assert "Xid 79" in note.text


@pytest.mark.parametrize(
    ("kind", "woken"),
    [
        (EventType.MIG_CONFIG, ["GPU-a"]),
        (EventType.RECOVERY_ACTION, [""]),
        (EventType.GPU_UNAVAILABLE, [""]),
        (EventType.XID, []),
    ],
)
def test_what_may_have_changed_the_gpus_has_them_looked_at(kind, woken, make):
    node = make()
    node.keeping._hear(event(kind, 31))
    assert node.offering.woken == woken
    name = kind.name.lower().replace("_", "-")
    assert node.metrics("dradriver_gpu_events_total", {"type": name}) == 1.0
    assert node.metrics("dradriver_gpu_xids_total", {"xid": "31"}) == (1.0 if kind is EventType.XID else None)


def test_after_a_gap_everything_is_looked_at(make):
    node = make()
    node.keeping._on_missed_events()
    assert node.offering.woken == [""]
    assert node.keeping._monitor._wake.is_set()


def test_an_order_that_names_nothing_is_told_until_one_is_understood(make):
    node = make()
    node.keeping._on_unknown(("gpu-9",))
    assert "gpu-9" in node.told.notes["clear"][""].text
    node.keeping._on_unknown(())
    assert node.told.notes["clear"] == {}


def test_kubelet_and_metrics_are_told_of_what_is_shown(make, tmp_path):
    from doubles.apiserver import ApiServer  # noqa: PLC0415 (only here)

    from dradriver.kube.connection import connect  # noqa: PLC0415

    node = make()
    with ApiServer() as server:
        client = connect(server.kubeconfig(tmp_path))
        folder = tmp_path / "node"
        folder.mkdir()
        gpus = OfferingNode(folder, server, client)
        try:
            gpus.look()
            node.keeping.shown(gpus.offering._shown)
        finally:
            gpus.nvml.close()
            client.close()
    assert node.told.posts[-1]["gpu-0"].health == "Healthy"
    assert node.metrics("dradriver_tainted_devices", {"cause": "xid", "effect": "NoExecute"}) == 0.0
