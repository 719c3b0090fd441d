"""What a claim may ask for, from the scheduler's decision to what the container sees."""

import secrets

import pytest
from support.manifests import ANY, DOMAIN, GPU, MIG, claim, container, exactly, first_available, of_gpu, pod, profile
from support.manifests import request as ask
from support.sight import results
from support.space import Space
from support.waiting import wait_for

PARENT = f"{DOMAIN}/parentUUID"
ADMIN = {"resource.kubernetes.io/admin-access": "true"}


@pytest.fixture
def gpu(node):
    """UUID of one of the node's GPUs."""
    return node.simulation.gpus()[3]["uuid"]


@pytest.fixture
def admin(keeper, use_node):
    """A namespace in which admin access is allowed."""
    made = Space(keeper.server, f"admin-{secrets.token_hex(3)}", labels={**ADMIN, **keeper.labels})
    yield made
    made.clear()


def kinds(devices):
    return ["whole" if device.instance is None else device.instance["profile"] for device in devices]


def run(node, space, name, *requests, **more):
    """Run a pod with a claim of its own; gives the devices of its container."""
    space.add(claim(name, *requests, **more), pod(name, claims=[name]))
    return node.check(space.running(name)[0])["app"]


def test_one_gpu_is_whole_then_cut_then_whole_again(node, space, gpu):
    for wish, expected in [(GPU, "whole"), (MIG, "1g.10gb"), (GPU, "whole")]:
        name = f"{expected[:2]}-{secrets.token_hex(2)}"
        (device,) = run(node, space, name, ask("it", wish, of_gpu(gpu)))
        assert kinds([device]) == [expected]
        assert node.simulation.gpu(gpu)["mig"]["current"] is (wish == MIG)
        space.delete(name)
        node.wait_clean()


def test_a_whole_gpu_waits_until_its_last_partition_is_gone(node, space, gpu):
    run(node, space, "cut", ask("it", MIG, of_gpu(gpu)))
    space.add(claim("whole", ask("it", GPU, of_gpu(gpu))), pod("whole", claims=["whole"]))
    assert "cannot allocate all claims" in space.unschedulable("whole")
    space.delete("cut")
    assert kinds(node.check(space.running("whole")[0])["app"]) == ["whole"]


def test_a_ninth_pod_waits_for_the_first_of_eight_gpus(node, space):
    names = [f"gpu-{index}" for index in range(8)]
    for name in names:
        space.add(claim(name, ask("it", GPU)), pod(name, claims=[name]))
    devices = [node.check(running)["app"][0] for running in space.running(*names)]
    assert len({device.uuid for device in devices}) == 8
    space.add(claim("ninth", ask("it", ANY)), pod("ninth", claims=["ninth"]))
    assert "cannot allocate all claims" in space.unschedulable("ninth")
    space.delete("gpu-5")
    (device,) = node.check(space.running("ninth")[0])["app"]
    assert device.gpu["uuid"] == devices[5].gpu["uuid"]


def test_seven_small_partitions_fill_a_gpu(node, space, gpu):
    small = (MIG, of_gpu(gpu), profile("1g.10gb"))
    devices = run(node, space, "seven", ask("it", *small, count=7))
    assert len({device.uuid for device in devices}) == 7
    space.add(claim("eighth", ask("it", *small)), pod("eighth", claims=["eighth"]))
    space.unschedulable("eighth")


def test_several_gpus_in_one_request(node, space):
    devices = run(node, space, "many", ask("it", GPU, count=2))
    assert kinds(devices) == ["whole"] * 2
    assert len({device.uuid for device in devices}) == 2


def test_several_partitions_in_one_request(node, space):
    devices = run(node, space, "many", ask("it", MIG, profile("2g.20gb"), count=2))
    assert kinds(devices) == ["2g.20gb", "2g.20gb"]


def test_all_gpus_of_the_node(node, space):
    devices = run(node, space, "all", ask("it", GPU, allocationMode="All"))
    assert {device.uuid for device in devices} == {gpu["uuid"] for gpu in node.simulation.gpus()}


def test_three_requests_of_one_gpu(node, space):
    # Something on the first GPU, so that the three do not fit together there.
    first = node.simulation.gpus()[0]["uuid"]
    run(node, space, "holder", ask("it", MIG, of_gpu(first), profile("4g.40gb")))
    wishes = {"a": "3g.40gb", "b": "2g.20gb", "c": "2g.20gb"}
    requests = [ask(name, MIG, profile(wish)) for name, wish in wishes.items()]
    devices = run(node, space, "three", *requests, same=(PARENT, list(wishes)))
    assert kinds(devices) == list(wishes.values())
    assert len({device.gpu["uuid"] for device in devices}) == 1
    assert devices[0].gpu["uuid"] != first


def test_the_second_of_a_list_is_taken_where_the_first_does_not_fit(node, space, gpu):
    run(node, space, "holder", ask("it", MIG, of_gpu(gpu), profile("1g.10gb")))
    wishes = {"seven": "7g.80gb", "three": "3g.40gb", "one": "1g.10gb"}
    alternatives = {name: exactly(MIG, of_gpu(gpu), profile(wish)) for name, wish in wishes.items()}
    devices = run(node, space, "list", first_available("it", **alternatives))
    assert kinds(devices) == ["3g.40gb"]
    assert [each["request"] for each in results(space.claim("list"))] == ["it/three"]


def test_a_list_with_two_of_the_smaller(node, space, gpu):
    run(node, space, "holder", ask("it", MIG, of_gpu(gpu), profile("2g.20gb")))
    wish = first_available(
        "it",
        whole=exactly(GPU, of_gpu(gpu)),
        pair=exactly(MIG, of_gpu(gpu), profile("1g.10gb"), count=2),
    )
    space.add(claim("list", wish), pod("list", container("app", "list/it"), claims=["list"]))
    assert kinds(node.check(space.running("list")[0])["app"]) == ["1g.10gb", "1g.10gb"]


@pytest.mark.parametrize("device_class", [GPU, MIG])
def test_admin_access_to_a_device_that_is_held(device_class, use_node, admin, space):
    machine = "gpus: [{gpu: h100-80gb, mig: true}, {gpu: h100-80gb, mig: false}]\n"
    made = (("instance", "create", "2g.20gb", "--gpu", "0"),)
    node = use_node(machine=machine, before=made, options=("--mig", "static"))
    held = run(node, space, "holder", ask("it", device_class))
    looked_at = run(node, admin, "visitor", ask("it", device_class, adminAccess=True))
    assert looked_at == held
    admin.delete("visitor")
    assert node.check(space.pod("holder"))["app"] == held


def test_admin_access_waits_where_the_counters_are_used_up(node, space, admin, gpu):
    # The scheduler of 1.37 charges counters for admin access as well, so a held GPU that could be cut is not for it.
    run(node, space, "holder", ask("it", GPU, of_gpu(gpu)))
    admin.add(claim("visitor", ask("it", GPU, of_gpu(gpu), adminAccess=True)), pod("visitor", claims=["visitor"]))
    assert "cannot allocate all claims" in admin.unschedulable("visitor")


def test_admin_access_never_makes_a_partition(node, admin, gpu):
    wish = ask("it", MIG, of_gpu(gpu), adminAccess=True)
    admin.add(claim("visitor", wish), pod("visitor", claims=["visitor"]))
    admin.event("visitor", "FailedPrepareDynamicResources", "admin access only looks at what exists")
    assert node.simulation.instances() == set()


def test_pods_of_every_size_at_once(node, space):
    wishes = ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    names = [f"pod-{index}" for index in range(len(wishes))]
    for name, wish in zip(names, wishes, strict=True):
        space.add(claim(name, ask("it", MIG, profile(wish))), pod(name, claims=[name]))
    devices = [node.check(running)["app"][0] for running in space.running(*names)]
    assert kinds(devices) == wishes
    space.delete(*names)
    node.wait_clean()


def test_a_finished_pod_gives_its_partition_back(node, space):
    ended = container("app", "mig") | {"command": ["printenv", "NVIDIA_VISIBLE_DEVICES"]}
    space.add(claim("mig", ask("it", MIG)), pod("once", ended, claims=["mig"], restartPolicy="Never"))
    wait_for(lambda: space.pod("once")["status"]["phase"] == "Succeeded", "the pod to end", state=space.story)
    node.wait_clean()
    assert space.pod("once")


def test_a_pod_deleted_by_force_leaves_nothing(node, space):
    run(node, space, "forced", ask("it", MIG))
    space.server.delete("Pod", "forced", namespace=space.name, grace=0)
    space.gone("forced")
    node.wait_clean()
