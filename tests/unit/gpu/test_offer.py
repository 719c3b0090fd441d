from dataclasses import replace

import pytest
from doubles.machines import gpus
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.attributes import semantic_version
from dradriver.gpu.model import MigInstance, Placement
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import Situation, make_offer
from dradriver.gpu.policy import Detail, GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.resource import Layout, Taint, Version, lay_out, validate

MIG_ATTRIBUTES = {
    "type",
    "parentUUID",
    "profile",
    "productName",
    "brand",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
    "resource.kubernetes.io/pciBusID",
}
GPU_ATTRIBUTES = MIG_ATTRIBUTES - {"parentUUID", "profile"} | {"uuid"}
OPTIONAL = {"addressingMode", "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"}
ENGINES = {"multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines"}


def offer(found, mig="dynamic", profiles="standard"):
    found = tuple(found)
    policy = OfferPolicy(default=GpuRule(mig=MigOffer(mig), profiles=parse_choice(profiles)))
    return make_offer(found, pool="node-a", policy=policy, numbers=number_gpus(found, {}))


def devices(made):
    return [device for group in made.pool.groups for device in group.devices]


def names(made):
    return [device.name for device in devices(made)]


def instance(profile, start, uuid="MIG-1"):
    placement = next(place for place in profile.placements if place.start == start)
    return MigInstance(
        gpu_instance_id=7,
        compute_instance_id=0,
        uuid=uuid,
        profile_id=profile.id,
        placement=placement,
        memory_mib=profile.memory_mib - 64,
    )


def test_dynamic_offers_small_partitions_first_and_the_whole_gpu_last():
    assert names(offer(gpus("1xh100-80gb"))) == [
        *(f"gpu-0-mig-1g10gb-19-{start}" for start in (6, 4, 5, 2, 3, 0, 1)),
        *(f"gpu-0-mig-2g20gb-14-{start}" for start in (4, 0, 2)),
        *(f"gpu-0-mig-3g40gb-9-{start}" for start in (4, 0)),
        "gpu-0-mig-4g40gb-5-0",
        "gpu-0-mig-7g80gb-0-0",
        "gpu-0",
    ]


def test_dynamic_devices_carry_nvidias_names():
    made = offer(gpus("1xh100-80gb"))
    partition, whole = devices(made)[0], devices(made)[-1]
    assert set(partition.attributes) - OPTIONAL == MIG_ATTRIBUTES
    assert set(whole.attributes) - OPTIONAL == GPU_ATTRIBUTES
    assert set(partition.capacity) == set(whole.capacity) == ENGINES | {"memory"}
    assert partition.attributes["profile"] == "1g.10gb"
    assert partition.attributes["parentUUID"] == whole.attributes["uuid"]
    assert partition.attributes["cudaComputeCapability"] == Version("9.0.0")
    assert partition.capacity["memory"] == 9984 * 2**20
    assert whole.capacity["memory"] == 81152 * 2**20


def test_the_whole_gpu_consumes_all_of_its_set():
    group = offer(gpus("2xh100-80gb"), profiles="all").pool.groups[1]
    assert group.counter_sets[0].name == "gpu-1-counter-set"
    assert group.devices[-1].consumes[0].counters == group.counter_sets[0].counters
    assert set(group.counter_sets[0].counters) == {f"memory-slice-{i}" for i in range(8)} | {"ofa-engines"}


def test_static_offers_whole_gpus_with_their_real_memory_and_no_counters():
    made = offer(gpus("2xh100-80gb"), mig="static")
    assert names(made) == ["gpu-0", "gpu-1"]
    assert all(not group.counter_sets for group in made.pool.groups)
    assert devices(made)[0].capacity == {"memory": gpus("2xh100-80gb")[0].memory_bytes}


def test_static_offers_existing_instances_instead_of_their_gpu():
    first, second = gpus("2xh100-80gb", mig="on")
    profile = first.profile(9)
    first = replace(first, instances=(instance(profile, 4),))
    made = offer([first, second], mig="static")
    assert names(made) == ["gpu-0-mig-3g40gb-9-4"]
    device = devices(made)[0]
    assert device.attributes["uuid"] == "MIG-1"
    assert {name: value for name, value in device.capacity.items() if name.startswith("memorySlice")} == {
        f"memorySlice{i}": 1 for i in (4, 5, 6, 7)
    }
    assert device.capacity["memory"] == (profile.memory_mib - 64) * 2**20
    assert device.consumes == ()


def test_an_instance_without_compute_instance_is_not_offered():
    gpu = gpus("1xh100-80gb", mig="on")[0]
    bare = replace(instance(gpu.profile(19), 0), uuid=None, compute_instance_id=None)
    assert names(offer([replace(gpu, instances=(bare,))], mig="static")) == []


def test_an_instance_cut_into_several_compute_instances_is_not_offered():
    gpu = gpus("1xh100-80gb", mig="on")[0]
    parts = tuple(replace(instance(gpu.profile(9), 0), uuid=f"MIG-{i}", compute_slices=1) for i in range(3))
    whole = replace(instance(gpu.profile(9), 4), uuid="MIG-4", compute_slices=3)
    assert names(offer([replace(gpu, instances=(*parts, whole))], mig="static")) == ["gpu-0-mig-3g40gb-9-4"]


def test_a_name_longer_than_an_attribute_is_cut():
    made = offer([replace(gpus("1xt4")[0], product_name="NVIDIA " + "ü" * 60)])
    validate(lay_out(made.pool))
    assert len(devices(made)[0].attributes["productName"].encode()) == 63


def test_off_offers_no_gpu_in_mig_mode():
    assert names(offer(gpus("1xh100-80gb", mig="on"), mig="off")) == []
    assert names(offer(gpus("1xh100-80gb"), mig="off")) == ["gpu-0"]


def test_ampere_offers_what_its_mode_allows():
    assert names(offer(gpus("1xa100-80gb", mig="off"))) == ["gpu-0"]
    partitions = names(offer(gpus("1xa100-80gb", mig="on")))
    assert partitions
    assert "gpu-0" not in partitions


@pytest.mark.parametrize("machine", ["2xt4", "2xl4", "2xgb10"])
def test_a_gpu_without_mig_is_offered_whole_and_without_counters(machine):
    made = offer(gpus(machine))
    assert names(made) == ["gpu-0", "gpu-1"]
    assert all(not group.counter_sets for group in made.pool.groups)


def test_unknown_memory_is_zero_so_that_no_selector_breaks():
    assert devices(offer(gpus("1xgb10")))[0].capacity == {"memory": 0}


def test_a_vgpu_guest_is_offered_whole():
    assert names(offer([replace(gpus("1xh100-80gb")[0], vgpu_guest=True)])) == ["gpu-0"]


def test_a_gpu_without_the_wanted_profiles_is_offered_whole_and_without_counters():
    made = offer(gpus("1xh100-80gb"), profiles="1g.5gb")
    assert names(made) == ["gpu-0"]
    assert not made.pool.groups[0].counter_sets


def test_optional_attributes_are_on_all_devices_of_a_type_or_on_none():
    first, second = (replace(gpu, numa_node=1, pcie_root="pci0000:40") for gpu in gpus("2xh100-80gb"))
    made = offer([first, replace(second, numa_node=None)], mig="static")
    for device in devices(made):
        assert "resource.kubernetes.io/numaNode" not in device.attributes
        assert device.attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:40"


def test_names_follow_the_given_numbers_not_the_minors():
    gpu = gpus("1xh100-80gb")[0]
    made = make_offer([replace(gpu, minor=5)], pool="n", policy=OfferPolicy(), numbers={gpu.uuid: 0})
    assert names(made) == ["gpu-0"]


def test_every_name_can_be_looked_up():
    made = offer(gpus("2xh100-80gb"))
    assert set(made.devices) == set(names(made))
    device = made.devices["gpu-1-mig-3g40gb-9-4"]
    assert (device.gpu.minor, device.profile.name, device.placement) == (1, "3g.40gb", Placement(start=4, size=4))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.105.08", "580.105.8"),
        ("570.86", "570.86.0"),
        ("550.163.01-grid", "550.163.1"),
        ("1.2.3.4", "1.2.3"),
        ("odd", "0.0.0"),
    ],
)
def test_driver_versions_become_semantic(text, version):
    assert semantic_version(text) == version


MACHINES = ["16xh100-80gb", "4xa30", "8xa100-40gb", "8xb200", "8xrtx-pro-6000", "8xh200", "4xgb200", "2xgb10", "4xl4"]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mig", ["static", "dynamic", "off"])
@pytest.mark.parametrize("profiles", ["standard", "all"])
def test_every_machine_gives_valid_slices(machine, mig, profiles):
    made = offer(gpus(machine), mig=mig, profiles=profiles)
    slices = lay_out(made.pool)
    validate(slices)
    assert sum(len(part.devices) for part in slices) == len(made.devices) > 0


@given(st.permutations(gpus("4xh100-80gb")))
def test_the_order_in_which_nvml_lists_gpus_does_not_matter(shuffled):
    assert offer(shuffled) == offer(gpus("4xh100-80gb"))


# --- devices that claims hold ---------------------------------------------------------------------

HELD = "gpu-0-mig-3g40gb-9-4"
UNWANTED = Taint(key="dradriver.dev/not-offered", effect="NoSchedule")


def situated(found, *, mig="dynamic", profiles="standard", **situation):
    found = tuple(found)
    policy = OfferPolicy(default=GpuRule(mig=MigOffer(mig), profiles=parse_choice(profiles)))
    numbers = number_gpus(found, {})
    return make_offer(found, pool="node-a", policy=policy, numbers=numbers, situation=Situation(**situation))


def by_name(made):
    return {device.name: device for device in devices(made)}


@pytest.mark.parametrize("layout", Layout)
def test_what_a_claim_holds_stays_published_when_nobody_wants_it_any_more(layout):
    made = situated(gpus("1xh100-80gb"), mig="static", held={HELD: "MIG-1"}, layout=layout)
    found = by_name(made)
    assert list(found) == [HELD, "gpu-0"]
    assert found[HELD].taints == (UNWANTED,)
    assert found[HELD].attributes["uuid"] == "MIG-1"
    assert found["gpu-0"].taints == ()
    validate(lay_out(made.pool, layout), layout)


def test_the_whole_gpu_does_not_fit_beside_a_partition_that_is_held():
    made = situated(gpus("1xh100-80gb"), mig="static", held={HELD: ""})
    (counter_set,) = made.pool.groups[0].counter_sets
    for device in devices(made):
        assert device.consumes[0].counter_set == counter_set.name
    together = [
        sum(device.consumes[0].counters.get(name, 0) for device in devices(made)) for name in counter_set.counters
    ]
    assert max(together) > 1


def test_a_profile_that_left_the_list_stays_for_its_claim_only():
    made = situated(gpus("2xh100-80gb"), profiles="1g.10gb", held={HELD: ""})
    of_first = [device for device in devices(made) if device.name.startswith("gpu-0")]
    assert {device.name for device in of_first if device.taints} == {HELD}
    assert not any("3g40gb" in device.name for device in devices(made) if device.name.startswith("gpu-1"))
    assert made.devices[HELD].is_made_here


def test_what_is_offered_anyway_gets_no_taint_for_being_held():
    assert situated(gpus("1xh100-80gb"), held={HELD: ""}) == situated(gpus("1xh100-80gb"))


def test_a_server_without_counters_is_offered_the_held_partition_alone():
    made = situated(gpus("2xh100-80gb"), held={HELD: ""}, layout=None)
    assert names(made) == [HELD, "gpu-1"]
    assert all(not device.consumes for device in devices(made))
    assert not any(group.counter_sets for group in made.pool.groups)


def test_nobody_else_is_offered_an_instance_that_was_made_for_a_claim():
    gpu = gpus("1xh100-80gb", mig="on")[0]
    profile = gpu.profile(19)
    ours, others = (
        MigInstance(
            gpu_instance_id=start + 7,
            compute_instance_id=0,
            uuid=f"MIG-{start}",
            profile_id=19,
            placement=Placement(start=start, size=1),
        )
        for start in (0, 3)
    )
    gpu = replace(gpu, instances=(others,))
    made = situated([gpu], mig="static", held={"gpu-0-mig-1g10gb-19-0": ours.uuid})
    found = by_name(made)
    assert found["gpu-0-mig-1g10gb-19-0"].taints == (UNWANTED,)
    assert found["gpu-0-mig-1g10gb-19-3"].taints == ()
    assert profile is not None
    assert {device.attributes["uuid"] for device in devices(made)} == {"MIG-0", "MIG-3"}


# --- taints ---------------------------------------------------------------------------------------


def test_a_gpu_that_does_not_answer_is_tainted_and_no_other():
    found = gpus("2xh100-80gb")
    made = situated(found, absent=frozenset({found[1].uuid}))
    lost = {
        device.name
        for device in devices(made)
        if device.taints == (Taint(key="gpu.nvidia.com/gpu-lost", effect="NoSchedule"),)
    }
    assert lost == {name for name in names(made) if name.startswith("gpu-1")}
    assert all(not device.taints for device in devices(made) if device.name.startswith("gpu-0"))


def with_foreign_instance(start):
    gpu = gpus("1xh100-80gb", mig="on")[0]
    foreign = MigInstance(
        gpu_instance_id=9,
        compute_instance_id=0,
        uuid="MIG-x",
        profile_id=14,
        placement=Placement(start=start, size=2),
    )
    return replace(gpu, instances=(foreign,))


def test_places_that_an_instance_of_others_covers_are_tainted():
    made = situated([with_foreign_instance(2)])
    tainted = {device.name for device in devices(made) if device.taints}
    for device in devices(made):
        offered = made.devices[device.name]
        covers = offered.placement is None or offered.placement.overlaps(Placement(start=2, size=2))
        assert (device.name in tainted) == covers
    assert "gpu-0" in tainted


def test_a_server_without_taints_is_not_offered_what_would_have_one():
    gpu = with_foreign_instance(2)
    made = situated([gpu], taints=False, held={"gpu-0": ""})
    assert all(not device.taints for device in devices(made))
    published = set(names(made))
    assert "gpu-0" in published, "it is held"
    for name, offered in made.devices.items():
        free = offered.placement is not None and not offered.placement.overlaps(Placement(start=2, size=2))
        assert (name in published) == (free or name == "gpu-0")


# --- one bad GPU ----------------------------------------------------------------------------------


def test_a_gpu_that_the_api_server_would_refuse_hides_no_other():
    first, second = gpus("2xh100-80gb")
    odd = replace(first, architecture="x" * 64, driver_version="580", pci_bus_id="ü" * 65)
    made = situated([odd, second])
    assert set(made.refused) == {first.uuid}
    assert any("pciBusID is longer than 64 bytes" in problem for problem in made.refused[first.uuid])
    assert names(made)
    assert all(name.startswith("gpu-1") for name in names(made))


# --- detail ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mig", ["static", "dynamic"])
def test_lean_devices_say_what_selectors_need(mig):
    found = gpus("1xh100-80gb")
    rule = GpuRule(mig=MigOffer(mig))
    made = make_offer(
        found, pool="n", policy=OfferPolicy(default=rule, detail=Detail.LEAN), numbers=number_gpus(found, {})
    )
    full = by_name(situated(found, mig=mig))
    for device in devices(made):
        identity = {"uuid"} if device.attributes["type"] == "gpu" else {"parentUUID", "profile"}
        assert set(device.attributes) == {"type", "productName", "resource.kubernetes.io/pcieRoot"} | identity
        assert device.capacity == {"memory": full[device.name].capacity["memory"]}
        assert device.consumes == full[device.name].consumes
