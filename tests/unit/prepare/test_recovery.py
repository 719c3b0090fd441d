"""Records that are lost, and made again from CDI specs."""

import json

import pytest

from dradriver.kubelet import Failed, Prepared
from dradriver.nvml import DriverNotLoaded
from dradriver.prepare.recovery import UnrecoverableError, recover

ONE_G = "gpu-0-mig-1g10gb-19-{}".format
THREE_G = "gpu-0-mig-3g40gb-9-{}".format
SHARE = "0e6cbb4a-41ab-44e4-a2ad-0b3a4d2f5a11"


def lose_record(node, claim):
    """Remove a claim's record as a failing disk would, and begin anew."""
    (node.folder / "claims" / f"{claim.uid}.json").unlink()
    node.restart()


def damage_record(node, claim):
    (node.folder / "claims" / f"{claim.uid}.json").write_text('{"version": 1, "devi')
    node.restart()


def recovered(node, claim):
    path = node.containers.specs.path(claim.uid)
    return recover(path, uid=claim.uid, boot_id="boot", node=node.node)


def change_spec(node, claim, change):
    path = node.containers.specs.path(claim.uid)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("devices", [["gpu-1"], [ONE_G(3)], [THREE_G(4), "gpu-1"]])
def test_a_spec_tells_what_was_made(node, devices):
    claim = node.allocate(*devices)
    node.prepare(claim)
    written = node.records.get(claim.uid)
    again = recovered(node, claim)
    assert again.made == written.made
    assert again.state == written.state
    assert again.spec_path == written.spec_path
    for mine, known in zip(again.plan.devices, written.plan.devices, strict=True):
        assert (mine.requests, mine.gpu_uuid, mine.placement, mine.make, mine.profile_id) == (
            (),
            known.gpu_uuid,
            known.placement,
            known.make,
            known.profile_id,
        )


def test_a_spec_tells_of_shares_and_admins(node):
    admin, share = node.allocate("gpu-1", adminAccess=True), node.allocate("gpu-0", shareID=SHARE)
    assert all(isinstance(answer, Prepared) for answer in node.prepare(admin, share))
    assert [device.admin_access for device in recovered(node, admin).plan.devices] == [True]
    (device,) = recovered(node, share).plan.devices
    assert (device.device, device.share_id) == ("gpu-0", SHARE)


def test_an_admins_access_owns_no_partition(node):
    owner = node.allocate(ONE_G(0))
    node.prepare(owner)
    admin = node.allocate(ONE_G(0), adminAccess=True)
    assert isinstance(node.prepare(admin), Prepared)
    lose_record(node, admin)
    assert node.unprepare(admin) is None
    assert node.instances() == [(0, 19, 0)]
    assert node.specs() == [owner.uid]


@pytest.mark.parametrize("lose", [lose_record, damage_record])
def test_an_unprepare_undoes_what_a_lost_record_told(node, lose):
    claim = node.allocate(ONE_G(0), ONE_G(1))
    node.prepare(claim)
    lose(node, claim)
    assert node.records.get(claim.uid) is None
    assert node.unprepare(claim) is None
    assert node.is_clean()


@pytest.mark.parametrize("lose", [lose_record, damage_record])
def test_a_prepare_answers_as_before_and_knows_the_requests_again(node, lose):
    claim = node.allocate(("first", ONE_G(0)), ("second", "gpu-1"))
    before = node.prepare(claim)
    instances = node.instances()
    lose(node, claim)
    assert node.prepare(claim) == before
    assert node.instances() == instances
    record = node.records.get(claim.uid)
    assert [device.requests for device in record.plan.devices] == [("first",), ("second",)]
    assert record.plan.name == claim.name


def test_what_a_recovered_claim_holds_nobody_else_gets(node):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    lose_record(node, claim)
    assert node.preparer.recover(claim.uid)
    assert "still held by" in node.prepare(node.allocate("gpu-0"), seconds=0.5).message


def test_the_hold_survives_the_next_restart(node):
    claim = node.allocate("gpu-1")
    node.prepare(claim)
    lose_record(node, claim)
    assert node.preparer.recover(claim.uid)
    node.restart()
    assert node.records.get(claim.uid) is not None


def test_a_partition_that_is_gone_is_not_mistaken_for_its_successor(node):
    """Somebody has made another instance at the place meanwhile: it has another UUID."""
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    (device,) = node.records.get(claim.uid).plan.devices
    (instance,) = node.nvml.instances(device.gpu_uuid)
    node.nvml.destroy_compute_instance(
        device.gpu_uuid,
        gpu_instance_id=instance.gpu_instance_id,
        compute_instance_id=instance.compute_instance_id,
    )
    node.nvml.destroy_gpu_instance(device.gpu_uuid, gpu_instance_id=instance.gpu_instance_id)
    theirs = node.nvml.create_gpu_instance(device.gpu_uuid, profile_id=19, placement=device.placement)
    node.nvml.create_compute_instance(device.gpu_uuid, gpu_instance_id=theirs.gpu_instance_id)
    lose_record(node, claim)
    assert node.unprepare(claim) is None
    assert node.instances() == [(0, 19, 0)]


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("devices"),
        lambda document: document["devices"][0].pop("name"),
        lambda document: document["devices"][0]["containerEdits"].pop("env"),
        lambda document: document["devices"][0].update(name="gpu-77"),
        lambda document: document["devices"][0]["containerEdits"].update(env=["no equals sign"]),
        lambda document: document["devices"][0]["containerEdits"].update(env=[7]),
        lambda document: document.update(devices=7),
        lambda document: document["devices"].insert(0, "text"),
    ],
)
def test_a_spec_that_does_not_tell_says_so(node, change):
    claim = node.allocate("gpu-1")
    node.prepare(claim)
    change_spec(node, claim, change)
    with pytest.raises(UnrecoverableError, match=r"CDI spec .*\.json does not tell what was made: "):
        recovered(node, claim)


def test_a_file_that_is_no_json_says_so(node):
    claim = node.allocate("gpu-1")
    node.prepare(claim)
    node.containers.specs.path(claim.uid).write_bytes(b"\xff{")
    with pytest.raises(UnrecoverableError):
        recovered(node, claim)


def test_an_unprepare_without_record_and_with_a_worthless_spec_succeeds(node):
    claim = node.allocate("gpu-1")
    node.prepare(claim)
    change_spec(node, claim, lambda document: document.pop("devices"))
    lose_record(node, claim)
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_driver_that_does_not_answer_is_no_reason_to_give_a_spec_up(node, monkeypatch):
    """Removing it would take the device from a running pod, and leave its partition behind."""
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    lose_record(node, claim)

    def gone(_):
        raise DriverNotLoaded("nvmlInitWithFlags", 9)

    with monkeypatch.context() as patch:
        patch.setattr(node.nvml, "instances", gone)
        answer = node.unprepare(claim)
    assert isinstance(answer, Failed)
    assert "kernel module is not loaded" in answer.message
    assert node.specs() == [claim.uid]
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_record_is_recovered_only_if_the_gpus_are_known(node):
    claim = node.allocate("gpu-1")
    node.prepare(claim)
    lose_record(node, claim)
    known, node.node = node.node, None
    assert "not known yet" in node.unprepare(claim).message
    assert node.specs() == [claim.uid]
    node.node = known
    assert node.unprepare(claim) is None
    assert node.is_clean()
