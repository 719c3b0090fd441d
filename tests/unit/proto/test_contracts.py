"""The generated messages against the kubelet's wire contracts, as numbers written down independently."""

import subprocess
import sys
from pathlib import Path

import pytest

from dradriver.proto import (
    deviceplugin_v1beta1_pb2,
    dra_health_v1_pb2,
    dra_v1_pb2,
    podresources_v1_pb2,
    registration_v1_pb2,
)

REPOSITORY = Path(__file__).parents[3]
DRA = "k8s.io.kubelet.pkg.apis.dra.v1"

METHODS = {
    registration_v1_pb2: {
        "/pluginregistration.Registration/GetInfo",
        "/pluginregistration.Registration/NotifyRegistrationStatus",
    },
    dra_v1_pb2: {f"/{DRA}.DRAPlugin/NodePrepareResources", f"/{DRA}.DRAPlugin/NodeUnprepareResources"},
    dra_health_v1_pb2: {"/v1.DRAResourceHealth/NodeWatchResources"},
    podresources_v1_pb2: {
        "/v1.PodResourcesLister/List",
        "/v1.PodResourcesLister/GetAllocatableResources",
        "/v1.PodResourcesLister/Get",
    },
    deviceplugin_v1beta1_pb2: {
        "/v1beta1.Registration/Register",
        "/v1beta1.DevicePlugin/GetDevicePluginOptions",
        "/v1beta1.DevicePlugin/ListAndWatch",
        "/v1beta1.DevicePlugin/GetPreferredAllocation",
        "/v1beta1.DevicePlugin/Allocate",
        "/v1beta1.DevicePlugin/PreStartContainer",
    },
}

MESSAGES = [
    # (message, bytes on the wire written by hand: tag, length, value)
    (registration_v1_pb2.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["a", "b"]),
     b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01a\x22\x01b"),
    (registration_v1_pb2.RegistrationStatus(plugin_registered=True, error="x"), b"\x08\x01\x12\x01x"),
    (dra_v1_pb2.NodePrepareResourcesRequest(claims=[dra_v1_pb2.Claim(namespace="s", uid="u", name="n")]),
     b"\x0a\x09\x0a\x01s\x12\x01u\x1a\x01n"),
    (dra_v1_pb2.NodePrepareResourcesResponse(claims={"u": dra_v1_pb2.NodePrepareResourceResponse(error="x")}),
     b"\x0a\x08\x0a\x01u\x12\x03\x12\x01x"),
    (dra_v1_pb2.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s"),
     b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"),
    (dra_v1_pb2.NodeUnprepareResourcesResponse(claims={"u": dra_v1_pb2.NodeUnprepareResourceResponse(error="x")}),
     b"\x0a\x08\x0a\x01u\x12\x03\x0a\x01x"),
    (dra_health_v1_pb2.DeviceHealth(
        device=dra_health_v1_pb2.DeviceIdentifier(pool_name="p", device_name="d"),
        health=dra_health_v1_pb2.UNHEALTHY, last_updated_time=3, health_check_timeout_seconds=4, message="m"),
     b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x03\x20\x04\x2a\x01m"),
    (podresources_v1_pb2.ContainerResources(
        name="c",
        devices=[podresources_v1_pb2.ContainerDevices(resource_name="r", device_ids=["i"])],
        dynamic_resources=[podresources_v1_pb2.DynamicResource(
            claim_name="n", claim_namespace="s",
            claim_resources=[podresources_v1_pb2.ClaimResource(
                cdi_devices=[podresources_v1_pb2.CDIDevice(name="k")],
                driver_name="v", pool_name="p", device_name="d", share_id="h")])]),
     b"\x0a\x01c\x12\x06\x0a\x01r\x12\x01i\x2a\x19\x12\x01n\x1a\x01s\x22\x11\x0a\x03\x0a\x01k\x12\x01v\x1a\x01p\x22\x01d\x2a\x01h"),
    (deviceplugin_v1beta1_pb2.RegisterRequest(
        version="v", endpoint="e", resource_name="r",
        options=deviceplugin_v1beta1_pb2.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True)),
     b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x04\x08\x01\x10\x01"),
    (deviceplugin_v1beta1_pb2.Device(
        ID="i", health="h",
        topology=deviceplugin_v1beta1_pb2.TopologyInfo(nodes=[deviceplugin_v1beta1_pb2.NUMANode(ID=1)])),
     b"\x0a\x01i\x12\x01h\x1a\x04\x0a\x02\x08\x01"),
    (deviceplugin_v1beta1_pb2.ContainerAllocateResponse(
        envs={"a": "b"}, cdi_devices=[deviceplugin_v1beta1_pb2.CDIDevice(name="k")]),
     b"\x0a\x06\x0a\x01a\x12\x01b\x2a\x03\x0a\x01k"),
]  # fmt: skip


@pytest.mark.parametrize("module", METHODS)
def test_methods_have_the_kubelets_names(module):
    services = module.DESCRIPTOR.services_by_name.values()
    found = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert found == METHODS[module]


@pytest.mark.parametrize(("message", "wire"), MESSAGES)
def test_fields_have_the_kubelets_numbers_and_types(message, wire):
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


def test_an_unset_share_is_told_from_an_empty_one():
    assert dra_v1_pb2.Device().SerializeToString() == b""
    assert dra_v1_pb2.Device(share_id="").SerializeToString() == b"\x2a\x00"


def test_every_source_has_a_path_of_its_own_in_the_pool():
    names = {module.DESCRIPTOR.name for module in METHODS}
    assert len(names) == len(METHODS)
    assert all(name.startswith("dradriver/proto/") for name in names)


def test_committed_files_match_their_sources():
    done = subprocess.run(
        [sys.executable, REPOSITORY / "hack/proto", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
