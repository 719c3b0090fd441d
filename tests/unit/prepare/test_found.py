"""Faults that the stateful test found, each in its smallest form."""

import errno
import json
import os

import pytest
from doubles.preparing import allocation

from dradriver import files
from dradriver.kubelet import Failed, Prepared
from dradriver.prepare.errors import RecordError
from dradriver.prepare.records import Records

ONE_G = "gpu-0-mig-1g10gb-19-{}".format


def fail_once(monkeypatch, name, *, matching, late=False):
    """Let one os function fail for one call whose path contains this."""
    original = getattr(os, name)
    armed = [True]

    def failing(path, *args, **kwargs):
        if not (armed and matching in str(path)):
            return original(path, *args, **kwargs)
        armed.clear()
        if late:
            original(path, *args, **kwargs)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(os, name, failing)


def leftovers(node):
    return sorted(path.name for path in (node.folder / "claims").iterdir() if path.is_file())


def share(number):
    return f"00000000-0000-0000-0000-00000000000{number}"


# --- files -------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_nothing_unfinished(tmp_path, monkeypatch):
    fail_once(monkeypatch, "replace", matching="record")
    with pytest.raises(OSError, match="Input/output"):
        files.write_durably(tmp_path / "record", "x")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_had_begun_is_removed_at_the_next_start_unless_it_is_new(node):
    folder = node.folder / "claims"
    old, new = folder / ".old.json.tmp", folder / ".new.json.tmp"
    for path in (old, new):
        path.write_text("{")
    os.utime(old, (0, 0))
    node.restart()
    assert leftovers(node) == [new.name]


def test_a_record_that_is_written_although_the_write_failed_holds_nothing(node, monkeypatch):
    claim, other = node.allocate(ONE_G(0)), node.allocate(ONE_G(0))
    fail_once(monkeypatch, "replace", matching=claim.uid, late=True)
    assert isinstance(node.prepare(claim), Failed)
    assert leftovers(node) == []
    assert isinstance(node.prepare(other), Prepared)
    node.restart()
    assert node.unprepare(claim) is None
    assert node.instances() == [(0, 19, 0)]


def test_an_unprepare_that_failed_after_its_record_was_written_is_not_forgotten(node, monkeypatch):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    with monkeypatch.context() as patch:
        fail_once(patch, "replace", matching=claim.uid, late=True)
        assert isinstance(node.unprepare(claim), Failed)
    assert isinstance(node.prepare(claim), Prepared)
    made = node.records.get(claim.uid).made
    node.restart()
    node.prepare(claim)
    assert node.records.get(claim.uid).made == made


def test_a_reservation_that_is_known_in_memory_only_is_written_before_anything_is_made(node, monkeypatch):
    claim = node.allocate(ONE_G(0))
    write, forget = node.records.write, node.records.forget

    def refuse(*_):
        raise RecordError("disk full")

    monkeypatch.setattr(node.records, "write", refuse)
    monkeypatch.setattr(node.records, "forget", refuse)
    assert isinstance(node.prepare(claim), Failed)
    assert isinstance(node.prepare(claim), Failed)
    assert node.instances() == []
    monkeypatch.setattr(node.records, "write", write)
    monkeypatch.setattr(node.records, "forget", forget)
    assert isinstance(node.prepare(claim), Prepared)
    assert leftovers(node) == [f"{claim.uid}.json"]


def test_a_folder_of_specs_that_cannot_be_read_is_named(node, monkeypatch):
    claim = node.allocate(ONE_G(0))
    node.cdi.mkdir()
    fail_once(monkeypatch, "stat", matching=f"claim_{claim.uid}.json")
    answer = node.prepare(claim)
    assert "--cdi-root" in answer.message
    assert "internal error" not in answer.message


def test_nobody_goes_on_without_a_record_that_cannot_be_read_now(node, monkeypatch):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    folder = node.folder / "claims"
    shared = Records(folder, shared=True)
    shared.load()
    path = folder / f"{claim.uid}.json"
    path.write_text(path.read_text() + " ")
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "EIO")))
    with pytest.raises(RecordError):
        shared.refresh()
    # A start must come to an end: what stays unreadable is set aside, and made again from the spec.
    starting = Records(folder)
    starting.load()
    assert set(starting.quarantined) == {claim.uid}


# --- recovery ----------------------------------------------------------------------------------


def lose_record(node, claim):
    (node.folder / "claims" / f"{claim.uid}.json").unlink()


def test_a_spec_is_no_orphan_while_its_gpu_cannot_be_read(make_node):
    node = make_node(machine="2xh100-80gb")
    claim = node.allocate("gpu-1-mig-1g10gb-19-0")
    node.prepare(claim)
    lose_record(node, claim)
    node.simulate("lose", "--gpu", "1")
    node.restart()
    answer = node.unprepare(claim)
    assert "its GPU is not there now" in answer.message
    assert node.specs() == [claim.uid]
    node.simulate("recover")
    node.restart()
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_spec_that_cannot_be_read_now_is_no_orphan(node, monkeypatch):
    claim = node.allocate(ONE_G(0))
    node.prepare(claim)
    lose_record(node, claim)
    node.restart()
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_text", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "EIO")))
        assert "cannot read the CDI spec" in node.unprepare(claim).message
    assert node.unprepare(claim) is None
    assert node.is_clean()


def test_a_spec_that_is_nested_without_end_does_not_count(node):
    claim = node.allocate(ONE_G(0))
    node.cdi.mkdir()
    node.containers.specs.path(claim.uid).write_text("[" * 100_000)
    assert isinstance(node.prepare(claim), Prepared)


# --- repair and shares -------------------------------------------------------------------------


def test_a_repair_that_failed_half_way_is_finished_by_the_next_one(node):
    claim = node.allocate(ONE_G(0))
    first = node.prepare(claim)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    node.simulate("fail", "nvmlGpuInstanceCreateComputeInstance", "--error", "UNKNOWN", "--times", "1")
    assert isinstance(node.prepare(claim), Failed)
    assert node.prepare(claim) == first
    node.unprepare(claim)
    assert node.is_clean()


def test_an_admin_does_not_keep_a_shared_partition(node):
    owner, admin = node.allocate(ONE_G(0), shareID=share(1)), node.allocate(ONE_G(0), adminAccess=True)
    assert all(isinstance(answer, Prepared) for answer in (node.prepare(owner), node.prepare(admin)))
    assert node.unprepare(owner) is None
    assert node.instances() == []


@pytest.mark.parametrize("last", [0, 1])
def test_a_shared_partition_that_was_lost_and_made_again_goes_with_the_last_share(node, last):
    claims = [node.allocate(ONE_G(0), shareID=share(number)) for number in (1, 2)]
    for claim in claims:
        node.prepare(claim)
    node.simulate("instance", "destroy", "--gpu", "0", "--all")
    node.prepare(claims[0])
    node.unprepare(claims[1 - last])
    assert node.instances() == [(0, 19, 0)]
    node.unprepare(claims[last])
    assert node.is_clean()


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
def test_a_claim_that_is_an_admins_no_more_holds_its_device(node, device):
    claim, other = node.allocate(device, adminAccess=True), node.allocate(device)
    node.prepare(claim)
    node.claims["ns", claim.name]["status"]["allocation"] = allocation(device)
    assert isinstance(node.prepare(claim), Prepared)
    spec = json.loads(node.containers.specs.path(claim.uid).read_text())
    assert "ADMIN" not in json.dumps(spec)
    assert "is still held by" in node.prepare(other).message
