"""What the CRD of bridges lets through, on a real API server."""

import copy

import pytest
from support.bridging import bridge, install, unique
from support.server import Server

from controller.api import BRIDGES, decode_bridge
from dradriver.kube import InvalidError


@pytest.fixture(scope="module")
def crd(control_plane):
    server = Server(control_plane.kubeconfig, programs=control_plane.programs)
    install(server)
    yield server
    server.close()


@pytest.fixture
def make(crd, admin):
    """Creates a bridge of a name that no other test has; it is removed at the end."""
    made = []

    def create(**spec):
        name = unique("bridge")
        body = bridge(name, f"nvidia.com/{name}")
        body["spec"].update(spec)
        answer = admin.create(BRIDGES, body)
        made.append(name)
        return answer

    yield create
    for name in made:
        admin.delete(BRIDGES, name)


GOOD = {
    "type": {"select": {"type": "gpu"}},
    "profile": {"select": {"profile": "1g.10gb"}},
    "profile of type mig": {"select": {"type": "mig", "profile": "1g.10gb+me"}},
    "profile without media": {"select": {"profile": "1g.24gb-me"}},
    "profile with graphics": {"select": {"profile": "1g.24gb+gfx"}},
    "any type": {"select": {"type": "any", "renamed": False}},
    "whole GPUs and profiles": {"select": {"type": "any", "profiles": ["1g.10gb", "1g.10gb+me"]}},
    "profiles": {"select": {"type": "mig", "profiles": ["1g.10gb"]}},
    "product": {"select": {"type": "gpu", "productName": "NVIDIA H100 80GB HBM3"}},
    "memory": {"select": {"type": "mig", "memory": {"min": "10Gi", "max": "20Gi"}}},
    "least memory": {"select": {"type": "mig", "memory": {"min": "9728Mi"}}},
    "sharing": {"select": {"type": "gpu", "sharing": "time-slicing"}},
    "renamed": {"select": {"type": "gpu", "sharing": "time-slicing", "renamed": True}},
    "not renamed": {"select": {"type": "gpu", "renamed": False}},
    "cel": {"select": {"cel": "device.attributes['gpu.nvidia.com'].type == 'gpu'"}},
    "config": {
        "config": [
            {
                "apiVersion": "resource.nvidia.com/v1beta1",
                "kind": "GpuConfig",
                "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            }
        ]
    },
    "class": {"deviceClassName": "my-gpus.example.com"},
    "mode": {"mode": "WhenReady"},
    "adopt": {"adopt": True, "deviceClassName": "gpu.nvidia.com"},
}

BAD = {
    "no select": ({"select": {}}, "by type, profile or cel"),
    "product only": ({"select": {"productName": "H100"}}, "by type, profile or cel"),
    "memory only": ({"select": {"memory": {"min": "1Gi"}}}, "by type, profile or cel"),
    "unknown type": ({"select": {"type": "vgpu"}}, "supported values"),
    "unknown field": ({"select": {"type": "gpu", "profil": "x"}}, "unknown field"),
    "profile of whole GPUs": ({"select": {"type": "gpu", "profile": "1g.10gb"}}, "only devices of type mig"),
    "profile of any type": ({"select": {"type": "any", "profile": "1g.10gb"}}, "only devices of type mig"),
    "profiles of whole GPUs": ({"select": {"type": "gpu", "profiles": ["1g.10gb"]}}, "type mig or any"),
    "profiles of no type": ({"select": {"cel": "true", "profiles": ["1g.10gb"]}}, "type mig or any"),
    "profile and profiles": (
        {"select": {"type": "mig", "profile": "1g.10gb", "profiles": ["1g.10gb"]}},
        "not with profile",
    ),
    "no profiles": ({"select": {"type": "mig", "profiles": []}}, "profiles"),
    "misspelt profiles": ({"select": {"type": "mig", "profiles": ["1g.10GB"]}}, "profiles"),
    "misspelt profile": ({"select": {"profile": "1g.10GB"}}, "profile"),
    "empty memory": ({"select": {"type": "gpu", "memory": {}}}, "min, max or both"),
    "no quantity": ({"select": {"type": "gpu", "memory": {"min": "ten"}}}, "quantity"),
    "negative memory": ({"select": {"type": "gpu", "memory": {"min": "-1Gi"}}}, "quantity"),
    "min above max": ({"select": {"type": "gpu", "memory": {"min": "2Gi", "max": "1Gi"}}}, "above max"),
    "unknown sharing": ({"select": {"type": "gpu", "sharing": "mig"}}, "supported values"),
    "renamed in words": ({"select": {"type": "gpu", "renamed": "yes"}}, "must be of type boolean"),
    "empty cel": ({"select": {"cel": ""}}, "cel"),
    "unqualified name": ({"resourceName": "gpu"}, "resourceName"),
    "two slashes": ({"resourceName": "a.b/c/d"}, "resourceName"),
    "capitals in the domain": ({"resourceName": "NVIDIA.com/gpu"}, "resourceName"),
    "kubernetes.io": ({"resourceName": "x.kubernetes.io/gpu"}, "below kubernetes.io"),
    "requests.": ({"resourceName": "requests.nvidia.com/gpu"}, "requests."),
    "long name": ({"resourceName": f"nvidia.com/{'g' * 64}"}, "63 characters"),
    "class without gpu": ({"deviceClassName": "cards.example.com"}, 'must contain "gpu"'),
    "no class name": ({"deviceClassName": "GPU_1"}, "deviceClassName"),
    "unknown mode": ({"mode": "Later"}, "supported values"),
    "config of another": ({"config": [{"apiVersion": "v1", "kind": "GpuConfig"}]}, "supported values"),
    "config without kind": ({"config": [{"apiVersion": "resource.nvidia.com/v1beta1"}]}, "kind"),
    "unknown field of the spec": ({"deviceClass": "gpu"}, "unknown field"),
}


@pytest.mark.parametrize("spec", GOOD.values(), ids=GOOD)
def test_good_bridges_are_taken_and_understood(spec, make):
    stored = make(**spec)
    read = decode_bridge(stored).spec
    assert read.resource_name == stored["spec"]["resourceName"]
    for field, value in spec.items():
        assert stored["spec"][field] == value


@pytest.mark.parametrize(("spec", "reason"), BAD.values(), ids=BAD)
def test_bad_bridges_are_refused_in_words(spec, reason, make):
    with pytest.raises(InvalidError) as caught:
        make(**spec)
    assert reason.lower() in str(caught.value).lower()


def test_what_is_left_out_gets_its_default(make):
    stored = make()
    assert (stored["spec"]["mode"], stored["spec"]["adopt"]) == ("Enabled", False)


def test_a_name_that_is_no_label_value_is_refused(crd, admin):
    with pytest.raises(InvalidError, match="label value"):
        admin.create(BRIDGES, bridge("b" * 64, "nvidia.com/gpu"))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {"resourceName": "nvidia.com/other"}, "cannot be changed"),
        ({}, {"deviceClassName": "late-gpu"}, "cannot be changed"),
        ({"deviceClassName": "a-gpu"}, {"deviceClassName": "b-gpu"}, "cannot be changed"),
        ({"deviceClassName": "a-gpu"}, {"deviceClassName": None}, "cannot be changed"),
    ],
)
def test_what_claims_and_pods_name_cannot_be_changed(before, after, reason, make, admin):
    name = make(**before)["metadata"]["name"]
    with pytest.raises(InvalidError, match=reason):
        admin.patch(BRIDGES, name, {"spec": after})


def test_the_rest_can_be_changed(make, admin):
    name = make(deviceClassName="a-gpu")["metadata"]["name"]
    spec = {"select": {"type": "mig", "profile": "2g.20gb"}, "mode": "Disabled", "adopt": True}
    changed = admin.patch(BRIDGES, name, {"spec": spec})
    assert changed["spec"]["mode"] == "Disabled"
    assert changed["metadata"]["generation"] == 2


def test_the_status_is_written_apart(make, admin):
    stored = make()
    body = copy.deepcopy(stored) | {"status": {"deviceClassName": "x"}}
    assert "status" not in admin.replace(BRIDGES, body)


def test_columns_and_the_short_name(make, crd, admin):
    name = make(select={"type": "mig", "profile": "1g.10gb"})["metadata"]["name"]
    status = {
        "deviceClassName": "some-gpu",
        "devices": {"published": 56, "allocatable": 48},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Serving",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
    admin.patch(BRIDGES, name, {"status": status}, subresource="status")
    head, line = crd.kubectl("get", "erb", name).splitlines()
    assert head.split() == ["NAME", "RESOURCE", "CLASS", "MODE", "DEVICES", "FREE", "READY", "AGE"]
    assert line.split()[:7] == [name, f"nvidia.com/{name}", "some-gpu", "Enabled", "56", "48", "True"]
    wide = crd.kubectl("get", "extendedresourcebridges.dradriver.dev", name, "-o", "wide")
    assert "Serving" in wide
