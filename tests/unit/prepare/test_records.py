import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.model import Placement
from dradriver.prepare.errors import HeldError, RecordError
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Made, Record, Records, State


def partition(start=0, size=1, gpu="GPU-a", **fields):
    return PlannedDevice(
        **{
            "requests": ("r0",),
            "pool": "node-a",
            "device": f"gpu-0-mig-1g10gb-19-{start}",
            "gpu_uuid": gpu,
            "profile_id": 19,
            "profile_name": "1g.10gb",
            "placement": Placement(start=start, size=size),
            "make": True,
            **fields,
        }
    )


def record(*devices, uid="uid-1", state=State.PREPARING, **fields):
    plan = Plan(namespace="ns", name=f"claim-{uid}", uid=uid, devices=devices or (partition(),))
    return Record(boot_id="boot", state=state, plan=plan, **fields)


@pytest.fixture
def records(tmp_path):
    made = Records(tmp_path / "claims")
    made.load()
    return made


def reloaded(tmp_path):
    again = Records(tmp_path / "claims")
    again.load()
    return again


texts = st.text(min_size=1, max_size=12)
devices = st.builds(
    PlannedDevice,
    requests=st.lists(texts, min_size=1, max_size=2).map(tuple),
    pool=texts,
    device=texts,
    gpu_uuid=texts,
    profile_id=st.none() | st.integers(0, 99),
    profile_name=st.none() | texts,
    placement=st.none() | st.builds(Placement, start=st.integers(0, 7), size=st.integers(1, 8)),
    instance_uuid=st.none() | texts,
    make=st.booleans(),
    admin_access=st.booleans(),
    share_id=st.none() | texts,
).filter(
    lambda device: (
        (device.profile_id is None) == (device.placement is None) and not (device.make and device.placement is None)
    )
)
all_records = st.builds(
    Record,
    boot_id=texts,
    state=st.sampled_from(State),
    plan=st.builds(
        Plan,
        namespace=texts,
        name=texts,
        uid=st.just("uid-1"),
        devices=st.lists(devices, min_size=1, max_size=3).map(tuple),
    ),
    made=st.dictionaries(
        texts,
        st.builds(Made, gpu_instance_id=st.integers(0, 14), compute_instance_id=st.integers(0, 7), uuid=texts),
        max_size=2,
    ),
)


@given(all_records)
def test_every_record_survives_the_disk(tmp_path_factory, record):
    folder = tmp_path_factory.mktemp("records")
    written = Records(folder / "claims")
    written.load()
    written.write(record)
    assert reloaded(folder).all() == (record,)


def test_fields_of_a_newer_version_are_kept(records, tmp_path):
    records.write(record())
    path = tmp_path / "claims/uid-1.json"
    document = json.loads(path.read_text()) | {"version": 7, "future": {"a": [1]}}
    path.write_text(json.dumps(document))
    again = reloaded(tmp_path)
    again.write(again.get("uid-1"))
    assert json.loads(path.read_text())["future"] == {"a": [1]}


def test_a_record_of_version_1_is_read_for_ever(tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/uid-1.json").write_text(
        '{"version":1,"bootID":"boot","state":"prepared","claim":{"namespace":"ns","name":"claim-uid-1","uid":"uid-1"},'
        '"devices":[{"requests":["r0"],"pool":"node-a","device":"gpu-0-mig-1g10gb-19-0","gpuUUID":"GPU-a",'
        '"profileID":19,"profile":"1g.10gb","placement":{"start":0,"size":1},"make":true,"adminAccess":false}],'
        '"made":{"gpu-0-mig-1g10gb-19-0":{"gpuInstance":7,"computeInstance":0,"uuid":"MIG-1"}}}'
    )
    made = {"gpu-0-mig-1g10gb-19-0": Made(gpu_instance_id=7, compute_instance_id=0, uuid="MIG-1")}
    assert reloaded(tmp_path).all() == (record(state=State.PREPARED, made=made),)


@pytest.mark.parametrize("content", ["", "{", "null", "[]", '{"version": 1}', '{"claim": 3}', "\0" * 64])
def test_a_damaged_record_is_set_aside_and_the_others_live(records, tmp_path, content):
    records.write(record())
    (tmp_path / "claims/uid-2.json").write_text(content)
    assert [found.plan.uid for found in reloaded(tmp_path).all()] == ["uid-1"]
    assert (tmp_path / "claims/quarantine/uid-2.json").read_text() == content
    assert not (tmp_path / "claims/uid-2.json").exists()


def test_leftovers_of_a_write_that_was_killed_are_not_records(records, tmp_path):
    (tmp_path / "claims/.uid-2.json.tmp").write_text('{"half')
    assert reloaded(tmp_path).all() == ()


def test_forgetting_is_repeatable(records, tmp_path):
    records.write(record())
    records.forget("uid-1")
    records.forget("uid-1")
    assert records.all() == reloaded(tmp_path).all() == ()


def test_a_reservation_is_not_on_disk_and_can_be_given_up(records, tmp_path):
    records.reserve(record())
    assert reloaded(tmp_path).all() == ()
    records.release("uid-1")
    records.reserve(record(uid="uid-2"))


@pytest.mark.parametrize(
    ("held", "wanted", "conflict"),
    [
        (partition(0), partition(0), True),
        (partition(0, 4), partition(3), True),
        (partition(0), partition(1), False),
        (partition(0), partition(0, gpu="GPU-b"), False),
        (partition(0), partition(0, admin_access=True), False),
        (partition(0, placement=None, profile_id=None), partition(5), True),
    ],
)
def test_a_reservation_is_refused_where_a_part_is_held(records, held, wanted, conflict):
    records.write(record(held))
    if conflict:
        with pytest.raises(HeldError, match=r"still held by claim ns/claim-uid-1 \(UID uid-1\)"):
            records.reserve(record(wanted, uid="uid-2"))
        assert records.get("uid-2") is None
    else:
        records.reserve(record(wanted, uid="uid-2"))


def test_a_claim_does_not_stand_in_its_own_way(records):
    records.write(record())
    records.reserve(record())


def test_a_folder_that_somebody_removed_is_made_again_with_everything_in_it(records, tmp_path):
    records.write(record())
    shutil.rmtree(tmp_path / "claims")
    records.write(record(partition(3), uid="uid-2"))
    assert {found.plan.uid for found in reloaded(tmp_path).all()} == {"uid-1", "uid-2"}
    shutil.rmtree(tmp_path / "claims")
    records.forget("uid-1")
    assert [found.plan.uid for found in reloaded(tmp_path).all()] == ["uid-2"]


def test_a_place_that_cannot_be_written_is_told(records, tmp_path):
    shutil.rmtree(tmp_path / "claims")
    (tmp_path / "claims").write_text("a file where the folder should be")
    with pytest.raises(RecordError, match=r"cannot write .*uid-1.json: .*; check space"):
        records.write(record())


@pytest.mark.parametrize("odd", ["a.json", ".a.json.tmp", "quarantine"])
def test_what_is_no_file_is_no_record_and_in_nobodys_way(records, tmp_path, odd):
    records.write(record())
    (tmp_path / "claims/b.json").write_text("{")
    (tmp_path / "claims" / odd).symlink_to(odd)
    assert [found.plan.uid for found in reloaded(tmp_path).all()] == ["uid-1"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot read"):
        Records(tmp_path / "file/claims").load()
