"""What others write, bent: opaque configs, claim objects, records, CDI specs. An error of our own or success.

The default run is short and always the same. The long one takes about a minute:

    DRADRIVER_FUZZ_INPUTS=100000 pytest tests/unit/prepare/test_fuzz.py

`DRADRIVER_FUZZ_SEED` begins with another input. A failure tells the input; it belongs into the lists at the end.
"""

import copy
import itertools
import json
import os
import random

import pytest
from doubles.preparing import PreparingNode, allocation

from dradriver import api
from dradriver.api.config import InvalidConfigError
from dradriver.api.config import decode as decode_config
from dradriver.kubelet import Failed, Prepared
from dradriver.nvml import NvmlError
from dradriver.prepare import records
from dradriver.prepare.claim import read_claim
from dradriver.prepare.errors import PrepareError
from dradriver.prepare.plan import make_plan
from dradriver.prepare.records import Record, Records, State
from dradriver.prepare.recovery import UnrecoverableError, recover

INPUTS = int(os.environ.get("DRADRIVER_FUZZ_INPUTS", "8000"))
FIRST_SEED = int(os.environ.get("DRADRIVER_FUZZ_SEED", "0"))
UID = "0e6cbb4a-41ab-44e4-a2ad-0b3a4d2f5a11"
SHARE = "7d0c7a52-0c5c-4d8e-9f60-0a6f6a1f7c11"
VERSION = "resource.nvidia.com/v1beta1"
ONE_G = "gpu-0-mig-1g10gb-19-{}".format


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"a": [value]}
    return value


ODD = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", " ", "x", "x" * 5000, "\x00", "\ud800", "../../etc/passwd", "gpu-0", ONE_G(0), ONE_G(1), "gpu-99", "r0", "r/s",
    "%s{}", "\n", "é", "GpuConfig", "MigDeviceConfig", "TimeSlicing", "MPS", UID, SHARE, "prepared",
    [], {}, [None], [[]], [{}], {"": None}, ["r0"], [0], {"driver": api.DRIVER_NAME}, deep(5), deep(60),
]  # fmt: skip


def places(value, found=()):
    """List every (container, key) of a document."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [*found, *((value, key) for key in keys), *(p for key in keys for p in places(value[key]))]


def bent(document, chance):
    """Change a few things in a document: replace, remove, add, double, exchange."""
    document = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        spots = places(document)
        if not spots:
            return chance.choice(ODD)
        container, key = chance.choice(spots)
        what = chance.randrange(10)
        if what < 5:
            container[key] = copy.deepcopy(chance.choice(ODD))
        elif what < 7:
            del container[key]
        elif what == 7 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif what == 7:
            container[chance.choice(("unknown", "", "kind", "placement"))] = copy.deepcopy(chance.choice(ODD))
        else:
            other, at = chance.choice(spots)
            container[key] = copy.deepcopy(other[at]) if at in other or isinstance(at, int) else None
    return document


INSERTED = (b"\x00", b"\xff\xfe", b"[" * 2000, b"9" * 5000, b"}", b'"', b"\xed\xa0\x80", b"1e999")


def torn(text, chance):
    """Damage bytes: cut, flip, repeat, insert."""
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(5)
        if what == 0:
            del data[at:]
        elif what == 1 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif what == 2:
            data[at:at] = data[: chance.randrange(60)]
        elif what == 3:
            data[at:at] = chance.choice(INSERTED)
        else:
            del data[at : at + chance.randrange(20)]
    return bytes(data)


# --- what is bent ------------------------------------------------------------------------------

CONFIGS = [
    {"apiVersion": VERSION, "kind": "GpuConfig"},
    {
        "apiVersion": VERSION,
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}},
    },
    {
        "apiVersion": VERSION,
        "kind": "MigDeviceConfig",
        "sharing": {
            "strategy": "MPS",
            "mpsConfig": {
                "defaultActiveThreadPercentage": 50,
                "defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"},
                "multiUser": True,
            },
        },
    },
]


def claim(*devices, config=(), **fields):
    configs = [
        {"source": "FromClass", "requests": ["r0"], "opaque": {"driver": api.DRIVER_NAME, "parameters": parameters}}
        for parameters in config
    ]
    return {
        "metadata": {"namespace": "ns", "name": "claim", "uid": UID},
        "status": {"allocation": allocation(*devices, config=configs, **fields)},
    }


CLAIMS = [
    claim("gpu-1"),
    claim(ONE_G(0), ONE_G(1)),
    claim("gpu-0", config=CONFIGS[:2]),
    claim(ONE_G(3), config=CONFIGS[2:]),
    claim(("r0/sub", ONE_G(2)), adminAccess=True),
    claim("gpu-0", shareID=SHARE),
]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Records and specs as they are written: (document of the record, document of the spec)."""
    node = PreparingNode(folder=tmp_path_factory.mktemp("seeds"))
    found = []
    for body in CLAIMS:
        node.claims["ns", "claim"] = copy.deepcopy(body)
        devices = body["status"]["allocation"]["devices"]["results"]
        options = {key: devices[0][key] for key in ("adminAccess", "shareID") if key in devices[0]}
        owner = node.allocate(ONE_G(2))
        node.prepare(owner)
        reference = node.allocate(*(entry["device"] for entry in devices), **options)
        answer = node.prepare(reference)
        if isinstance(answer, Prepared):
            record = (node.folder / "claims" / f"{reference.uid}.json").read_text()
            spec = node.containers.specs.path(reference.uid).read_text()
            found.append((json.loads(record.replace(reference.uid, UID)), json.loads(spec.replace(reference.uid, UID))))
        node.unprepare(reference, owner)
    node.nvml.close()
    return found


# --- what must come of it ----------------------------------------------------------------------


def tried(act, *errors):
    """Give the result of a call, or what it was refused with."""
    try:
        return act(), ""
    except errors as error:
        return None, f"{error} "


def check_config(document):
    config, refusal = tried(lambda: decode_config(document), InvalidConfigError)
    assert config or ": " in refusal


def check_claim(document, offer):
    def read_and_plan():
        allocated = read_claim(document, uid=UID, driver=api.DRIVER_NAME)
        return allocated, make_plan(allocated, offer)

    done, refusal = tried(read_and_plan, PrepareError)
    if done is None:
        assert "claim" in refusal
        return
    allocated, plan = done
    assert plan.fits(allocated)
    check_encoded(Record(boot_id="boot", state=State.PREPARED, plan=plan))


def check_encoded(record):
    assert records.decode(json.dumps(records._encode(record))) == record


def check_record(text):
    record, refusal = tried(lambda: records.decode(text), ValueError)
    if record is None:
        assert refusal.strip()
        return None
    again = records.decode(json.dumps(records._encode(record)))
    assert (again.plan, again.made, again.state) == (record.plan, record.made, record.state)
    assert record.plan.devices
    for device in record.plan.devices:
        assert (device.profile_id is None) == (device.placement is None)
    return record


def check_spec(node, data):
    path = node.containers.specs.path(UID)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    errors = UnrecoverableError, PrepareError, NvmlError
    record, refusal = tried(lambda: recover(path, uid=UID, boot_id="boot", node=node.node), *errors)
    if record is None:
        assert str(path) in refusal or "device" in refusal
        return
    assert record.plan.devices
    check_encoded(record)


def check_node(node, data):
    """Let a whole node live with a record like that: start, prepare, unprepare."""
    path = node.folder / "claims" / f"{UID}.json"
    path.write_bytes(data)
    node.restart()
    node.claims["ns", "claim"] = copy.deepcopy(CLAIMS[1])
    reference = node.allocate("gpu-1")
    reference = type(reference)(namespace="ns", name="claim", uid=UID)
    for answer in (node.prepare(reference), node.unprepare(reference), node.prepare(reference)):
        assert not (isinstance(answer, Failed) and "internal error" in answer.message), answer
    node.unprepare(reference)
    for left in (path, node.containers.specs.path(UID)):
        left.unlink(missing_ok=True)
    node.claims.clear()


def told(check, given, *context):
    try:
        return check(*context, given)
    except Exception as error:
        raise AssertionError(f"{check.__name__} of {given!r:.3000}") from error


@pytest.mark.timeout(3600)
def test_bent_configs_and_claims_are_refused_with_a_path_or_taken(node):
    offer = node.node.offer
    for number in range(FIRST_SEED, FIRST_SEED + INPUTS // 2):
        chance = random.Random(number)
        if number % 3 == 0:
            told(check_config, bent(chance.choice(CONFIGS), chance))
        else:
            told(lambda document: check_claim(document, offer), bent(chance.choice(CLAIMS), chance))


@pytest.mark.timeout(3600)
def test_bent_records_and_specs_are_set_aside_with_a_reason_or_taken(node, seeds):
    assert len(seeds) >= 4
    for number in range(FIRST_SEED, FIRST_SEED + INPUTS // 2):
        chance = random.Random(number)
        record, spec = chance.choice(seeds)
        if number % 3 == 0:
            data = torn(json.dumps(spec), chance) if number % 2 else json.dumps(bent(spec, chance)).encode()
            told(check_spec, data, node)
            continue
        data = torn(json.dumps(record), chance) if number % 2 else json.dumps(bent(record, chance)).encode()
        text = data.decode("utf-8", "replace")
        told(check_record, text)
        if number % 50 == 1:
            told(check_node, data, node)


def test_damaged_records_are_all_set_aside_and_told_apart(tmp_path, seeds):
    folder = tmp_path / "records"
    folder.mkdir()
    chance = random.Random(FIRST_SEED)
    (folder / f"{UID}.json").write_text(json.dumps(seeds[0][0]))
    for number in range(100):
        (folder / f"damaged-{number}.json").write_bytes(torn(json.dumps(seeds[0][0]), chance))
    loaded = Records(folder)
    loaded.load()
    # Not even those that are whole: they are the record of another claim.
    assert [record.plan.uid for record in loaded.all()] == [UID]
    assert len(loaded.quarantined) == 100
    assert all(path.exists() for path in loaded.quarantined.values())


# --- inputs that were answered wrong once, and their kin ---------------------------------------


@pytest.mark.parametrize(
    "document",
    [None, [], "GpuConfig", 7, {}, {"kind": "Other"}, {"kind": []}, {"kind": {"a": 1}}, deep(500), {"kind": "\ud800"}],
)
def test_a_config_of_the_corpus_is_refused(document):
    with pytest.raises(InvalidConfigError):
        decode_config(document)


def with_result(**fields):
    body = claim("gpu-1")
    body["status"]["allocation"]["devices"]["results"][0].update(fields)
    return body


def with_config(**fields):
    body = claim("gpu-1", config=CONFIGS[:1])
    body["status"]["allocation"]["devices"]["config"][0].update(fields)
    return body


CLAIM_CORPUS = [
    [], "claim", None, 7, {"metadata": []}, {"metadata": "ns"}, {"metadata": {"uid": UID}, "status": []},
    with_result(request=7), with_result(request=None), with_result(pool=[]), with_result(pool={}),
    with_result(device=[]), with_result(device={"a": 1}), with_result(device=None), with_result(shareID=[]),
    with_result(shareID={}), with_result(shareID=7), with_result(driver=None),
    with_config(requests=7), with_config(requests=[7]), with_config(requests=[[]]), with_config(requests="r0"),
    with_config(source=[]), with_config(opaque=[]), with_config(opaque={"driver": api.DRIVER_NAME, "parameters": [1]}),
    with_config(opaque={"driver": api.DRIVER_NAME, "parameters": deep(400)}),
]  # fmt: skip


@pytest.mark.parametrize("document", CLAIM_CORPUS)
def test_a_claim_of_the_corpus_is_refused(node, document):
    with pytest.raises(PrepareError, match="claim"):
        make_plan(read_claim(document, uid=UID, driver=api.DRIVER_NAME), node.node.offer)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff\xfe{}",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 5000,
        b'"\\ud800"',
        b"NaN",
    ],
)
def test_bytes_of_the_corpus_are_neither_record_nor_spec(node, data):
    assert check_record(data.decode("utf-8", "replace")) is None
    node.cdi.mkdir(exist_ok=True)
    check_spec(node, data)
    check_node(node, data)


DEVICE_CORPUS = [
    ("profileID", 19, "a partition without a place"),
    ("placement", {"start": 0, "size": 1}, "a place without a partition"),
    ("make", True, "a whole GPU that is to be made"),
    ("requests", "r0", "requests that are a text"),
    ("adminAccess", "yes", "a text for a bool"),
    ("device", 7, "a number for a name"),
]


@pytest.mark.parametrize(("key", "value", "why"), DEVICE_CORPUS, ids=[why for _, _, why in DEVICE_CORPUS])
def test_a_device_of_the_corpus_is_damage(node, seeds, key, value, why):
    document = copy.deepcopy(seeds[0][0])
    document["devices"][0][key] = value
    with pytest.raises(ValueError, match=r".+"):
        records.decode(json.dumps(document))
    check_node(node, json.dumps(document).encode())


def test_a_record_without_devices_is_damage(seeds):
    document = seeds[0][0] | {"devices": []}
    with pytest.raises(ValueError, match="devices"):
        records.decode(json.dumps(document))


def test_the_seeds_differ(seeds):
    assert all(one != other for one, other in itertools.combinations(seeds, 2))
