"""Base classes on a real API server, with bridges, charts of others and controllers that are killed in between."""

import random
import signal
import time
from contextlib import suppress

import pytest
from support.bridging import bridge, unique
from support.waiting import wait_for

from dradriver.kube import DEVICE_CLASSES, LEASES, ConflictError, NotFoundError

GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"
KEEP, ADOPT = ("--base-classes", "keep"), ("--base-classes", "adopt")
THEIRS = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
OURS = (
    "device.driver == 'gpu.nvidia.com' && has(device.attributes['gpu.nvidia.com'].type) && "
    "device.attributes['gpu.nvidia.com'].type == 'gpu'"
)


@pytest.fixture(autouse=True)
def none_at_first(admin):
    """No base classes; what was there before comes back."""
    former = [_remove(admin, name) for name in (GPU, MIG)]
    yield
    for name, item in zip((GPU, MIG), former, strict=True):
        _remove(admin, name)
        if item is not None:
            metadata = {key: item["metadata"].get(key, {}) for key in ("name", "labels", "annotations")}
            admin.create(DEVICE_CLASSES, item | {"metadata": metadata})


def _remove(admin, name):
    try:
        found = admin.get(DEVICE_CLASSES, name)
        admin.delete(DEVICE_CLASSES, name)
    except NotFoundError:
        return None
    return found


@pytest.fixture
def resource():
    return f"nvidia.com/{unique('base')}"


def chart(expression=THEIRS, **spec):
    """The class as NVIDIA's chart makes it."""
    return {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": DEVICE_CLASSES.kind,
        "metadata": {"name": GPU, "labels": {"app.kubernetes.io/managed-by": "Helm"}},
        "spec": {"selectors": [{"cel": {"expression": expression}}], **spec},
    }


def wait_spec(controllers, expected, name=GPU):
    """Wait until a class has this expression and extended resource name."""

    def now():
        spec = (controllers.device_class(name) or {}).get("spec", {"selectors": [{"cel": {"expression": ""}}]})
        return spec["selectors"][0]["cel"]["expression"], spec.get("extendedResourceName", "")

    wait_for(
        lambda: now() == expected, f"{name} to be {expected}", seconds=60, state=lambda: (now(), controllers.log())
    )


def notices(controllers, name=GPU):
    selector = f"involvedObject.kind=DeviceClass,involvedObject.name={name}"
    events = controllers.server.list("Event", namespace="default", fieldSelector=selector)
    return {each["reason"]: each["message"] for each in events}


def gauge(controller, state):
    line = f'dradriver_controller_base_classes{{state="{state}"}} '
    return next((each.removeprefix(line) for each in controller.page("/metrics").splitlines() if line in each), "")


def test_they_are_made_kept_true_and_made_again(controllers, admin):
    controller = controllers.start(*KEEP)
    wait_spec(controllers, (OURS, ""))
    wait_spec(controllers, (OURS.replace("'gpu'", "'mig'"), ""), MIG)
    labels = controllers.device_class(GPU)["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/managed-by": "dradriver-controller", "dradriver.dev/base-class": "true"}
    wait_for(lambda: gauge(controller, "kept") == "2.0", "the gauge", state=lambda: controller.page("/metrics"))
    admin.patch(DEVICE_CLASSES, GPU, {"spec": {"selectors": [{"cel": {"expression": "true"}}]}})
    wait_spec(controllers, (OURS, ""))
    wait_for(lambda: "it was put back" in notices(controllers).get("BaseClassReverted", ""), "the notice")
    admin.patch(DEVICE_CLASSES, GPU, {"spec": {"extendedResourceName": "nvidia.com/mine"}})
    wait_spec(controllers, (OURS, ""))
    uid = controllers.device_class(GPU)["metadata"]["uid"]
    admin.delete(DEVICE_CLASSES, GPU)
    wait_spec(controllers, (OURS, ""))
    assert controllers.device_class(GPU)["metadata"]["uid"] != uid


def test_those_of_others_are_left_alone_and_reported_where_they_differ(controllers, admin):
    admin.create(DEVICE_CLASSES, chart(extendedResourceName="nvidia.com/theirs"))
    controller = controllers.start(*KEEP)
    wait_for(lambda: gauge(controller, "foreign") == "1.0", "the gauge", state=lambda: controller.page("/metrics"))
    admin.patch(DEVICE_CLASSES, GPU, {"spec": {"selectors": [{"cel": {"expression": "true"}}]}})
    wait_for(lambda: "BaseClassDiffers" in notices(controllers), "the notice", state=controllers.log)
    assert gauge(controller, "differs") == "1.0"
    assert any(entry.get("reason") == "BaseClassDiffers" for entry in controller.entries())
    wait_spec(controllers, ("true", "nvidia.com/theirs"))


def test_those_of_others_are_taken_over_where_that_is_wanted(controllers, admin, resource):
    """The name that the chart gives is a rival of the bridge until then."""
    admin.create(DEVICE_CLASSES, chart(extendedResourceName=resource))
    first = controllers.start(*KEEP)
    name = resource.partition("/")[2]
    controllers.add(bridge(name, resource))
    assert GPU in controllers.wait_reason(name, "NameOnOtherClass")
    first.stop()
    with controllers.referee() as referee:
        controllers.start(*ADOPT)
        wait_spec(controllers, (OURS, ""))
        controllers.wait_carrier(resource, f"{name}.gpu.dradriver.dev")
    assert max(map(len, referee.carriers(resource))) == 1
    wait_for(lambda: "BaseClassAdopted" in notices(controllers), "the notice", state=controllers.log)


def test_a_bridge_that_adopts_one_has_it_until_it_goes(controllers, admin, resource):
    controllers.start(*KEEP)
    wait_spec(controllers, (OURS, ""))
    before = controllers.device_class(GPU)
    name = resource.partition("/")[2]
    controllers.add(bridge(name, resource, deviceClassName=GPU, select={"type": "gpu", "productName": "H100"}))
    controllers.wait_reason(name, "ClassNotOurs")
    controllers.change(name, adopt=True)
    controllers.wait_carrier(resource, GPU)
    assert "H100" in controllers.device_class(GPU)["spec"]["selectors"][0]["cel"]["expression"]
    # Deleted by somebody, it comes back as the bridge's.
    admin.delete(DEVICE_CLASSES, GPU)
    controllers.wait_carrier(resource, GPU)
    controllers.delete(name)
    wait_spec(controllers, (OURS, ""))
    after = controllers.device_class(GPU)
    for part in ("labels", "annotations"):
        assert after["metadata"][part] == before["metadata"][part]
    assert after["spec"] == before["spec"]


def test_a_configuration_that_is_not_understood(controllers, resource):
    """No class is made with it, and one that is there stays as it was."""
    controllers.start()
    name = resource.partition("/")[2]
    good = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    bad = good | {"sharing": {"strategy": "Timeslicing"}}
    controllers.add(bridge(name, resource, config=[good, bad]))
    message = controllers.wait_reason(name, "InvalidConfig")
    assert message == (
        "the driver would not understand spec.config[1].sharing.strategy: Input should be 'TimeSlicing' or 'MPS'; "
        "correct it; until then its DeviceClass is not made"
    )
    assert controllers.conditions(name)["Degraded"][:2] == ("True", "InvalidConfig")
    assert controllers.carriers(resource) == set()
    controllers.change(name, config=[good])
    controllers.wait_carrier(resource, f"{name}.gpu.dradriver.dev")
    before = controllers.device_class(f"{name}.gpu.dradriver.dev")
    controllers.change(name, config=[bad], select={"type": "mig"})
    assert controllers.wait_reason(name, "InvalidConfig").endswith("its DeviceClass stays as it was")
    assert controllers.device_class(f"{name}.gpu.dradriver.dev") == before
    controllers.told(name, "InvalidConfig")
    controllers.change(name, mode="Disabled")
    controllers.wait_carrier(resource)


# --- anything in any order ------------------------------------------------------------------------


class Troublemaker:
    """Administrators and charts that do what they like, and a machine that kills controllers."""

    def __init__(self, controllers, admin, resource, *, seed):
        self.chance = random.Random(seed)
        self.controllers = controllers
        self.admin = admin
        self.resource = resource
        self.name = resource.partition("/")[2]
        self.running = None
        self.done = []

    def run(self, steps):
        acts = (
            self.bridge,
            self.bridge,
            self.unbridge,
            self.adopt,
            self.adopt,
            self.edit,
            self.chart,
            self.remove,
            self.kill,
        )
        for _ in range(steps):
            act = self.chance.choice(acts)
            self.done.append(act.__name__)
            try:
                act()
            except (NotFoundError, ConflictError):
                # It is not there, or is already.
                continue
            self.chance.choice((lambda: None, self.pause, self.pause))()

    def pause(self):
        """Give the controller the time for one write or two."""
        before = self.controllers.admin.list(DEVICE_CLASSES).resource_version
        for _ in range(self.chance.randint(1, 20)):
            if self.controllers.admin.list(DEVICE_CLASSES).resource_version != before:
                return
            time.sleep(0.05)

    def bridge(self):
        which = self.chance.choice((self.name, f"{self.name}-base"))
        more = {"deviceClassName": GPU} if which.endswith("base") else {}
        self.controllers.add(bridge(which, self.resource, adopt=self.chance.random() < 0.5, **more))

    def unbridge(self):
        self.controllers.delete(self.chance.choice((self.name, f"{self.name}-base")), wait=False)

    def adopt(self):
        which = self.chance.choice((self.name, f"{self.name}-base"))
        self.controllers.change(which, adopt=self.chance.random() < 0.7)

    def edit(self):
        self.admin.patch(DEVICE_CLASSES, GPU, {"metadata": {"labels": {"edited": "true"}}, "spec": {"config": None}})

    def chart(self):
        """Without the name: that would be somebody else's second class, not ours."""
        self.admin.create(DEVICE_CLASSES, chart())

    def remove(self):
        self.admin.delete(DEVICE_CLASSES, GPU)

    def kill(self):
        if self.running is not None:
            self.running.stop(signal.SIGKILL)
            # As after 15 s without a renewal.
            self.admin.delete(LEASES, "dradriver-controller", namespace="dradriver")
        self.running = self.controllers.start(*self.chance.choice((KEEP, ADOPT)))


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_no_two_classes_carry_one_name(controllers, admin, resource, seed):
    trouble = Troublemaker(controllers, admin, resource, seed=seed)
    trouble.kill()
    with controllers.referee() as referee:
        trouble.run(40)
        for item in controllers.all_bridges():
            with suppress(NotFoundError):
                controllers.delete(item["metadata"]["name"])
        wait_for(
            lambda: {GPU, MIG} <= {item["metadata"]["name"] for item in admin.list(DEVICE_CLASSES).items},
            "both base classes to be there",
            state=lambda: (trouble.done, controllers.log()[-3000:]),
        )
    assert controllers.carriers(resource) == set()
    carried = referee.carriers(resource)
    assert max(map(len, carried)) <= 1, (trouble.done, carried)
    print(f"seed {seed}: {len(trouble.done)} acts, {len(carried)} changes of who carries the name")
