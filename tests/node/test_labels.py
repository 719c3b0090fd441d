"""Labels of a real node with simulated GPUs: what the hardware says through NVML is what pods choose by."""

import pytest
from doubles.machines import gpus
from support.bridging import Controllers, bridge
from support.labelling import LabelledNode, LabelReferee
from support.manifests import GPU, claim, pod, request
from support.waiting import wait_for

from dradriver.gpu.profiles import MigOffer
from dradriver.kube import RESOURCE_SLICES

MIB = 1 << 20
STATIC = ("--mig", str(MigOffer.STATIC))
A100 = "2xa100-80gb"


@pytest.fixture
def label(cluster, keeper, admin, tmp_path):
    """Starts a controller that labels, and gives the labels' view of the node; the labels go at the end."""
    made = Controllers(cluster, keeper.server, admin, tmp_path)
    seen = LabelledNode(admin, "node-a")
    seen.give_up()

    def start():
        made.start("--node-labels", "WhenUnowned")
        return seen

    start.controllers = made
    yield start
    made.close()
    seen.give_up()


def of_hardware(machine, mig=""):
    """The labels that say the same of every GPU, computed from NVML alone."""
    found = gpus(machine, mig=mig)
    gpu = found[0]
    major, minor, revision = gpu.driver_version.split(".")
    cuda_major, cuda_minor = map(str, gpu.cuda_driver_version)
    return {
        "gpu.present": "true",
        "gpu.count": str(len(found)),
        "gpu.product": gpu.product_name.replace(" ", "-"),
        "gpu.family": gpu.architecture.lower().replace(" ", "-"),
        "gpu.compute.major": str(gpu.compute_capability[0]),
        "gpu.compute.minor": str(gpu.compute_capability[1]),
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mps.capable": "false",
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": gpu.driver_version,
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
    }


def of_profile(machine, name, *, prefix, count, mig=""):
    """The labels of a MIG profile, computed from NVML alone."""
    gpu = gpus(machine, mig=mig)[0]
    (profile,) = [each for each in gpu.profiles if each.name == name]
    slices = name.partition("g.")[0]
    labels = {
        "product": f"{gpu.product_name.replace(' ', '-')}-MIG-{name}",
        "count": str(count),
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": str(profile.memory_mib),
        "multiprocessors": str(profile.multiprocessors),
        "slices.gi": slices,
        "slices.ci": slices,
        "engines.copy": str(profile.copy_engines),
        "engines.decoder": str(profile.decoders),
        "engines.encoder": str(profile.encoders),
        "engines.jpeg": str(profile.jpeg_engines),
        "engines.ofa": str(profile.ofa_engines),
    }
    return {f"{prefix}.{end}": value for end, value in labels.items()}


def expect(seen, expected):
    wait_for(lambda: seen.labels() == expected, "the labels of the hardware", seconds=60, state=seen.labels)


@pytest.mark.parametrize("machine", ["4xl4", "1xt4", "8xh200"])
def test_whole_gpus(use_node, label, machine):
    use_node(machine=machine, options=STATIC)
    memory = {"gpu.memory": str(gpus(machine)[0].memory_bytes // MIB)}
    expect(label(), of_hardware(machine) | memory)


def test_partitions_that_could_be_are_no_gpus(use_node, label):
    """Eight H100 with the standard profiles: what a node could have at the same time, GPU by GPU."""
    use_node()
    expected = of_hardware("8xh100-80gb") | {"mig.capable": "true", "mig.strategy": "mixed"}
    numbers = {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
    for name, number in numbers.items():
        expected |= of_profile("8xh100-80gb", name, prefix=f"mig-{name}", count=8 * number)
    # A GPU that can be cut tells the memory of its largest partition.
    expected["gpu.memory"] = expected["mig-7g.80gb.memory"]
    expect(label(), expected)


def cut(profile, *starts):
    return tuple(
        ("instance", "create", profile, "--gpu", gpu, "--start", str(start)) for gpu in ("0", "1") for start in starts
    )


def test_partitions_that_are_all_alike_are_what_nvidia_com_gpu_means(use_node, label):
    use_node(machine=A100, mig="on", before=cut("3g.40gb", 0, 4), options=STATIC)
    expected = of_hardware(A100) | {"mig.capable": "true", "mig.strategy": "single"}
    expected |= of_profile(A100, "3g.40gb", prefix="gpu", count=4, mig="on")
    seen = label()
    expect(seen, expected)
    # Once they have a name of their own they are asked for by that.
    label.controllers.add(bridge("mixed", "nvidia.com/mig-3g.40gb", select={"profile": "3g.40gb"}))
    mixed = of_hardware(A100) | {"mig.capable": "true", "mig.strategy": "mixed", "gpu.replicas": "0"}
    expect(seen, mixed | of_profile(A100, "3g.40gb", prefix="mig-3g.40gb", count=4, mig="on"))


def test_partitions_of_different_profiles(use_node, label):
    use_node(machine=A100, mig="on", before=(*cut("3g.40gb", 4), *cut("1g.10gb", 0, 1)), options=STATIC)
    expected = of_hardware(A100) | {"mig.capable": "true", "mig.strategy": "mixed", "gpu.replicas": "0"}
    expected |= of_profile(A100, "3g.40gb", prefix="mig-3g.40gb", count=2, mig="on")
    expected |= of_profile(A100, "1g.10gb", prefix="mig-1g.10gb", count=4, mig="on")
    expect(label(), expected)


def test_pods_that_choose_nodes_by_labels_find_theirs_and_restarts_are_not_seen(use_node, label, space, keeper):
    node = use_node()
    seen = label()
    selector = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    wrong = {"nvidia.com/gpu.product": "NVIDIA-H200"}
    space.add(
        claim("one", request("r", GPU)),
        pod("finds", claims=["one"], nodeSelector=selector),
        claim("two", request("r", GPU)),
        pod("waits", claims=["two"], nodeSelector=wrong),
    )
    assert node.check(space.running("finds")[0])["app"][0].instance is None
    assert "didn't match Pod's node affinity/selector" in space.unschedulable("waits")
    shown = keeper.server.kubectl("get", "node", "node-a", "-L", "nvidia.com/gpu.product")
    assert "NVIDIA-H100-80GB-HBM3" in shown
    referee = LabelReferee(seen)
    try:
        node.plugin.stop()
        # As the kubelet does when a driver has been away for half a minute.
        keeper.server.kubectl("delete", RESOURCE_SLICES.plural, "--all")
        node.start()
        wait_for(lambda: len(node.published()) > 8, "the slices to be back")
        expect(seen, seen.labels())
    finally:
        referee.stop()
    assert referee.writes_of_ours() == 0
