import pytest
from doubles.machines import gpus
from doubles.preparing import allocation
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.prepare.claim import OpaqueConfig, Result, read_claim
from dradriver.prepare.errors import ClaimError, PlanError
from dradriver.prepare.plan import make_plan

DRIVER = "gpu.nvidia.com"
GPUS = gpus("2xh100-80gb")
DYNAMIC = OfferPolicy(default=GpuRule(mig=MigOffer.DYNAMIC))
OFFER = make_offer(GPUS, pool="node-a", policy=DYNAMIC, numbers=number_gpus(GPUS, {}))
MIG = "gpu-0-mig-1g10gb-19-0"


def claim(*devices, **fields):
    body = {
        "metadata": {"namespace": "ns", "name": "c", "uid": "u"},
        "status": {"allocation": allocation(*devices, **fields)},
    }
    return read_claim(body, uid="u", driver=DRIVER)


def opaque(parameters, *, requests=(), driver=DRIVER, source="FromClaim"):
    entry = {"source": source, "opaque": {"driver": driver, "parameters": parameters}}
    return entry | ({"requests": list(requests)} if requests else {})


def config(kind="GpuConfig", **fields):
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}


def test_a_plan_says_all_that_undoing_needs():
    (device,) = make_plan(claim(MIG), OFFER).devices
    gpu = OFFER.devices[MIG].gpu
    assert (device.device, device.gpu_uuid, device.profile_id, device.placement.start) == (MIG, gpu.uuid, 19, 0)
    assert device.make
    assert not make_plan(claim("gpu-0"), OFFER).devices[0].make


@pytest.mark.parametrize(("mig", "make"), [(MigOffer.STATIC, False), (MigOffer.DYNAMIC, True), (MigOffer.OFF, True)])
def test_an_instance_that_only_an_administrator_makes_is_not_made_for_him(mig, make):
    """After a boot the kubelet may come before whoever makes the instances; that one would find ours in the way."""
    policy = OfferPolicy(default=GpuRule(mig=mig))
    offer = make_offer(GPUS, pool="node-a", policy=policy, numbers=number_gpus(GPUS, {}))
    (device,) = make_plan(claim(MIG), offer).devices
    assert device.make is make


def test_a_plan_fits_the_allocation_it_was_made_for_only():
    plan = make_plan(claim(MIG), OFFER)
    assert plan.fits(claim(MIG))
    assert not plan.fits(claim("gpu-1"))
    assert not plan.fits(claim(("other", MIG)))


def test_devices_of_one_claim_must_not_overlap():
    with pytest.raises(PlanError, match="its devices gpu-0-mig-1g10gb-19-0 and gpu-0 overlap"):
        make_plan(claim(MIG, "gpu-0"), OFFER)


NAMES = sorted(OFFER.devices)


@given(st.sampled_from(NAMES), st.sampled_from(NAMES))
def test_two_devices_conflict_exactly_when_they_share_a_memory_slice_of_one_gpu(one, other):
    first = make_plan(claim(one), OFFER).devices[0]
    second = make_plan(claim(other), OFFER).devices[0]
    everything = set(range(8))
    slices = [set(d.placement.slices) if d.placement else everything for d in (first, second)]
    assert first.conflicts_with(second) == (first.gpu_uuid == second.gpu_uuid and bool(slices[0] & slices[1]))
    assert first.conflicts_with(second) == second.conflicts_with(first)


@given(st.sampled_from(NAMES), st.sampled_from(NAMES))
def test_the_counters_of_the_scheduler_say_the_same(one, other):
    by_name = {device.name: device for group in OFFER.pool.groups for device in group.devices}
    totals = {s.name: s.counters for g in OFFER.pool.groups for s in g.counter_sets}
    used: dict[tuple[str, str], int] = {}
    for name in (one, other):
        for consumption in by_name[name].consumes:
            for counter, amount in consumption.counters.items():
                key = consumption.counter_set, counter
                used[key] = used.get(key, 0) + amount
    exceeded = any(amount > totals[set_name][counter] for (set_name, counter), amount in used.items())
    first, second = (make_plan(claim(name), OFFER).devices[0] for name in (one, other))
    assert exceeded == first.conflicts_with(second)


@pytest.mark.parametrize(
    "parameters",
    [
        config(),
        config(sharing={"strategy": "TimeSlicing"}),
        config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}),
        config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}),
        config("MigDeviceConfig"),
    ],
)
def test_configs_that_change_nothing_are_taken(parameters):
    make_plan(claim("gpu-0", config=[opaque(parameters)]), OFFER)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        (config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}), "not supported"),
        (config(sharing={"strategy": "MPS"}), "sharing.strategy MPS is not supported"),
        (config(shraing={}), "shraing: unknown field"),
        (config(sharing={"strategy": "Magic"}), "sharing.strategy: Input should be"),
        (config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}), "mpsConfig"),
        (config("VfioDeviceConfig"), "kind must be GpuConfig or MigDeviceConfig"),
        ({}, "parameters: "),
        ({"apiVersion": "resource.nvidia.com/v1", "kind": "GpuConfig"}, "apiVersion: Input should be"),
        ("text", "parameters"),
        (["list"], "parameters"),
    ],
)
def test_configs_that_are_not_understood_name_the_path(parameters, problem):
    with pytest.raises(PlanError, match=problem):
        make_plan(claim("gpu-0", config=[opaque(parameters)]), OFFER)


MPS = config(sharing={"strategy": "MPS"})


def test_the_last_config_that_covers_a_device_decides():
    make_plan(claim("gpu-0", config=[opaque(MPS, source="FromClass"), opaque(config())]), OFFER)
    with pytest.raises(PlanError, match="not supported"):
        make_plan(claim("gpu-0", config=[opaque(config(), source="FromClass"), opaque(MPS)]), OFFER)


def test_a_config_that_covers_nothing_of_ours_does_not_count():
    make_plan(claim("gpu-0", config=[opaque(MPS, requests=["nic"])]), OFFER)


def test_a_config_of_another_driver_is_none_of_ours():
    make_plan(claim("gpu-0", config=[opaque({"odd": 1}, driver="nic.example.com")]), OFFER)


def test_a_config_for_the_wrong_type_is_refused_where_it_names_the_request():
    wrong = config("MigDeviceConfig")
    with pytest.raises(PlanError, match="MigDeviceConfig is not for devices of type gpu, which request r0 got"):
        make_plan(claim("gpu-0", config=[opaque(wrong, requests=["r0"])]), OFFER)
    make_plan(claim("gpu-0", config=[opaque(wrong)]), OFFER)


@pytest.mark.parametrize(
    ("requests", "covered"), [((), True), (("r",), True), (("r/sub",), True), (("r/other",), False), (("x",), False)]
)
def test_a_main_request_covers_its_alternatives(requests, covered):
    result = Result(request="r", subrequest="r/sub", driver=DRIVER, pool="p", device="d")
    assert OpaqueConfig(driver=DRIVER, requests=requests).covers(result) is covered


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_no_parameters_whatever_escape_our_errors(parameters):
    try:
        make_plan(claim("gpu-0", config=[opaque(parameters)]), OFFER)
    except PlanError as error:
        assert "ns/c" in str(error)  # noqa: PT017 (either outcome is right)


@given(JSON)
def test_no_claim_whatever_escapes_our_errors(status):
    body = {"metadata": {"namespace": "ns", "name": "c", "uid": "u"}, "status": status}
    try:
        read_claim(body, uid="u", driver=DRIVER)
    except ClaimError as error:
        assert "ns/c" in str(error)  # noqa: PT017 (either outcome is right)
    else:
        pytest.fail("no random status is an allocation")
