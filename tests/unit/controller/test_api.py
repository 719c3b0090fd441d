import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.cluster import REPOSITORY

from controller import api
from controller.api import (
    BridgeError,
    BridgeStatus,
    Condition,
    ConditionType,
    DeviceTally,
    Mode,
    NodeTally,
    Select,
    Sharing,
    decode_bridge,
    derived_class_name,
    encode_status,
    resource_name_of,
    resource_name_of_profile,
)


def item(status=None, **spec):
    return {
        "metadata": {"name": "b", "uid": "u", "resourceVersion": "7", "generation": 2},
        "spec": {"resourceName": "nvidia.com/gpu", "select": {"type": "gpu"}, **spec},
        **({"status": status} if status else {}),
    }


@pytest.mark.parametrize(
    ("resource_name", "expected"),
    [
        ("nvidia.com/gpu", "gpu.gpu.dradriver.dev"),
        ("nvidia.com/mig-1g.10gb", "mig-1g.10gb.gpu.dradriver.dev"),
        ("nvidia.com/mig-1g.10gb.me", "mig-1g.10gb.me.gpu.dradriver.dev"),
        ("example.com/gpu", "gpu.example.com.gpu.dradriver.dev"),
        ("nvidia.com/My_GPU", "my-gpu.gpu.dradriver.dev"),
    ],
)
def test_derived_class_names(resource_name, expected):
    assert derived_class_name(resource_name) == expected


NAME_PART = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True)


@given(NAME_PART)
def test_a_derived_class_name_keeps_the_words_and_is_lower_case(name):
    derived = derived_class_name(f"nvidia.com/{name}")
    assert derived == derived.lower()
    assert "gpu" in derived
    assert "_" not in derived


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
    ],
)
def test_resource_names_of_profiles(profile, expected):
    assert resource_name_of_profile(profile) == expected
    assert resource_name_of_profile(profile, renamed=True) == f"{expected}.shared"


def test_names_are_those_of_the_crd():
    crd = yaml.safe_load((REPOSITORY / "deploy/crds/extendedresourcebridges.yaml").read_text())["spec"]
    assert (crd["group"], crd["names"]["plural"], crd["names"]["kind"]) == (
        api.BRIDGES.group,
        api.BRIDGES.plural,
        api.BRIDGES.kind,
    )
    (version,) = crd["versions"]
    assert version["name"] == api.BRIDGES.version
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert set(spec["mode"]["enum"]) == set(Mode)
    assert set(spec["select"]["properties"]["sharing"]["enum"]) == set(Sharing)


def test_what_is_left_out_has_its_default():
    spec = decode_bridge(item()).spec
    assert spec.device_class_name == "gpu.gpu.dradriver.dev"
    assert (spec.mode, spec.adopt, spec.config) == (Mode.ENABLED, False, ())
    assert spec.select == Select(type="gpu")


def test_everything_is_read():
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    select = {
        "type": "mig",
        "profile": "1g.10gb",
        "profiles": ["2g.20gb"],
        "productName": "H100",
        "memory": {"min": "1Gi", "max": "2G"},
        "sharing": "mps",
        "renamed": False,
        "cel": "true",
    }
    body = item(select=select, config=[config], deviceClassName="x-gpu", mode="WhenReady", adopt=True)
    body["metadata"] |= {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "creationTimestamp": "2025-01-01T00:00:00Z",
        "finalizers": ["f"],
        "annotations": {"dradriver.dev/force-delete": "true"},
    }
    read = decode_bridge(body)
    assert (read.name, read.uid, read.resource_version, read.generation) == ("b", "u", "7", 2)
    assert (read.deleting, read.forced, read.finalizers) == (True, True, ("f",))
    assert read.created == "2025-01-01T00:00:00Z"
    assert read.spec.select == Select(
        type="mig",
        profile="1g.10gb",
        profiles=("2g.20gb",),
        product_name="H100",
        memory_min=1 << 30,
        memory_max=2 * 10**9,
        sharing=Sharing.MPS,
        renamed=False,
        cel="true",
    )
    assert (read.spec.config, read.spec.device_class_name) == ((config,), "x-gpu")
    assert (read.spec.mode, read.spec.adopt) == (Mode.WHEN_READY, True)


@pytest.mark.parametrize(
    "spec",
    [
        {"select": None},
        {"select": {"type": "gpu", "sharing": "mig"}},
        {"select": {"memory": {"min": "ten"}}},
        {"mode": "Later"},
        {"resourceName": None},
    ],
)
def test_what_the_crd_would_refuse_is_told_with_the_name(spec):
    with pytest.raises(BridgeError, match="ExtendedResourceBridge b is not understood"):
        decode_bridge(item(**spec))


def test_the_resource_name_is_found_also_where_the_rest_is_not_understood():
    assert resource_name_of(item(mode="Later")) == "nvidia.com/gpu"
    assert resource_name_of({"metadata": {"name": "b"}}) == ""


def _deeper(inner):
    names = st.sampled_from(["conditions", "devices", "nodes", "pods", "type", "status", "dra", "published"])
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)


CONDITIONS = st.builds(
    Condition,
    type=st.sampled_from(ConditionType),
    holds=st.none() | st.booleans(),
    reason=st.sampled_from(["One", "Two"]),
    message=st.text(max_size=5),
)
COUNTS = st.integers(0, 1 << 40)
STATUSES = st.builds(
    BridgeStatus,
    observed_generation=st.integers(1, 99),
    conditions=st.lists(CONDITIONS, max_size=3, unique_by=lambda each: each.type).map(tuple),
    device_class_name=st.sampled_from(["a-gpu", "b-gpu"]),
    devices=st.none() | st.builds(DeviceTally, **dict.fromkeys(DeviceTally.__slots__, COUNTS)),
    nodes=st.none() | st.builds(NodeTally, device_plugin=COUNTS, dra=COUNTS, neither=COUNTS),
    pending=COUNTS,
)


@given(STATUSES)
def test_a_status_that_was_written_is_read_as_the_same(status):
    body = encode_status(status, former={}, now="2026-01-01T00:00:00Z")
    assert decode_bridge(item(status=body)).status == status


READY = {"type": "Ready", "status": "True", "reason": "A", "message": "a", "lastTransitionTime": "t0"}
STRANGE = {"type": "Paused", "status": "True", "reason": "A", "message": "a", "lastTransitionTime": "t0"}


def test_of_a_newer_versions_status_what_is_known_is_read():
    devices = {"published": 3, "allocatable": 2, "broken": 1}
    nodes = {"dra": 1, "draining": 1}
    status = {"conditions": [STRANGE, READY], "devices": devices, "nodes": nodes, "shape": {"a": 1}}
    read = decode_bridge(item(status=status)).status
    assert [condition.type for condition in read.conditions] == [ConditionType.READY]
    assert read.devices == DeviceTally(published=3, allocatable=2)
    assert read.nodes == NodeTally(dra=1)


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [READY | {"status": "Perhaps"}]},
        {"conditions": [{"type": "Ready"}]},
        {"conditions": [{"reason": "A"}]},
        {"conditions": "none"},
        {"conditions": 7},
        {"devices": [1]},
        {"devices": "many"},
        {"nodes": "many"},
        {"pods": [1]},
        "well",
        ["well"],
    ],
)
def test_a_status_that_is_not_understood_counts_as_none(status):
    assert decode_bridge(item(status=status)).status == BridgeStatus()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), _deeper, max_leaves=10))
def test_no_status_keeps_a_bridge_from_being_read(status):
    body = item()
    body["status"] = status
    assert decode_bridge(body).spec.select == Select(type="gpu")


@pytest.mark.parametrize("former", [{"conditions": [{"type": "Ready"}]}, {"conditions": [7]}, {"conditions": 7}])
def test_a_status_is_written_over_one_that_is_not_understood(former):
    ready = Condition(type=ConditionType.READY, holds=True, reason="A", message="a")
    body = encode_status(BridgeStatus(conditions=(ready,)), former=former, now="t1")
    assert body["conditions"][0]["lastTransitionTime"] == "t1"


def test_a_condition_keeps_its_time_until_its_status_changes():
    ready = Condition(type=ConditionType.READY, holds=True, reason="A", message="a")
    first = encode_status(BridgeStatus(conditions=(ready,)), former={}, now="t1")
    same = Condition(type=ConditionType.READY, holds=True, reason="B", message="b")
    second = encode_status(BridgeStatus(conditions=(same,)), former=first, now="t2")
    assert second["conditions"][0]["lastTransitionTime"] == "t1"
    other = Condition(type=ConditionType.READY, holds=False, reason="B", message="b")
    third = encode_status(BridgeStatus(conditions=(other,)), former=second, now="t3")
    assert third["conditions"][0]["lastTransitionTime"] == "t3"
    assert third["conditions"][0]["status"] == "False"


def test_what_nobody_can_tell_is_unknown():
    ready = Condition(type=ConditionType.READY, holds=None, reason="A", message="a")
    body = encode_status(BridgeStatus(conditions=(ready,)), former={}, now="t1")
    assert body["conditions"][0]["status"] == "Unknown"
