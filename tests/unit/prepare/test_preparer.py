import json
import os
import re
import threading
import time

import pytest
from doubles.preparing import allocation

from dradriver.kube.errors import ForbiddenError, ImpossibleNameError, UnreachableError
from dradriver.kubelet import ClaimReference, Failed, Prepared
from dradriver.prepare import boundaries
from dradriver.prepare.boundaries import Boundary
from dradriver.prepare.locks import claim_lock
from dradriver.prepare.patience import Patience
from dradriver.prepare.records import State

ONE_G = "gpu-0-mig-1g10gb-19-{}".format
THREE_G = "gpu-0-mig-3g40gb-9-{}".format
UNREACHABLE = UnreachableError("GET claim: connection refused")


def spec(node, claim):
    return json.loads((node.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json").read_text())


def environment(entry):
    return dict(line.split("=", 1) for line in entry["containerEdits"]["env"])


def paths(entry):
    return {node["path"] for node in entry["containerEdits"]["deviceNodes"]}


# --- what a claim gets -------------------------------------------------------------------------


def test_a_whole_gpu_gets_its_node_and_nothing_of_the_others(node):
    claim = node.allocate("gpu-1")
    answer = node.prepare(claim)
    (device,) = answer.devices
    assert (device.request_names, device.pool_name, device.device_name) == (("r0",), "node-a", "gpu-1")
    assert device.cdi_device_ids == (f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu-1",)
    written = spec(node, claim)
    assert written["cdiVersion"] == "0.5.0"
    assert paths(written["devices"][0]) == {"/dev/nvidia1"}
    assert paths(written) == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
    assert environment(written) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    uuid = node.node.offer.devices["gpu-1"].gpu.uuid
    assert environment(written["devices"][0]) == {"DRADRIVER_DEVICE_GPU_1": uuid, "DRADRIVER_DEVICES": uuid}
    assert any(mount["containerPath"].endswith("/libcuda.so.1") for mount in written["containerEdits"]["mounts"])


def test_a_partition_is_made_where_it_was_allocated(node):
    claim = node.allocate(THREE_G(4))
    assert isinstance(node.prepare(claim), Prepared)
    assert node.instances() == [(0, 9, 4)]
    (device,) = spec(node, claim)["devices"]
    caps = {path for path in paths(device) if "caps" in path}
    assert paths(device) - caps == {"/dev/nvidia0"}
    assert len(caps) == 2
    assert environment(device)["DRADRIVER_DEVICES"].startswith("MIG-")


def test_every_path_of_a_spec_exists(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    text = json.dumps(spec(node, claim))
    hosts = re.findall(r'"hostPath": "([^"]+)"', text)
    assert len(hosts) > 10
    assert [path for path in hosts if not node.root.joinpath(path.removeprefix(f"{node.root}/")).exists()] == []


def test_two_requests_of_one_claim_are_told_apart(node):
    claim = node.allocate(("first", ONE_G(0)), ("second", ONE_G(1)))
    answer = node.prepare(claim)
    assert [device.request_names for device in answer.devices] == [("first",), ("second",)]
    first, second = (environment(entry) for entry in spec(node, claim)["devices"])
    assert first["DRADRIVER_DEVICES"] != second["DRADRIVER_DEVICES"]


def test_two_devices_of_one_request_are_listed_together(node):
    claim = node.allocate(("both", "gpu-0"), ("both", "gpu-1"))
    node.prepare(claim)
    lists = {environment(entry)["DRADRIVER_DEVICES"] for entry in spec(node, claim)["devices"]}
    uuids = [node.node.offer.devices[name].gpu.uuid for name in ("gpu-0", "gpu-1")]
    assert lists == {",".join(uuids)}


def test_a_subrequest_is_answered_by_its_main_request(node):
    answer = node.prepare(node.allocate(("gpu/large", "gpu-0")))
    assert answer.devices[0].request_names == ("gpu",)


def test_devices_of_other_drivers_are_none_of_ours(node):
    claim = node.allocate("gpu-0")
    results = node.claims["ns", claim.name]["status"]["allocation"]["devices"]["results"]
    results.append({"request": "nic", "driver": "nic.example.com", "pool": "node-a", "device": "eth1"})
    assert [device.device_name for device in node.prepare(claim).devices] == ["gpu-0"]


def test_a_static_instance_is_given_and_never_destroyed(make_node):
    node = make_node(mig="static")
    node.simulate("mig", "--gpu", "0", "on")
    node.simulate("instance", "create", "1g.10gb", "--gpu", "0", "--start", "2")
    node.restart()
    claim = node.allocate(ONE_G(2))
    assert isinstance(node.prepare(claim), Prepared)
    uuid = node.node.offer.devices[ONE_G(2)].instance.uuid
    assert environment(spec(node, claim)["devices"][0])["DRADRIVER_DEVICES"] == uuid
    assert node.unprepare(claim) is None
    assert node.instances() == [(0, 19, 2)]


# --- repeating ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["gpu-0", ONE_G(3)])
def test_preparing_twice_changes_nothing(node, device):
    claim = node.allocate(device)
    first = node.prepare(claim)
    before = spec(node, claim), node.instances()
    assert node.prepare(claim) == first
    assert (spec(node, claim), node.instances()) == before


@pytest.mark.parametrize("device", ["gpu-0", ONE_G(3)])
def test_unpreparing_leaves_nothing_and_can_be_repeated(node, device):
    claim = node.allocate(device)
    node.prepare(claim)
    assert node.unprepare(claim) is None
    assert node.is_clean()
    assert node.unprepare(claim) is None


def test_mig_mode_goes_off_with_the_last_partition_only(node):
    first, second = node.allocate(ONE_G(0)), node.allocate(ONE_G(1))
    node.prepare(first, second)
    gpu = node.node.offer.devices["gpu-0"].gpu.uuid
    node.unprepare(first)
    assert node.nvml.mig_mode(gpu).current
    node.unprepare(second)
    assert not node.nvml.mig_mode(gpu).current


def test_mig_mode_is_left_alone_where_it_takes_a_reset(make_node):
    node = make_node(machine="1xa100-80gb", mig_mode="on")
    claim = node.allocate("gpu-0-mig-1g10gb-19-0")
    assert isinstance(node.prepare(claim), Prepared)
    assert node.unprepare(claim) is None
    assert node.is_clean()
    mode = node.nvml.mig_mode(next(iter(node.node.gpus)))
    assert (mode.current, mode.pending) == (True, True)


def test_a_partition_is_refused_where_mig_mode_takes_a_reset(make_node):
    node = make_node(machine="1xa100-80gb", mig_mode="on")
    claim = node.allocate("gpu-0-mig-1g10gb-19-0")
    node.simulate("mig", "off")
    node.simulate("reset")
    node.nvml.renew()
    assert "changes it only through a reset, which this driver never does" in refused(node, claim)
    assert node.is_clean()


def test_a_claim_nobody_prepared_is_clean(node):
    assert node.unprepare(ClaimReference(namespace="ns", name="x", uid="0000")) is None


@pytest.mark.parametrize("device", ["gpu-0", ONE_G(3)])
def test_a_new_process_gives_the_same_answer_and_undoes_what_the_old_one_made(node, device):
    claim = node.allocate(device)
    first = node.prepare(claim)
    made = node.instances()
    node.restart()
    assert node.prepare(claim) == first
    assert node.instances() == made
    node.claims.clear()
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_new_process_with_other_flags_keeps_what_is_prepared(node):
    claim = node.allocate(ONE_G(3))
    first = node.prepare(claim)
    node.mig = "static"
    node.restart()
    assert node.prepare(claim) == first
    assert node.instances() == [(0, 19, 3)]
    node.unprepare(claim)
    assert node.is_clean()


def test_a_spec_that_somebody_removed_is_written_again(node):
    claim = node.allocate(ONE_G(3))
    node.prepare(claim)
    before = spec(node, claim)
    node.containers.specs.remove(claim.uid)
    node.prepare(claim)
    assert spec(node, claim) == before


def test_a_partition_that_somebody_destroyed_is_made_again(node):
    claim = node.allocate(ONE_G(3))
    node.prepare(claim)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    assert isinstance(node.prepare(claim), Prepared)
    assert node.instances() == [(0, 19, 3)]


def test_a_prepared_claim_needs_no_api_server(node):
    claim = node.allocate(ONE_G(3))
    first = node.prepare(claim)
    node.read_error = UNREACHABLE
    assert node.prepare(claim) == first
    assert isinstance(node.prepare(node.allocate("gpu-1")), Failed)


def test_a_claim_allocated_anew_gets_its_new_device_and_loses_the_old_one(node):
    claim = node.allocate(ONE_G(3))
    node.prepare(claim)
    node.claims["ns", claim.name]["status"]["allocation"] = allocation(THREE_G(0))
    assert node.prepare(claim).devices[0].device_name == THREE_G(0)
    assert node.instances() == [(0, 9, 0)]


def test_after_a_reboot_a_claim_is_prepared_anew(node):
    claim = node.allocate(ONE_G(3))
    node.prepare(claim)
    node.simulate("reboot")
    node.restart()
    assert node.instances() == []
    assert isinstance(node.prepare(claim), Prepared)
    assert node.instances() == [(0, 19, 3)]


def test_after_a_reboot_unpreparing_needs_no_gpus(node):
    claim = node.allocate(ONE_G(3))
    node.prepare(claim)
    node.simulate("reboot")
    node.restart()
    node.node = None
    assert node.unprepare(claim) is None
    assert (node.specs(), node.records.all()) == ([], ())


# --- refusals ----------------------------------------------------------------------------------


def refused(node, claim):
    answer = node.prepare(claim)
    assert isinstance(answer, Failed), answer
    assert f"ns/{claim.name}" in answer.message
    return answer.message


def test_a_claim_that_is_gone_is_told(node):
    claim = node.allocate("gpu-0")
    node.claims.clear()
    assert "does not exist (any more)" in refused(node, claim)


def test_a_claim_made_again_under_the_same_name_is_told(node):
    old = node.allocate("gpu-0", name="same")
    node.allocate("gpu-0", name="same")
    message = refused(node, old)
    assert "was deleted and made again" in message
    assert old.uid in message


def test_a_claim_without_allocation_is_told(node):
    claim = node.allocate("gpu-0")
    node.claims["ns", claim.name]["status"] = {}
    assert "is not allocated" in refused(node, claim)


def test_a_foreign_pool_is_told(node):
    assert "is of pool node-b, this node serves pool node-a" in refused(node, node.allocate("gpu-0", pool="node-b"))


def test_an_unknown_device_is_told(node):
    message = refused(node, node.allocate("gpu-9"))
    assert "has no device gpu-9" in message
    assert "it offers gpu-0-mig-1g10gb-19-0," in message


def test_a_claim_without_devices_of_ours_is_told(node):
    assert "no device of driver gpu.nvidia.com" in refused(node, node.allocate("eth1", driver="nic.example.com"))


def test_a_denied_read_is_told(node):
    node.read_error = ForbiddenError(status=403, reason="Forbidden", message="no relationship", target="GET claim")
    assert "no relationship" in refused(node, node.allocate("gpu-0"))


def test_a_claim_whose_name_is_none_is_told(node):
    node.read_error = ImpossibleNameError("not a name of a Kubernetes object: 'ns' 'a/b'")
    assert "cannot be read: not a name" in refused(node, node.allocate("gpu-0"))


def test_gpus_that_are_not_known_yet_are_told(node):
    node.node = None
    assert "GPUs of this node are not known yet" in refused(node, node.allocate("gpu-0"))


@pytest.mark.parametrize("uid", ["../../etc/passwd", "", "a/b", "-", ".", "x" * 64])
def test_a_uid_that_is_no_file_name_is_refused(node, uid):
    claim = ClaimReference(namespace="ns", name="odd", uid=uid)
    assert "is not a UID" in refused(node, claim)
    assert isinstance(node.unprepare(claim), Failed)


def test_a_bad_claim_does_not_fail_its_neighbours(node):
    good, bad, other = node.allocate("gpu-0"), node.allocate("gpu-9"), node.allocate("gpu-1-mig-1g10gb-19-0")
    answers = node.prepare(good, bad, other)
    assert [type(answer) for answer in answers] == [Prepared, Failed, Prepared]


def test_an_internal_error_fails_one_claim_only(node, monkeypatch):
    broken, good = node.allocate("gpu-0"), node.allocate("gpu-1")
    write = node.containers.write

    def crash(plan, made, facts):
        if plan.uid == broken.uid:
            raise RuntimeError("defect")
        return write(plan, made, facts)

    monkeypatch.setattr(type(node.containers), "write", lambda _self, *args: crash(*args))
    answers = node.prepare(broken, good)
    assert "internal error of the driver" in answers[0].message
    assert isinstance(answers[1], Prepared)


# --- one device, one claim ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "wanted"),
    [("gpu-0", "gpu-0"), ("gpu-0", ONE_G(0)), (ONE_G(0), "gpu-0"), (ONE_G(2), THREE_G(0)), (THREE_G(4), ONE_G(6))],
)
def test_what_overlaps_a_held_device_is_refused_and_named(node, held, wanted):
    holder, claim = node.allocate(held), node.allocate(wanted)
    node.prepare(holder)
    before = node.instances()
    message = refused(node, claim)
    assert f"overlaps {held}, which is still held by claim ns/{holder.name}" in message
    assert node.instances() == before
    node.unprepare(holder)
    assert isinstance(node.prepare(claim), Prepared)


def test_neighbours_on_one_gpu_do_not_disturb_each_other(node):
    assert all(isinstance(a, Prepared) for a in node.prepare(node.allocate(THREE_G(0)), node.allocate(ONE_G(4))))
    assert node.instances() == [(0, 9, 0), (0, 19, 4)]


def test_a_hold_survives_the_process(node):
    node.prepare(node.allocate("gpu-0"))
    node.restart()
    assert "is still held by" in refused(node, node.allocate(ONE_G(0)))


def test_admin_access_sees_a_held_gpu_and_leaves_it_alone(node):
    owner, admin = node.allocate(ONE_G(0)), node.allocate(ONE_G(0), adminAccess=True)
    node.prepare(owner)
    assert isinstance(node.prepare(admin), Prepared)
    seen, owned = (environment(spec(node, claim)["devices"][0]) for claim in (admin, owner))
    assert seen == owned | {"DRADRIVER_ADMIN_ACCESS": "true"}
    node.unprepare(admin)
    assert node.instances() == [(0, 19, 0)]


def test_admin_access_never_makes_a_partition(node):
    assert "admin access only looks at what exists" in refused(node, node.allocate(ONE_G(0), adminAccess=True))
    assert node.instances() == []


def test_an_instance_of_somebody_else_is_named_and_never_touched(node):
    node.simulate("mig", "--gpu", "0", "on")
    node.simulate("instance", "create", "1g.10gb", "--gpu", "0", "--start", "2")
    for wanted in (ONE_G(2), THREE_G(0), "gpu-0"):
        assert "which this driver did not make" in refused(node, node.allocate(wanted))
        assert node.instances() == [(0, 19, 2)]
        assert node.records.all() == ()
    assert isinstance(node.prepare(node.allocate(ONE_G(3))), Prepared)


def test_eight_claims_at_once_get_a_partition_each(node):
    claims = [node.allocate(f"gpu-{gpu}-mig-1g10gb-19-{start}") for gpu in (0, 1) for start in range(4)]
    answers = {}
    threads = [
        threading.Thread(target=lambda claim=claim: answers.update({claim.uid: node.prepare(claim)}))
        for claim in claims
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(answer, Prepared) for answer in answers.values())
    assert len(answers) == len(node.instances()) == 8


def test_two_calls_for_one_device_have_one_winner(node):
    claims = [node.allocate(ONE_G(0)) for _ in range(6)]
    answers = []
    threads = [threading.Thread(target=lambda claim=claim: answers.append(node.prepare(claim))) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(answer, Prepared) for answer in answers) == 1
    assert node.instances() == [(0, 19, 0)]


# --- failures leave nothing --------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo_v2",
    ],
)
def test_a_failing_gpu_leaves_no_half_made_partition(node, call):
    claim = node.allocate(ONE_G(0), ONE_G(1))
    node.simulate("fail", call, "--error", "UNKNOWN", "--times", "1", "--after", "0")
    message = refused(node, claim)
    assert ONE_G(0) in message
    assert node.is_clean()
    assert isinstance(node.prepare(claim), Prepared)


def test_a_second_device_that_fails_takes_the_first_one_back(node):
    claim = node.allocate(ONE_G(0), ONE_G(1))
    node.simulate(
        "fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--error", "UNKNOWN", "--times", "1", "--after", "1"
    )
    refused(node, claim)
    assert node.is_clean()


def test_missing_driver_files_leave_nothing(node):
    for library in (node.root / "usr/lib/x86_64-linux-gnu").glob("libcuda.so.*"):
        library.unlink()
    assert "libcuda.so" in refused(node, node.allocate(ONE_G(0)))
    assert node.is_clean()


def test_a_cdi_folder_that_cannot_be_written_leaves_nothing(node):
    node.cdi.write_text("a file where the folder should be")
    assert "--cdi-root" in refused(node, node.allocate(ONE_G(0)))
    assert node.instances() == []


def test_a_partition_in_use_stays_recorded_until_it_can_go(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    node.simulate("process", "add", "4242", "--uuid", node.records.get(claim.uid).made[ONE_G(0)].uuid)
    answer = node.unprepare(claim)
    assert isinstance(answer, Failed)
    assert f"ns/{claim.name}" in answer.message
    assert len(node.records.all()) == 1
    node.simulate("process", "remove", "4242")
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_an_attempt_that_was_killed_half_way_is_finished(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    record = node.records.get(claim.uid)
    (made,) = record.made.values()
    gpu = record.plan.devices[0].gpu_uuid
    node.nvml.destroy_compute_instance(
        gpu, gpu_instance_id=made.gpu_instance_id, compute_instance_id=made.compute_instance_id
    )
    node.records.write(type(record)(boot_id=record.boot_id, state=State.PREPARING, plan=record.plan))
    node.containers.specs.remove(claim.uid)
    node.restart()
    assert isinstance(node.prepare(claim), Prepared)
    assert node.instances() == [(0, 19, 0)]


def test_an_attempt_that_was_killed_half_way_is_undone(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    record = node.records.get(claim.uid)
    node.records.write(type(record)(boot_id=record.boot_id, state=State.PREPARING, plan=record.plan))
    node.restart()
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_call_past_its_deadline_is_refused_as_busy(node):
    claim = node.allocate("gpu-0")
    with node.preparer._locks.hold([claim_lock(claim.uid)], time.monotonic() + 60):
        answer = node.prepare(claim, seconds=0.05)
    assert "busy with another call" in answer.message
    assert isinstance(node.prepare(claim), Prepared)


class KilledError(BaseException):
    """The process ends here."""


@pytest.fixture
def kill_at():
    """End the process at a boundary: whatever is left to do is not done."""

    def at(wanted):
        def hook(boundary):
            if boundary is wanted:
                boundaries.watch(None)
                raise KilledError(boundary)

        boundaries.watch(hook)

    yield at
    boundaries.watch(None)


MAKING = [
    Boundary.RECORD_TEMPORARY_WRITTEN,
    Boundary.PREPARING_RECORDED,
    Boundary.MODE_SWITCHED_ON,
    Boundary.GPU_INSTANCE_CREATED,
    Boundary.COMPUTE_INSTANCE_CREATED,
    Boundary.SPEC_WRITTEN,
    Boundary.PREPARED_RECORDED,
]
UNDOING = [
    Boundary.UNPREPARING_RECORDED,
    Boundary.COMPUTE_INSTANCE_DESTROYED,
    Boundary.GPU_INSTANCE_DESTROYED,
    Boundary.MODE_SWITCHED_OFF,
    Boundary.SPEC_REMOVED,
    Boundary.RECORD_REMOVED,
]


@pytest.mark.parametrize("boundary", MAKING)
@pytest.mark.parametrize("then", ["again", "undone"])
def test_a_prepare_killed_at_any_boundary_is_finished_or_undone(node, kill_at, boundary, then):
    claim = node.allocate(ONE_G(0))
    kill_at(boundary)
    with pytest.raises(KilledError):
        node.prepare(claim)
    node.restart()
    if then == "again":
        assert isinstance(node.prepare(claim), Prepared)
        assert node.instances() == [(0, 19, 0)]
    assert node.unprepare(claim) is None
    assert node.is_clean()


@pytest.mark.parametrize("boundary", UNDOING)
@pytest.mark.parametrize("then", ["again", "prepared"])
def test_an_unprepare_killed_at_any_boundary_is_finished(node, kill_at, boundary, then):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    kill_at(boundary)
    with pytest.raises(KilledError):
        node.unprepare(claim)
    node.restart()
    if then == "prepared":
        assert isinstance(node.prepare(claim), Prepared)
        assert node.instances() == [(0, 19, 0)]
    assert node.unprepare(claim) is None
    assert node.is_clean()


REPAIRING = [
    Boundary.RECORD_TEMPORARY_WRITTEN,
    Boundary.PREPARING_RECORDED,
    Boundary.GPU_INSTANCE_CREATED,
    Boundary.COMPUTE_INSTANCE_CREATED,
    Boundary.SPEC_WRITTEN,
]


@pytest.mark.parametrize("boundary", REPAIRING)
def test_a_repair_killed_at_any_boundary_leaks_nothing(node, kill_at, boundary):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    kill_at(boundary)
    with pytest.raises(KilledError):
        node.prepare(claim)
    node.restart()
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_repair_that_fails_leaks_nothing(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    for library in (node.root / "usr/lib/x86_64-linux-gnu").glob("libcuda.so.*"):
        library.unlink()
    node.restart()
    refused(node, claim)
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_repair_stops_at_somebody_elses_instance(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    node.simulate("instance", "create", "3g.40gb", "--gpu", "0", "--start", "0")
    assert "which this driver did not make" in refused(node, claim)
    assert node.unprepare(claim) is None
    assert node.instances() == [(0, 9, 0)]


def test_an_instance_that_is_not_ours_any_more_is_not_destroyed(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    node.simulate("instance", "create", "1g.10gb", "--gpu", "0", "--start", "0")
    assert node.unprepare(claim) is None
    assert node.instances() == [(0, 19, 0)]


def test_a_record_of_an_earlier_boot_holds_nothing(node):
    node.prepare(node.allocate("gpu-0"))
    node.simulate("reboot")
    node.restart()
    assert isinstance(node.prepare(node.allocate(ONE_G(0))), Prepared)


def test_a_spec_that_names_a_missing_file_is_written_again(node):
    claim = node.allocate("gpu-0")
    node.prepare(claim)
    node.simulate("driver-reload", "--version", "590.10.01")
    node.restart()
    assert isinstance(node.prepare(claim), Prepared)
    text = json.dumps(spec(node, claim))
    assert "libcuda.so.590.10.01" in text
    assert "580.105.08" not in text


def test_a_damaged_spec_is_written_again(node):
    claim = node.allocate("gpu-0")
    node.prepare(claim)
    before = spec(node, claim)
    (node.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json").write_text("{")
    node.prepare(claim)
    assert spec(node, claim) == before


def test_a_path_that_vanished_is_not_named_to_containers(node):
    node.prepare(node.allocate("gpu-1"))
    (gone,) = (node.root / "usr/lib/x86_64-linux-gnu").glob("libnvidia-ptxjitcompiler.so.5*")
    gone.unlink()
    claim = node.allocate("gpu-0")
    # No time to try again within the call.
    assert "is gone from the host" in (answer := node.prepare(claim, seconds=0.5)).message, answer
    # It was noticed that files changed, and what is there now is found anew.
    assert isinstance(node.prepare(claim), Prepared)
    assert gone.name not in json.dumps(spec(node, claim))


def test_files_that_are_being_replaced_are_looked_for_again_within_the_call(node):
    node.prepare(node.allocate("gpu-1"))
    next((node.root / "usr/lib/x86_64-linux-gnu").glob("libnvidia-ptxjitcompiler.so.5*")).unlink()
    assert isinstance(node.prepare(node.allocate("gpu-0")), Prepared)


def test_admin_access_to_a_whole_gpu_leaves_its_mig_mode_alone(node):
    node.prepare(node.allocate(ONE_G(0)))
    gpu = node.node.offer.devices["gpu-0"].gpu.uuid
    assert isinstance(node.prepare(node.allocate("gpu-0", adminAccess=True)), Prepared)
    assert node.nvml.mig_mode(gpu).current


def test_a_pod_on_a_lost_gpu_can_end_and_its_device_stays_held(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    node.simulate("lose", "--gpu", "0")
    assert node.unprepare(claim) is None
    assert (node.specs(), len(node.records.all())) == ([], 1)
    node.simulate("recover", "--gpu", "0")
    node.restart()
    assert "is still held by" in refused(node, node.allocate(ONE_G(0)))
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_wrong_driver_root_is_told_at_once(node):
    for library in (node.root / "usr/lib/x86_64-linux-gnu").glob("libcuda.so.*"):
        library.unlink()
    started = node.reads
    assert "check that --nvidia-driver-root" in refused(node, node.allocate("gpu-0"))
    assert node.reads == started + 1


def test_an_unprepare_that_was_given_up_does_not_undo_what_came_after(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    node.simulate("process", "add", "4242", "--uuid", node.records.get(claim.uid).made[ONE_G(0)].uuid)
    second = threading.Event()
    answers = []

    def pause(_seconds):
        """Between two tries of the first call the process ends, and the kubelet undoes and prepares the claim anew."""
        if not second.is_set() and not node.preparer._locks._entries:  # not in the middle of a try
            second.set()
            node.simulate("process", "remove", "4242")
            assert node.unprepare(claim) is None
            answers.append(node.prepare(claim))

    node.preparer._patience = lambda deadline: Patience(deadline, sleep=pause)
    assert node.unprepare(claim, seconds=30.0) is None
    assert isinstance(answers[0], Prepared)
    assert (node.instances(), node.specs()) == ([(0, 19, 0)], [claim.uid])


def test_a_whole_gpu_is_not_given_out_while_somebody_computes_on_it(node):
    node.simulate("process", "add", "4242", "--gpu", "1")
    assert "processes compute on it, although no pod holds it; processes on the GPU: 4242" in refused(
        node, node.allocate("gpu-1")
    )
    assert isinstance(node.prepare(node.allocate("gpu-1", adminAccess=True)), Prepared)
    node.simulate("process", "remove", "4242", "--gpu", "1")
    assert isinstance(node.prepare(node.allocate("gpu-1")), Prepared)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_claim_that_another_driver_had_prepared_may_compute_already(node, suffix):
    claim = node.allocate("gpu-1")
    node.cdi.mkdir(exist_ok=True)
    theirs = node.containers.specs.path(claim.uid).with_suffix(suffix)
    theirs.write_text('{"cdiVersion": "0.6.0", "kind": "k8s.gpu.nvidia.com/claim", "devices": []}')
    node.simulate("process", "add", "4242", "--gpu", "1")
    assert isinstance(node.prepare(claim), Prepared)
    assert node.specs() == [claim.uid]
    assert theirs.exists() == (suffix == ".json")


def test_a_claim_that_hangs_does_not_keep_its_neighbours_from_being_answered(node, monkeypatch):
    stuck, good = node.allocate(ONE_G(0)), node.allocate("gpu-1")
    release = threading.Event()
    create = node.nvml.create_gpu_instance
    hang = lambda *args, **named: (release.wait(60), create(*args, **named))[1]  # noqa: E731
    monkeypatch.setattr(node.nvml, "create_gpu_instance", hang)
    try:
        answers = node.prepare(stuck, good)
        assert "does not answer in time" in answers[0].message
        assert isinstance(answers[1], Prepared)
    finally:
        release.set()
        node.preparer.close()


@pytest.mark.parametrize("device", ["gpu-0", ONE_G(0)])
def test_a_spec_follows_a_minor_that_moved(node, device):
    claim = node.allocate(device)
    node.prepare(claim)
    assert not node.preparer.check_spec(claim.uid)
    node.simulate("minor", "7", "--gpu", "0")
    assert node.preparer.check_spec(claim.uid)
    assert "/dev/nvidia7" in paths(spec(node, claim)["devices"][0])
    assert not node.preparer.check_spec(claim.uid)


def test_a_spec_that_somebody_removed_comes_back_by_itself(node):
    claim = node.allocate("gpu-0")
    node.prepare(claim)
    before = spec(node, claim)
    node.containers.specs.remove(claim.uid)
    assert node.preparer.check_spec(claim.uid)
    assert spec(node, claim) == before


def test_what_a_killed_process_had_begun_to_write_beside_a_good_spec_is_removed(node):
    claim = node.allocate("gpu-0")
    node.prepare(claim)
    begun = node.containers.specs.path(claim.uid).with_suffix(".tmp")
    begun.write_text("{")
    assert not node.preparer.check_spec(claim.uid)
    assert not begun.exists()


@pytest.mark.parametrize("prepared", [True, False])
def test_a_pipe_in_place_of_a_spec_holds_nobody_up(node, prepared):
    claim = node.allocate("gpu-0")
    path = node.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json"
    if prepared:
        node.prepare(claim)
        path.unlink()
    node.cdi.mkdir(exist_ok=True)
    os.mkfifo(path)
    assert isinstance(node.prepare(claim), Prepared)
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_one_device_twice_in_a_claim_is_refused(node):
    assert "is allocated twice" in refused(node, node.allocate("gpu-0", "gpu-0"))


class OneAtATime:
    """Hardware that fails a test when two calls change one GPU at the same time."""

    def __init__(self, hardware):
        self._hardware = hardware
        self._busy = set()
        self._guard = threading.Lock()
        self.collisions = []

    def __getattr__(self, name):
        call = getattr(self._hardware, name)
        if not name.startswith(("create", "destroy", "set")):
            return call

        def guarded(gpu_uuid, **arguments):
            with self._guard:
                if gpu_uuid in self._busy:
                    self.collisions.append(name)
                self._busy.add(gpu_uuid)
            try:
                time.sleep(0.002)
                return call(gpu_uuid, **arguments)
            finally:
                with self._guard:
                    self._busy.discard(gpu_uuid)

        return guarded


def test_changes_of_one_gpu_are_made_one_after_another(node):
    node.node.hardware = hardware = OneAtATime(node.nvml)
    moved = node.allocate(ONE_G(0))
    node.prepare(moved)
    node.claims["ns", moved.name]["status"]["allocation"] = allocation("gpu-1-mig-1g10gb-19-0")
    claims = [node.allocate(ONE_G(start)) for start in range(1, 6)]
    threads = [threading.Thread(target=node.prepare, args=(claim,)) for claim in (moved, *claims)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hardware.collisions == []
    assert len(node.instances()) == 6
    threads = [threading.Thread(target=node.unprepare, args=(claim,)) for claim in (moved, *claims)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hardware.collisions == []
    assert node.is_clean()


def test_a_record_is_on_disk_before_the_first_change(node, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda descriptor, real=os.fsync: (synced.append(descriptor), real(descriptor)))
    seen = []
    create = node.nvml.create_gpu_instance
    monkeypatch.setattr(
        node.nvml, "create_gpu_instance", lambda *a, **k: (seen.append(len(synced)), create(*a, **k))[1]
    )
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    assert seen == [2]  # the record, and the folder it lies in
    assert len(synced) == 4


def test_prepared_devices_are_counted(node):
    claims = node.allocate("gpu-1"), node.allocate(ONE_G(0)), node.allocate(ONE_G(1))
    node.prepare(*claims)
    count = node.metrics.registry.get_sample_value
    labels = {"node": "node-a", "driver": "gpu.nvidia.com"}
    assert count("nvidia_dra_prepared_devices", {**labels, "device_type": "gpu"}) == 1
    assert count("nvidia_dra_prepared_devices", {**labels, "device_type": "mig"}) == 2
    assert count("dradriver_mig_operations_total", {"operation": "create", "result": "ok"}) == 2
