import pytest

from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    InvalidPoolError,
    Layout,
    RequestPolicy,
    Slice,
    Taint,
    Version,
    validate,
)

CONSUMES = (CounterConsumption(counter_set="set", counters={"slice": 1}),)
SET = Slice(counter_sets=(CounterSet(name="set", counters={"slice": 1}),))
TAINT = Taint(key="gpu.nvidia.com/xid", effect="NoSchedule")


def many(count, **fields):
    return Slice(devices=tuple(Device(name=f"gpu-{index}", **fields) for index in range(count)))


def one(**fields):
    return [Slice(devices=(Device(**{"name": "gpu-0", **fields}),))]


@pytest.mark.parametrize(
    "slices",
    [
        [many(128)],
        [many(64, taints=(TAINT,))],
        [SET, many(64, consumes=CONSUMES)],
        [Slice(counter_sets=tuple(CounterSet(name=f"s{i}", counters={"c": 1}) for i in range(8)))],
        one(name="a" * 63),
        one(attributes={f"a{index}": "x" for index in range(31)}, capacity={"memory": 1}),
        one(attributes={"resource.kubernetes.io/pciBusID": "0000:41:00.0", "v": Version("1.2.3-rc.1+build")}),
        one(attributes={"text": "ü" * 32}),
        one(attributes={"most": 2**63 - 1, "least": -(2**63)}),
        one(taints=(Taint(key="d/k", effect="None", time_added="2026-01-02T03:04:05.123456+02:00"),)),
    ],
)
def test_what_the_limits_allow_passes(slices):
    validate(slices)


@pytest.mark.parametrize(
    ("slices", "problem"),
    [
        ([many(129)], "129 devices, at most 128"),
        ([many(65, taints=(TAINT,))], "65 devices, at most 64"),
        ([SET, many(65, consumes=CONSUMES)], "65 devices, at most 64"),
        ([Slice(counter_sets=tuple(CounterSet(name=f"s{i}", counters={"c": 1}) for i in range(9)))], "9 counter sets"),
        ([Slice(devices=many(1).devices, counter_sets=SET.counter_sets)], "either devices or counter sets"),
        ([many(1), many(1)], "device gpu-0 appears 2 times"),
        ([SET, SET], "counter set set appears 2 times"),
        ([many(1, consumes=CONSUMES)], "counter set set, which does not exist"),
        (
            [SET, many(1, consumes=(CounterConsumption(counter_set="set", counters={"other": 1}),))],
            "consumes counter other, which set does not have",
        ),
        ([SET, many(1, consumes=CONSUMES * 2)], "consumes twice from one counter set"),
        ([Slice(counter_sets=(CounterSet(name="set", counters={}),))], "has no counters"),
        (
            [Slice(counter_sets=(CounterSet(name="set", counters={f"c{i}": 1 for i in range(33)}),))],
            "33 counters, at most 32",
        ),
        (
            [Slice(counter_sets=(CounterSet(name="set", counters={"memorySlice": 1}),))],
            "'memorySlice' is not a DNS label",
        ),
        ([Slice(counter_sets=(CounterSet(name="set", counters={"c": -1}),))], "is negative"),
        (one(name="GPU-0"), "'GPU-0' is not a DNS label"),
        (one(name="a" * 64), "is not a DNS label"),
        (one(attributes={f"a{index}": "x" for index in range(33)}), "33 attributes and capacities, at most 32"),
        (one(attributes={"1a": "x"}), "'1a' is not a C identifier"),
        (one(attributes={"a" * 33: "x"}), "is not a C identifier"),
        (one(attributes={"UPPER.io/a": "x"}), "'UPPER.io' is not a DNS subdomain"),
        (one(attributes={"a": "x" * 65}), "longer than 64 bytes"),
        (one(attributes={"a": "ü" * 33}), "longer than 64 bytes"),
        (one(attributes={"a": 2**63}), "does not fit into 64 bits"),
        (one(attributes={"a": -(2**63) - 1}), "does not fit into 64 bits"),
        (one(attributes={"a": Version("580.105.08")}), "'580.105.08' is not a semantic version"),
        (one(taints=tuple(Taint(key=f"d/k{i}", effect="None") for i in range(17))), "17 taints, at most 16"),
        (one(taints=(Taint(key="d/k", effect="None", time_added="today"),)), "its time 'today' is not one of RFC 3339"),
        (one(taints=(Taint(key="d/k", effect="None", time_added="2026-13-02T03:04:05Z"),)), "is not one of RFC 3339"),
        (one(taints=(Taint(key="d/k", effect="PreferNoSchedule"),)), "'PreferNoSchedule' is none of"),
        (one(taints=(Taint(key="a_b/k", effect="None"),)), "'a_b' is not a DNS subdomain"),
        (one(taints=(Taint(key="d/", effect="None"),)), "its name '' is no label"),
        (one(taints=(Taint(key="d/" + "k" * 64, effect="None"),)), "is no label of at most 63"),
        (one(taints=(Taint(key="d/k", value="a b", effect="None"),)), "its value 'a b' is no label"),
    ],
)
def test_what_breaks_a_limit_is_named(slices, problem):
    with pytest.raises(InvalidPoolError) as caught:
        validate(slices)
    assert any(problem in told for told in caught.value.problems), caught.value.problems


def test_everything_wrong_is_told_at_once():
    with pytest.raises(InvalidPoolError) as caught:
        validate([many(129), *one(name="B_d", attributes={"a": "x" * 65})])
    assert len(caught.value.problems) == 3


def together(devices=1, counters=1, **fields):
    """A slice in which devices consume from a set beside them."""
    totals = {f"c{index}": 1 for index in range(counters)}
    consumes = (CounterConsumption(counter_set="set", counters=totals),)
    return Slice(
        devices=many(devices, **{"consumes": consumes, **fields}).devices,
        counter_sets=(CounterSet(name="set", counters=totals),),
    )


@pytest.mark.parametrize("part", [together(128, 8), together(32, 32), together(128, 1, taints=(TAINT,)), many(128)])
def test_what_kubernetes_1_34_allows_passes(part):
    validate([part], Layout.TOGETHER)


@pytest.mark.parametrize(
    ("slices", "problem"),
    [
        ([together(129)], "129 devices, at most 128"),
        ([together(33, 32)], "1056 references to counters, at most 1024"),
        ([together(1, 33)], "33 counters, at most 32"),
        ([SET, many(1, consumes=CONSUMES)], "counter set set, which is not in its slice"),
        (one(taints=tuple(Taint(key=f"d/k{i}", effect="NoSchedule") for i in range(5))), "5 taints, at most 4"),
        (one(taints=(Taint(key="d/k", effect="None"),)), "which Kubernetes 1.34 does not know"),
    ],
)
def test_what_kubernetes_1_34_refuses_is_named(slices, problem):
    with pytest.raises(InvalidPoolError) as caught:
        validate(slices, Layout.TOGETHER)
    assert any(problem in told for told in caught.value.problems), caught.value.problems


# --- shares ---------------------------------------------------------------------------------------

SHARES = {"shares": RequestPolicy(default=1, least=1)}


def test_a_shared_device_passes():
    validate(one(capacity={"shares": 4, "memory": 0}, policies={**SHARES, "memory": RequestPolicy(default=0)}))
    validate(one(capacity={"shares": 4}, policies=SHARES, taints=(TAINT,)))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"capacity": {"shares": 4}, "consumes": CONSUMES}, "is shared and consumes counters"),
        ({"capacity": {"shares": 4, "memory": 1}}, "would take all of capacity memory, which has no policy"),
        ({"capacity": {}}, "the policy of capacity shares does not go with its value"),
        ({"capacity": {"shares": 0}}, "the policy of capacity shares does not go with its value"),
        (
            {"capacity": {"shares": 4}, "policies": {"shares": RequestPolicy(default=1, least=3)}},
            "the policy of capacity shares does not go with its value",
        ),
        (
            {"capacity": {"shares": 4}, "policies": {"shares": RequestPolicy(default=3, least=3)}},
            "the policy of capacity shares does not go with its value",
        ),
    ],
)
@pytest.mark.parametrize("layout", Layout)
def test_shares_that_would_be_given_out_wrongly_are_told(fields, problem, layout):
    slices = [Slice(devices=one(**{"policies": SHARES, **fields})[0].devices, counter_sets=())]
    with pytest.raises(InvalidPoolError, match=problem):
        validate(slices, layout)
