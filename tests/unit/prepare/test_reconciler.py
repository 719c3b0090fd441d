"""Records, claims, MIG instances and CDI specs compared, and what differs mended."""

import time
from types import SimpleNamespace

import pytest

from dradriver.gpu.model import Placement
from dradriver.kube import NotFoundError, UnreachableError
from dradriver.kubelet import Prepared
from dradriver.nvml import InUse, Process
from dradriver.prepare.locks import claim_lock
from dradriver.prepare.reconciler import GRACE_SECONDS, INTERVAL_SECONDS, Reconciler, Surroundings

ONE_G = "gpu-0-mig-1g10gb-19-{}".format
UNREACHABLE = UnreachableError("GET claim: connection refused")


class Clock:
    """Moves only when told; starts at the real time, since deadlines of locks are counted in that."""

    def __init__(self):
        self.ahead = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead


class Reports:
    """Keeps what was reported."""

    def __init__(self):
        self.told = []

    def of(self, kind):
        return [entry[1:] for entry in self.told if entry[0] == kind]

    def damaged_record(self, uid, path, *, recovered):
        self.told.append(("damaged", uid, path.exists(), recovered))

    def foreign_instance(self, gpu_uuid, instance, *, reclaimed):
        self.told.append(("foreign", gpu_uuid, instance.placement.start, instance.uuid, reclaimed))

    def lost_instance(self, record, device):
        self.told.append(("lost", record.plan.uid, device))

    def stale_claim(self, record, cause):
        self.told.append(("stale", record.plan.uid, cause))


@pytest.fixture
def world(node):
    return World(node)


class World:
    def __init__(self, node, **around):
        self.node, self.around_more = node, around
        self.clock = Clock()
        self.lists = 0
        self.list_error = None
        self.begin()

    def begin(self):
        """Start the reconciler of a new process."""
        node = self.node
        self.reports = Reports()
        around = Surroundings(
            records=node.records,
            specs=node.containers.specs,
            locks=node.preparer._locks,
            node=lambda: node.node,
            boot_id=node.preparer._boot_id,
            **self.around_more,
        )
        self.reconciler = Reconciler(
            around=around,
            preparer=node.preparer,
            claims=self._list,
            reporter=self.reports,
            metrics=node.metrics,
            clock=self.clock,
            chance=lambda: 0.5,
        )

    def restart(self):
        self.node.restart()
        self.begin()

    def _list(self):
        self.lists += 1
        if self.list_error is not None:
            raise self.list_error
        return list(self.node.claims.values())

    def round(self, later=0.0):
        self.clock.ahead += later
        self.reconciler.round()

    def rounds_past_the_grace_time(self):
        self.round()
        self.round(GRACE_SECONDS)

    def delete(self, claim):
        del self.node.claims["ns", claim.name]

    def gpu(self, name="gpu-0"):
        return self.node.node.offer.devices[name].gpu.uuid

    def make_foreign(self, start, *, bare=False):
        nvml, gpu = self.node.nvml, self.gpu()
        nvml.set_mig_mode(gpu, enabled=True)
        instance = nvml.create_gpu_instance(gpu, profile_id=19, placement=Placement(start=start, size=1))
        if bare:
            return instance
        return nvml.create_compute_instance(gpu, gpu_instance_id=instance.gpu_instance_id)

    def destroy(self, instance):
        nvml, gpu = self.node.nvml, self.gpu()
        nvml.destroy_compute_instance(
            gpu, gpu_instance_id=instance.gpu_instance_id, compute_instance_id=instance.compute_instance_id
        )
        nvml.destroy_gpu_instance(gpu, gpu_instance_id=instance.gpu_instance_id)

    def foreign_metric(self):
        return self.node.metrics.registry.get_sample_value("dradriver_foreign_mig_instances")


# --- claims --------------------------------------------------------------------------------------


def test_nothing_to_mend_is_left_alone_and_costs_no_list(world):
    claim = world.node.allocate(ONE_G(0))
    answer = world.node.prepare(claim)
    world.rounds_past_the_grace_time()
    world.round(10 * GRACE_SECONDS)
    assert world.reports.told == []
    assert world.lists == 0
    assert world.node.prepare(claim) == answer


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda world, claim: world.delete(claim), "does not exist any more"),
        (lambda world, claim: world.node.allocate(ONE_G(0), name=claim.name), "deleted and made again"),
        (lambda world, claim: world.node.claims["ns", claim.name]["status"].clear(), "not allocated"),
        (
            lambda world, claim: world.node.claims["ns", claim.name]["status"]["allocation"]["devices"]["results"][
                0
            ].update(device="gpu-1"),
            "allocated to other devices",
        ),
    ],
    ids=["gone", "other UID", "deallocated", "reallocated"],
)
def test_a_stale_claim_is_released_after_its_grace_time(world, change, cause):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    change(world, claim)
    world.round()
    world.round(GRACE_SECONDS - 5)
    assert not world.node.is_clean()
    assert world.reports.told == []
    world.round(6)
    assert world.node.is_clean()
    ((uid, told),) = world.reports.of("stale")
    assert uid == claim.uid
    assert cause in told


@pytest.mark.parametrize("deleted", [False, True], ids=["told by the kubelet", "forgotten by the kubelet"])
def test_what_was_made_on_a_gpu_that_is_taken_out_is_given_up(world, deleted):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    world.node.simulate("unplug", "--gpu", "0")
    if not deleted:
        assert world.node.unprepare(claim) is None, "the pod must be able to end"
        assert world.node.records.get(claim.uid) is not None, "it may be plugged in again at once"
    world.delete(claim)
    world.rounds_past_the_grace_time()
    assert world.node.is_clean()
    assert world.reports.of("stale")


def test_what_was_made_on_a_gpu_that_is_lost_is_not_given_up(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    world.node.simulate("lose", "--gpu", "0")
    world.delete(claim)
    world.rounds_past_the_grace_time()
    assert world.node.records.get(claim.uid) is not None
    world.node.simulate("recover", "--gpu", "0")
    world.node.nvml.renew()
    world.round(GRACE_SECONDS)
    assert world.node.is_clean()


def test_a_claim_that_comes_back_gets_its_whole_grace_time_again(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    status = world.node.claims["ns", claim.name]["status"]
    kept = dict(status)
    status.clear()
    world.round()
    status.update(kept)
    world.round(GRACE_SECONDS)
    status.clear()
    world.round()
    world.round(GRACE_SECONDS - 5)
    assert world.node.records.get(claim.uid) is not None


def test_the_grace_time_of_a_claim_that_was_unprepared_meanwhile_is_not_remembered(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    status = world.node.claims["ns", claim.name]["status"]
    kept = dict(status)
    status.clear()
    world.round()
    world.node.unprepare(claim)
    world.round(GRACE_SECONDS)
    status.update(kept)
    world.node.prepare(claim)
    status.clear()
    world.round(GRACE_SECONDS)
    assert world.node.records.get(claim.uid) is not None


def test_an_api_server_that_does_not_answer_takes_nothing_from_anybody(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    world.delete(claim)
    world.node.read_error = UNREACHABLE
    world.rounds_past_the_grace_time()
    world.round(10 * GRACE_SECONDS)
    assert world.node.records.get(claim.uid) is not None
    world.node.read_error = None
    world.rounds_past_the_grace_time()
    assert world.node.is_clean()


@pytest.mark.parametrize("damage", [{"results": 7}, {"results": [{"driver": "gpu.nvidia.com"}]}])
def test_an_allocation_that_cannot_be_read_takes_nothing_from_anybody(world, damage):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    world.node.claims["ns", claim.name]["status"]["allocation"]["devices"] = damage
    world.rounds_past_the_grace_time()
    assert world.node.records.get(claim.uid) is not None


def test_a_time_without_api_server_does_not_count_as_grace(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    world.delete(claim)
    world.round()
    world.node.read_error = UNREACHABLE
    world.round(GRACE_SECONDS)
    world.node.read_error = None
    world.round(1)
    assert world.node.records.get(claim.uid) is not None


@pytest.mark.parametrize("device", ["gpu-0", ONE_G(0)])
def test_what_processes_use_is_not_given_away(world, device, monkeypatch):
    """A container may outlive its claim object, as after a forced deletion; the kubelet unprepares when that ended."""
    claim = world.node.allocate(device)
    world.node.prepare(claim)
    world.delete(claim)
    made = world.node.records.get(claim.uid).made.get(device)
    process = Process(pid=7, gpu_instance_id=made and made.gpu_instance_id, compute_instance_id=None)
    with monkeypatch.context() as patch:
        patch.setattr(world.node.nvml, "processes", lambda _: (process,))
        world.rounds_past_the_grace_time()
        assert world.node.records.get(claim.uid) is not None
        assert world.reports.of("stale") == []
    world.round()
    assert world.node.is_clean()


def test_a_release_that_fails_is_told_when_it_has_worked(world, monkeypatch):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    world.delete(claim)

    def busy(*_, **__):
        raise InUse("nvmlComputeInstanceDestroy", 19)

    monkeypatch.setattr("dradriver.prepare.reconciler.CALL_SECONDS", 0.5 - GRACE_SECONDS)
    with monkeypatch.context() as patch:
        patch.setattr(world.node.nvml, "destroy_compute_instance", busy)
        world.rounds_past_the_grace_time()
    assert world.reports.of("stale") == []
    monkeypatch.setattr("dradriver.prepare.reconciler.CALL_SECONDS", 20.0)
    world.round()
    assert len(world.reports.of("stale")) == 1
    assert world.node.is_clean()


# --- records and specs ---------------------------------------------------------------------------


def test_a_damaged_record_is_made_again_and_told(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    (world.node.folder / "claims" / f"{claim.uid}.json").write_text("{")
    world.restart()
    assert world.reconciler.recover_records() == frozenset()
    assert world.reports.of("damaged") == [(claim.uid, True, True)]
    world.round()
    assert world.reports.of("damaged") == [(claim.uid, True, True)]
    assert isinstance(world.node.prepare(claim), Prepared)


@pytest.mark.parametrize("device", [ONE_G(0), "gpu-1"])
def test_a_damaged_record_without_its_spec_is_made_again_from_the_claim(world, device):
    node = world.node
    claim = node.allocate(device)
    before = node.prepare(claim)
    instances = node.instances()
    (node.folder / "claims" / f"{claim.uid}.json").write_text("{")
    node.containers.specs.remove(claim.uid)
    world.restart()
    world.reconciler.recover_records()
    assert world.reports.of("damaged") == [(claim.uid, True, True)]
    assert node.instances() == instances
    assert node.prepare(claim) == before
    assert node.instances() == instances
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_damaged_record_of_a_claim_that_is_gone_is_told_and_given_up(world):
    claim = world.node.allocate("gpu-1")
    world.node.prepare(claim)
    (world.node.folder / "claims" / f"{claim.uid}.json").write_text("{")
    world.node.containers.specs.remove(claim.uid)
    world.node.claims.clear()
    world.restart()
    world.reconciler.recover_records()
    assert world.reports.of("damaged") == [(claim.uid, True, False)]


def test_a_recovered_claim_gets_its_name_from_the_api(world):
    claim, other = world.node.allocate(ONE_G(0)), world.node.allocate("gpu-1")
    world.node.prepare(claim, other)
    for one in (claim, other):
        (world.node.folder / "claims" / f"{one.uid}.json").unlink()
    world.restart()
    world.round()
    assert {record.plan.name for record in world.node.records.all()} == {claim.name, other.name}
    assert world.lists == 1


def test_a_recovered_claim_that_does_not_exist_is_released(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    (world.node.folder / "claims" / f"{claim.uid}.json").unlink()
    world.delete(claim)
    world.restart()
    world.rounds_past_the_grace_time()
    assert world.node.is_clean()
    assert world.reports.of("stale") == [(claim.uid, "no claim of that UID exists")]


def test_a_list_that_fails_keeps_the_recovered_and_does_not_end_the_round(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    (world.node.folder / "claims" / f"{claim.uid}.json").unlink()
    world.restart()
    world.list_error = NotFoundError(status=403, reason="Forbidden", message="no", target="LIST")
    world.make_foreign(5)
    world.rounds_past_the_grace_time()
    assert world.node.records.get(claim.uid) is not None
    assert len(world.reports.of("foreign")) == 1


def test_a_worthless_spec_goes_with_its_claim_and_not_before(world):
    claim = world.node.allocate("gpu-1")
    world.node.prepare(claim)
    (world.node.folder / "claims" / f"{claim.uid}.json").unlink()
    world.node.containers.specs.path(claim.uid).write_text("{}")
    world.restart()
    world.round()
    # The container of that claim may restart, and then the runtime reads the file again.
    assert world.node.specs() == [claim.uid]
    world.delete(claim)
    world.round()
    assert world.node.specs() == []


def test_a_record_that_another_process_has_just_written_is_not_made_again(node, tmp_path):
    """Its spec is seen before the record: what would be made of the spec knows neither requests nor name."""
    node.records._shared = True
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    written = node.records.get(claim.uid)
    # As this process knew the node a moment before.
    node.records._records.clear()
    node.records._versions.clear()
    assert node.preparer.recover(claim.uid)
    assert node.records.get(claim.uid) == written


# --- hardware ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bare", [False, True])
def test_a_foreign_instance_is_told_once_counted_and_kept(world, bare):
    world.node.prepare(world.node.allocate(ONE_G(0)))
    instance = world.make_foreign(4, bare=bare)
    world.round()
    world.round(INTERVAL_SECONDS)
    assert world.reports.of("foreign") == [(world.gpu(), 4, instance.uuid, False)]
    assert world.foreign_metric() == 1
    assert len(world.node.instances()) == 2


def test_a_foreign_instance_that_goes_is_not_counted_any_more(world):
    instance = world.make_foreign(4)
    world.round()
    assert world.foreign_metric() == 1
    world.destroy(instance)
    world.round()
    assert world.foreign_metric() == 0


@pytest.mark.parametrize("bare", [False, True])
def test_a_foreign_instance_is_reclaimed_where_that_is_wished(node, bare):
    world = World(node, reclaim=True)
    world.make_foreign(4, bare=bare)
    world.round()
    assert node.instances() == []
    assert [entry[-1] for entry in world.reports.of("foreign")] == [True]
    assert world.foreign_metric() == 0
    # The GPU can be had as a whole again, without a claim paying for the switch.
    assert not node.nvml.mig_mode(world.gpu()).current


def test_reclaiming_touches_no_partition_of_a_claim(node):
    world = World(node, reclaim=True)
    claims = [node.allocate(ONE_G(start)) for start in (0, 1)]
    answers = node.prepare(*claims)
    world.make_foreign(6)
    world.round()
    assert node.instances() == [(0, 19, 0), (0, 19, 1)]
    assert node.prepare(*claims) == answers


def test_a_foreign_instance_in_use_is_told_as_kept_and_reclaimed_later(node, monkeypatch):
    world = World(node, reclaim=True)
    world.make_foreign(4)
    world.make_foreign(5)
    destroy = node.nvml.destroy_compute_instance
    (first, _) = node.nvml.instances(world.gpu())

    def busy(gpu, *, gpu_instance_id, compute_instance_id):
        if gpu_instance_id == first.gpu_instance_id:
            raise InUse("nvmlComputeInstanceDestroy", 19, gpu)
        destroy(gpu, gpu_instance_id=gpu_instance_id, compute_instance_id=compute_instance_id)

    with monkeypatch.context() as patch:
        patch.setattr(node.nvml, "destroy_compute_instance", busy)
        world.round()
    assert [(entry[1], entry[-1]) for entry in world.reports.of("foreign")] == [(4, False), (5, True)]
    assert world.foreign_metric() == 1
    world.round()
    assert node.instances() == []
    assert world.reports.of("foreign")[-1][-1] is True


def test_without_dynamic_partitions_every_instance_is_somebodys(make_node):
    node = make_node(mig="static")
    world = World(node, reclaim=True)
    world.make_foreign(4)
    world.round()
    assert world.reports.told == []
    assert len(node.instances()) == 1


def test_a_partition_that_is_gone_is_told_once(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    (instance,) = world.node.nvml.instances(world.gpu())
    world.destroy(instance)
    world.round()
    world.round()
    assert world.reports.told == [("lost", claim.uid, ONE_G(0))]


def test_an_instance_at_the_place_of_a_lost_one_is_foreign(world):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    (instance,) = world.node.nvml.instances(world.gpu())
    world.destroy(instance)
    other = world.make_foreign(0)
    world.round()
    assert world.reports.of("lost") == [(claim.uid, ONE_G(0))]
    assert world.reports.of("foreign") == [(world.gpu(), 0, other.uuid, False)]


def test_an_admins_record_does_not_stand_for_the_owners(world):
    instance = world.make_foreign(0)
    admin = world.node.allocate(ONE_G(0), adminAccess=True)
    assert isinstance(world.node.prepare(admin), Prepared)
    world.round()
    assert world.reports.of("foreign") == [(world.gpu(), 0, instance.uuid, False)]


def test_a_reload_of_the_driver_is_told_for_each_partition(world):
    claims = [world.node.allocate(ONE_G(start)) for start in (0, 1)]
    world.node.prepare(*claims)
    world.node.simulate("driver-reload")
    world.round()
    assert sorted(world.reports.of("lost")) == sorted((claim.uid, ONE_G(i)) for i, claim in enumerate(claims))


def test_without_gpus_claims_are_compared_all_the_same(world):
    claim = world.node.allocate("gpu-1")
    world.node.prepare(claim)
    world.delete(claim)
    world.node.node = None
    world.rounds_past_the_grace_time()
    assert world.node.is_clean()


# --- running -------------------------------------------------------------------------------------


def test_a_busy_claim_is_passed_over_and_the_others_are_compared(world, monkeypatch):
    busy, gone = world.node.allocate(ONE_G(0)), world.node.allocate("gpu-1")
    world.node.prepare(busy, gone)
    for claim in (busy, gone):
        world.delete(claim)
    world.round()
    monkeypatch.setattr("dradriver.prepare.reconciler.CALL_SECONDS", -GRACE_SECONDS)
    with world.node.preparer._locks.hold([claim_lock(busy.uid)], time.monotonic() + 30):
        world.round(GRACE_SECONDS)
    assert {record.plan.uid for record in world.node.records.all()} == {busy.uid}


def test_it_compares_at_once_and_ends_when_told(world, monkeypatch):
    claim = world.node.allocate(ONE_G(0))
    world.node.prepare(claim)
    compared = SimpleNamespace(count=0)
    original = Reconciler.round

    def counted(self):
        original(self)
        compared.count += 1
        self._stop.set()
        raise RuntimeError("even so the thread ends in order")

    monkeypatch.setattr(Reconciler, "round", counted)
    world.reconciler.start()
    world.reconciler.stop(30)
    assert not world.reconciler._thread.is_alive()
    assert compared.count == 1


def test_a_round_that_fails_is_followed_by_another(world, monkeypatch):
    rounds = []

    def failing(self):
        rounds.append(1)
        if len(rounds) == 1:
            raise ZeroDivisionError
        self._stop.set()

    monkeypatch.setattr(Reconciler, "round", failing)
    monkeypatch.setattr("dradriver.prepare.reconciler.INTERVAL_SECONDS", 0.0)
    world.reconciler.start()
    world.reconciler._thread.join(30)
    assert len(rounds) == 2
    assert world.node.metrics.registry.get_sample_value(
        "dradriver_last_success_timestamp_seconds", {"loop": "reconcile"}
    )
