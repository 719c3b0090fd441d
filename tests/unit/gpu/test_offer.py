from dataclasses import replace

import pytest
from doubles.machines import gpus
from hypothesis import given
from hypothesis import strategies as st

from dradriver.gpu.model import MigInstance, Placement
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer, semantic_version
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer, parse_choice
from dradriver.resource import Version, lay_out, validate

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
        *(f"gpu-0-mig-1g10gb-19-{start}" for start in range(7)),
        *(f"gpu-0-mig-2g20gb-14-{start}" for start in (0, 2, 4)),
        *(f"gpu-0-mig-3g40gb-9-{start}" for start in (0, 4)),
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
    assert list(made.devices) == names(made)
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
