import itertools

import pytest
from doubles.publications import gpu, part, published
from hypothesis import given
from hypothesis import strategies as st
from support.labelling import EIGHT

from controller.labelling import features
from controller.labelling.names import is_known

H100 = "NVIDIA-H100-80GB-HBM3"
ENGINES = {
    "multiprocessors": 16,
    "copyEngines": 1,
    "decoders": 1,
    "encoders": 0,
    "jpegEngines": 1,
    "ofaEngines": 0,
}
A100 = {"product": "NVIDIA A100-SXM4-40GB", "architecture": "Ampere", "cudaComputeCapability": "8.0.0"}


def labels(*devices, bridged=(), strategy="", **more):
    found = features([published(*devices, **more)], bridged=bridged, strategy=strategy)
    return {name.removeprefix("nvidia.com/"): value for name, value in found.items()}


def some(found, *names):
    return {name: found.get(name) for name in names}


def test_a_node_of_whole_gpus():
    assert labels(*(gpu(index) for index in range(8))) == EIGHT


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("Ada Lovelace", "ada-lovelace"),
        ("Ampere", "ampere"),
        ("Blackwell", "blackwell"),
        ("Unknown", "undefined"),
        (None, None),
    ],
)
def test_the_family(architecture, family):
    assert labels(gpu(architecture=architecture)).get("gpu.family") == family


@pytest.mark.parametrize(
    ("version", "revision", "full"),
    [
        ("580.105.8", "08", "580.105.08"),
        ("535.183.1", "01", "535.183.01"),
        ("550.54.14", "14", "550.54.14"),
        # 525.53 and 525.53.00 look the same in a slice.
        ("525.53.0", None, None),
    ],
)
def test_the_driver_s_version_as_nvidia_writes_it(version, revision, full):
    found = labels(gpu(driverVersion=version))
    major, minor, _ = version.split(".")
    assert (found["cuda.driver-version.major"], found["cuda.driver.minor"]) == (major, minor)
    assert found.get("cuda.driver-version.revision") == found.get("cuda.driver.rev") == revision
    assert found.get("cuda.driver-version.full") == full


def test_what_a_slice_does_not_tell_is_not_told():
    lean = dict.fromkeys(("architecture", "cudaComputeCapability", "driverVersion", "cudaDriverVersion"))
    assert labels(gpu(**lean)) == {
        "gpu.present": "true",
        "gpu.count": "1",
        "gpu.product": H100,
        "gpu.memory": "81559",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mps.capable": "false",
    }
    bare = labels(gpu(product=None, memory=None, **lean))
    assert "gpu.product" not in bare
    assert "gpu.memory" not in bare
    assert bare["gpu.count"] == "1"


def test_memory_that_is_not_known_is_published_as_none_and_not_told():
    assert "gpu.memory" not in labels(gpu(memory=0))


@pytest.mark.parametrize(
    ("product", "label"),
    [
        ("NVIDIA  RTX 6000 Ada Generation", "NVIDIA-RTX-6000-Ada-Generation"),
        ("Tesla T4", "Tesla-T4"),
        ("NVIDIA H100 (PCIe)", "NVIDIA-H100-PCIe"),
        # The API server would refuse all labels for its sake.
        ("x" * 64, None),
        ("-odd-", None),
    ],
)
def test_products_as_values_of_labels(product, label):
    assert labels(gpu(product=product)).get("gpu.product") == label


# --- sharing --------------------------------------------------------------------------------------


def test_gpus_that_are_shared():
    shared = {"sharing": "time-slicing", "renamed": False, "shares": 4}
    found = labels(gpu(0, **shared), gpu(1, **shared))
    assert some(found, "gpu.product", "gpu.count", "gpu.replicas", "gpu.sharing-strategy") == {
        "gpu.product": f"{H100}-SHARED",
        "gpu.count": "2",
        "gpu.replicas": "4",
        "gpu.sharing-strategy": "time-slicing",
    }


def test_gpus_that_are_shared_under_another_name_keep_theirs():
    found = labels(gpu(0, sharing="time-slicing", renamed=True, shares=10))
    assert (found["gpu.product"], found["gpu.replicas"]) == (H100, "10")


def test_a_node_that_shares_nothing_of_it():
    found = labels(gpu(0, sharing="none", renamed=False))
    assert (found["gpu.product"], found["gpu.replicas"], found["gpu.sharing-strategy"]) == (H100, "1", "none")


def test_mps_is_told_where_a_device_says_so():
    assert labels(gpu(0, sharing="mps", shares=2))["mps.capable"] == "true"


# --- partitions -----------------------------------------------------------------------------------


def grid(index, sizes):
    """Dynamic partitions and the whole GPU, as counters tell that they exclude each other."""
    places = {"1g.10gb": (1, range(7)), "2g.20gb": (2, (0, 2, 4)), "3g.40gb": (4, (0, 4)), "7g.80gb": (8, (0,))}
    found = [
        part(index, profile, start, consumes={f"s{slot}": 1 for slot in range(start, start + width)}, capacity=ENGINES)
        for profile, (width, starts) in places.items()
        for start in starts
        if profile in sizes
    ]
    return [*found, gpu(index, consumes={f"s{slot}": 1 for slot in range(8)}, memory=81152)]


def sets(count):
    return {f"gpu-{index}-set": {f"s{slot}": 1 for slot in range(8)} for index in range(count)}


def test_partitions_that_could_be_are_no_gpus():
    devices = [device for index in range(2) for device in grid(index, {"1g.10gb", "3g.40gb"})]
    found = labels(*devices, counters=sets(2))
    assert some(found, "gpu.count", "gpu.product", "gpu.replicas", "gpu.memory", "mig.strategy", "mig.capable") == {
        "gpu.count": "2",
        "gpu.product": H100,
        "gpu.replicas": "1",
        "gpu.memory": "81152",
        "mig.strategy": "mixed",
        "mig.capable": "true",
    }
    assert found["mig-1g.10gb.count"] == "14"
    assert found["mig-3g.40gb.count"] == "4"


def test_places_that_overlap_are_counted_as_often_as_they_can_be_had():
    overlapping = [part(0, "2g.20gb", start, consumes={f"s{start}": 1, f"s{start + 1}": 1}) for start in range(4)]
    found = labels(gpu(0), *overlapping, counters=sets(1))
    assert found["mig-2g.20gb.count"] == "2"


def test_counters_may_lie_in_slices_of_their_own():
    found = features([published(*grid(0, {"1g.10gb"}), total=2), published(counters=sets(1), total=2)])
    assert found["nvidia.com/mig-1g.10gb.count"] == "7"


def test_all_that_is_told_of_a_profile():
    found = labels(gpu(0), part(1, "1g.10gb", 0, capacity=ENGINES), part(1, "1g.10gb", 1, capacity=ENGINES))
    assert {name: value for name, value in found.items() if name.startswith("mig-")} == {
        "mig-1g.10gb.count": "2",
        "mig-1g.10gb.product": f"{H100}-MIG-1g.10gb",
        "mig-1g.10gb.replicas": "1",
        "mig-1g.10gb.sharing-strategy": "none",
        "mig-1g.10gb.memory": "9984",
        "mig-1g.10gb.multiprocessors": "16",
        "mig-1g.10gb.engines.copy": "1",
        "mig-1g.10gb.engines.decoder": "1",
        "mig-1g.10gb.engines.encoder": "0",
        "mig-1g.10gb.engines.jpeg": "1",
        "mig-1g.10gb.engines.ofa": "0",
        "mig-1g.10gb.slices.gi": "1",
        "mig-1g.10gb.slices.ci": "1",
    }


def test_profiles_with_media_engines_have_the_name_that_the_device_plugin_gives_them():
    found = labels(gpu(0), part(1, "1g.10gb+me"))
    assert found["mig-1g.10gb.me.count"] == "1"
    assert found["mig-1g.10gb.me.product"] == f"{H100}-MIG-1g.10gbme"


def test_gpus_that_are_there_in_parts_only_are_counted_by_their_names():
    devices = [part(index, profile, start, **A100) for index in range(4) for profile, start in _TWO]
    found = labels(*devices)
    assert some(found, "gpu.count", "gpu.product", "gpu.replicas", "gpu.family", "mig.strategy") == {
        "gpu.count": "4",
        "gpu.product": "NVIDIA-A100-SXM4-40GB",
        "gpu.replicas": "0",
        "gpu.family": "ampere",
        "mig.strategy": "mixed",
    }
    # A partition does not tell how much memory its GPU has.
    assert "gpu.memory" not in found
    assert (found["mig-1g.5gb.count"], found["mig-3g.20gb.count"]) == ("4", "4")


_TWO = (("1g.5gb", 0), ("3g.20gb", 4))


def uniform(**more):
    devices = [part(index, "1g.5gb", start, memory=4864, **A100) for index in range(2) for start in range(7)]
    return labels(*devices, **more)


def test_partitions_that_are_all_alike_are_asked_for_as_gpus():
    found = uniform()
    assert some(found, "gpu.product", "gpu.count", "gpu.memory", "gpu.slices.gi", "mig.strategy", "gpu.replicas") == {
        "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "gpu.count": "14",
        "gpu.memory": "4864",
        "gpu.slices.gi": "1",
        "mig.strategy": "single",
        "gpu.replicas": "1",
    }
    assert [name for name in found if name.startswith("mig-")] == []


@pytest.mark.parametrize(
    "more", [{"bridged": ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]}, {"strategy": "mixed"}], ids=["bridge", "label"]
)
def test_unless_they_have_a_name_of_their_own(more):
    found = uniform(**more)
    assert (found["mig.strategy"], found["gpu.count"], found["mig-1g.5gb.count"]) == ("mixed", "2", "14")
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB"


def test_the_administrator_s_word_goes_before_bridges():
    assert uniform(bridged=["nvidia.com/mig-1g.5gb"], strategy="single")["gpu.count"] == "14"
    none = uniform(strategy="none")
    assert (none["gpu.count"], "mig.strategy" in none, none["mig.capable"]) == ("2", False, "true")


def test_a_node_that_cannot_be_single_is_mixed_whatever_is_said():
    found = labels(gpu(0), part(1), strategy="single")
    assert (found["mig.strategy"], found["gpu.count"]) == ("mixed", "2")


# --- several products, several slices -------------------------------------------------------------


def test_of_several_products_the_one_that_is_there_most_often_is_told():
    found = labels(gpu(0, "Tesla T4", 15360), gpu(1), gpu(2), gpu(3, "NVIDIA A2", 15356))
    assert (found["gpu.product"], found["gpu.count"], found["gpu.memory"]) == (H100, "2", "81559")


def test_of_equally_many_the_first_by_name_in_whatever_order_they_come():
    devices = [gpu(0, "B"), gpu(1, "A"), gpu(2, "C")]
    found = [labels(*order) for order in itertools.permutations(devices)]
    assert {each["gpu.product"] for each in found} == {"A"}
    assert all(each == found[0] for each in found)


def test_partitions_are_no_reason_to_count_a_product_more_often():
    found = labels(*(part(0, "1g.10gb", start) for start in range(7)), gpu(1, "A"), gpu(2, "A"))
    assert (found["gpu.product"], found["gpu.count"]) == ("A", "2")


def test_a_node_with_a_whole_gpu_and_one_in_parts_tells_the_memory_of_the_whole_one():
    found = labels(part(0), gpu(1))
    assert (found["gpu.count"], found["gpu.memory"], found["gpu.replicas"]) == ("2", "81559", "1")


def test_an_incomplete_pool_says_nothing():
    assert features([published(gpu(0), total=2)]) is None
    assert features([published(gpu(0), pool="a"), published(gpu(0), pool="b", total=2)]) is None


def test_only_the_newest_generation_counts():
    old, new = published(gpu(0), gpu(1), generation=1), published(gpu(0), generation=2)
    assert features([old, new])["nvidia.com/gpu.count"] == "1"
    assert features([old, published(gpu(0), generation=2, total=2)]) is None


def test_nothing_is_told_of_nothing():
    assert features([]) == {}
    assert features([published()]) == {}


names = st.sampled_from(["A", "B b", "", "x" * 70, "é"])
profiles = st.sampled_from(["1g.10gb", "1g.10gb+me", "1g.24gb-me", "3g.40gb", "odd", ""])
versions = st.sampled_from(["9.0.0", "1.2.0", "580.65.6", None])
wholes = st.builds(gpu, st.integers(0, 9), names, st.integers(0, 99), cudaComputeCapability=versions)
parts = st.builds(part, st.integers(0, 9), profiles, st.integers(0, 7), names, shares=st.integers(1, 3))


@given(st.lists(st.one_of(wholes, parts), max_size=9, unique_by=lambda device: device["name"]), st.randoms())
def test_whatever_is_published_labels_are_valid_ours_and_the_same_in_any_order(devices, dice):
    found = features([published(*devices)])
    assert (found == {}) is (devices == [])
    for name, value in found.items():
        assert is_known(name)
        assert value == "" or (len(value) <= 63 and value.isascii() and value[0].isalnum() and value[-1].isalnum())
    dice.shuffle(devices)
    assert features([published(*devices)]) == found
