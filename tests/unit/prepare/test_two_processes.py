"""Two processes of a rolling update on one node folder: what one does the other knows, and nothing is held twice."""

import threading
from dataclasses import replace

import pytest

from dradriver.gpu.model import Placement
from dradriver.prepare import records as module
from dradriver.prepare.errors import HeldError
from dradriver.prepare.plan import Plan, PlannedDevice
from dradriver.prepare.records import Record, Records, State

PATIENT = 30.0


def record(uid, *, start=0, state=State.PREPARED, gpu="GPU-0"):
    device = PlannedDevice(
        requests=("r0",),
        pool="node-a",
        device=f"{gpu}-at-{start}",
        gpu_uuid=gpu,
        profile_id=19,
        profile_name="1g.10gb",
        placement=Placement(start=start, size=1),
        make=True,
    )
    plan = Plan(namespace="ns", name=uid, uid=uid, devices=(device,))
    return Record(boot_id="boot", state=state, plan=plan)


# --- records that two processes write ------------------------------------------------------------


@pytest.fixture
def both(tmp_path):
    """The records of two processes: the old one's and the new one's."""
    made = [Records(tmp_path / "claims", shared=True) for _ in range(2)]
    for records in made:
        records.load()
    return made


def test_what_one_wrote_the_other_sees_after_a_look(both):
    old, new = both
    old.write(record("a"))
    assert new.get("a") is None
    new.refresh()
    assert new.get("a") == record("a")
    old.forget("a")
    new.refresh()
    assert new.all() == ()


def test_a_change_of_state_is_seen(both):
    old, new = both
    old.write(record("a", state=State.PREPARING))
    new.refresh()
    old.write(record("a", state=State.UNPREPARING))
    new.refresh()
    assert new.get("a").state is State.UNPREPARING


def test_what_one_holds_the_other_cannot_reserve(both):
    old, new = both
    old.write(record("a"))
    new.refresh()
    with pytest.raises(HeldError) as caught:
        new.reserve(record("b"))
    assert caught.value.holder == "a"


def test_a_reservation_is_not_taken_for_a_removed_record(both):
    _, new = both
    new.reserve(record("a", state=State.PREPARING))
    new.refresh()
    assert new.get("a") is not None


def test_a_file_that_goes_while_the_folder_is_read_is_no_error(both, monkeypatch):
    old, new = both
    old.write(record("a"))
    scan = Records._scan

    def slow_scan(self):
        found = scan(self)
        if self is new:
            old.forget("a")
        return found

    monkeypatch.setattr(Records, "_scan", slow_scan)
    new.refresh()
    assert new.all() == ()


def test_a_record_that_is_removed_while_it_is_read_does_not_come_back(both, monkeypatch):
    """A ghost would hold the device for ever, since no file of it is there to go."""
    old, new = both
    old.write(record("a"))
    decode = module.decode

    def slow_decode(text):
        decoded = decode(text)
        old.forget("a")
        return decoded

    monkeypatch.setattr(module, "decode", slow_decode)
    new.refresh()
    new.refresh()
    assert new.all() == ()


def test_what_this_process_writes_while_it_reads_stays(both, monkeypatch):
    _, new = both
    newer = record("a", state=State.PREPARED)
    new.write(replace(newer, state=State.PREPARING))
    new._versions.clear()  # As if it had just been written, and not been noted yet.
    decode = module.decode

    def slow_decode(text):
        decoded = decode(text)
        monkeypatch.setattr(module, "decode", decode)
        new.write(newer)
        return decoded

    monkeypatch.setattr(module, "decode", slow_decode)
    new.refresh()
    assert new.get("a") == newer


def test_what_this_process_writes_while_the_folder_is_scanned_is_not_dropped(both, monkeypatch):
    _, new = both
    scan = Records._scan

    def slow_scan(self):
        found = scan(self)
        monkeypatch.setattr(Records, "_scan", scan)
        new.write(record("a"))
        return found

    monkeypatch.setattr(Records, "_scan", slow_scan)
    new.refresh()
    assert new.get("a") == record("a")


def test_a_thread_that_finds_nothing_new_waits_for_the_one_that_reads(both, monkeypatch):
    """Else it would go on without the other process's record, and hold its device a second time."""
    old, new = both
    old.write(record("a"))
    decode = module.decode
    reading, go_on = threading.Event(), threading.Event()
    seen = []

    def slow_decode(text):
        reading.set()
        assert go_on.wait(PATIENT)
        return decode(text)

    def second():
        new.refresh()
        seen.append(new.get("a"))

    monkeypatch.setattr(module, "decode", slow_decode)
    first = threading.Thread(target=new.refresh)
    first.start()
    assert reading.wait(PATIENT)
    other = threading.Thread(target=second)
    other.start()
    go_on.set()
    first.join(PATIENT)
    other.join(PATIENT)
    assert seen == [record("a")]


def test_both_find_the_same_file_damaged(both):
    old, new = both
    old.write(record("a"))
    old._path("a").write_text("{")
    old.refresh()
    # The new one has looked before the old one moved the file.
    new._set_aside("a", new._path("a"), ValueError("damaged"))
    assert old.quarantined.keys() == new.quarantined.keys() == {"a"}
    assert new.quarantined["a"].exists()
