"""A container sees the devices that it names, and nothing else."""

from support.manifests import GPU, MIG, claim, container, pod, profile, request
from support.sight import NOTHING, look

SMALL = profile("1g.10gb")


def test_a_container_without_claims_sees_nothing(node, space):
    space.add(
        claim("gpu", request("gpu", GPU)),
        pod("mixed", container("with", "gpu"), container("without"), claims=["gpu"]),
    )
    (running,) = space.running("mixed")
    seen = node.check(running)
    assert [len(devices) for devices in seen.values()] == [1, 0]
    assert look(node.server, running, "without") == NOTHING


def test_a_pod_without_claims_sees_nothing(node, space):
    space.add(
        claim("gpu", request("gpu", GPU)),
        pod("with", claims=["gpu"]),
        pod("without", container("app")),
    )
    space.running("with")
    (running,) = space.running("without")
    assert look(node.server, running, "app") == NOTHING


def test_requests_of_one_claim_come_into_the_containers_that_name_them(node, space):
    space.add(
        claim("many", request("gpu", GPU), request("small", MIG, SMALL), request("big", MIG, profile("3g.40gb"))),
        pod(
            "split",
            container("gpu", "many/gpu"),
            container("both", "many/small", "many/big"),
            container("all", "many"),
            container("none"),
            claims=["many"],
        ),
    )
    (running,) = space.running("split")
    seen = {name: [device.name for device in devices] for name, devices in node.check(running).items()}
    assert [len(names) for names in seen.values()] == [1, 2, 3, 0]
    assert set(seen["all"]) == {*seen["gpu"], *seen["both"]}
    assert not set(seen["gpu"]) & set(seen["both"])


def test_two_claims_in_one_container(node, space):
    space.add(
        claim("left", request("it", MIG, SMALL)),
        claim("right", request("it", MIG, profile("2g.20gb"))),
        pod("two", container("app", "left", "right"), container("one", "right"), claims=["left", "right"]),
    )
    (running,) = space.running("two")
    seen = node.check(running)
    assert [device.instance["profile"] for device in seen["app"]] == ["1g.10gb", "2g.20gb"]
    assert [device.instance["profile"] for device in seen["one"]] == ["2g.20gb"]


def test_a_claim_and_a_whole_gpu_in_one_container(node, space):
    space.add(
        claim("gpu", request("it", GPU)),
        claim("mig", request("it", MIG, SMALL)),
        pod("two", claims=["gpu", "mig"]),
    )
    (running,) = space.running("two")
    whole, partition = node.check(running)["app"]
    assert whole.instance is None
    assert partition.gpu["uuid"] != whole.gpu["uuid"]


def test_neighbours_on_one_gpu_do_not_see_each_other(node, space):
    names = ["one", "two", "three"]
    for name in names:
        space.add(claim(name, request("it", MIG, SMALL)), pod(name, claims=[name]))
    devices = [node.check(running)["app"][0] for running in space.running(*names)]
    assert len({device.gpu["uuid"] for device in devices}) == 1
    assert len({device.uuid for device in devices}) == 3


def test_pods_that_share_a_claim_see_the_same_device_until_the_last_is_gone(node, space):
    space.add(claim("shared", request("it", MIG, SMALL)), pod("one", claims=["shared"]), pod("two", claims=["shared"]))
    seen = [node.check(running)["app"] for running in space.running("one", "two")]
    assert seen[0] == seen[1]
    space.delete("one")
    assert node.check(space.pod("two"))["app"] == seen[1]


def test_an_init_container_sees_its_device_too(node, space):
    first = container("first", "mig") | {"command": ["sh", "-c", "ls /dev/nvidia-caps; printenv DRADRIVER_DEVICES"]}
    space.add(claim("mig", request("it", MIG, SMALL)), pod("init", claims=["mig"], initContainers=[first]))
    (running,) = space.running("init")
    (device,) = node.check(running)["app"]
    printed = node.server.kubectl("logs", "-n", space.name, "init", "-c", "first").split()
    caps = sorted(name for name in look(node.server, running, "app").nodes if name.startswith("nvidia-caps/"))
    assert [f"nvidia-caps/{name}" for name in printed[:-1]] == caps
    assert printed[-1] == device.uuid


def test_the_drivers_libraries_are_there(node, space):
    space.add(claim("gpu", request("gpu", GPU)), pod("app", claims=["gpu"]))
    space.running("app")
    version = node.simulation.show()["driver_version"]
    folder = "/usr/lib/x86_64-linux-gnu"
    there = node.server.kubectl("exec", "-n", space.name, "app", "--", "ls", folder).split()
    assert {f"libcuda.so.{version}", f"libnvidia-ml.so.{version}"} <= set(there)
