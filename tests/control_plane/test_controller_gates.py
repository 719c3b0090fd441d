"""The controller on clusters that cannot give classes an extended resource name, and on ones that learn it."""

import contextlib

import pytest
from support.bridging import Controllers, bridge
from support.cluster import Cluster, ClusterError
from support.server import Server
from support.yard import Yard

from controller.acting import unsupported_because
from dradriver.kube.connection import connect

pytestmark = pytest.mark.control_plane

RESOURCE, CLASS = "nvidia.com/gpu", "gpu.gpu.dradriver.dev"


@contextlib.contextmanager
def booted(folder, *options):
    made = Cluster(folder)
    try:
        made.up("--control-plane-only", *options)
        with contextlib.closing(connect(made.kubeconfig)) as admin:
            server = Server(made.kubeconfig, programs=made.programs)
            yield made, admin, server
            server.close()
    except ClusterError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        made.down()


@pytest.mark.other_kubernetes
@pytest.mark.timeout(3600)
def test_an_old_version_is_told_and_nothing_touched(tmp_path):
    """A real 1.34; what a newer one that emulates it calls its version is its own."""
    with booted(tmp_path / "cluster", "--kubernetes", "1.34.3", "--feature-gates", "DRAExtendedResource=true") as (
        cluster,
        admin,
        server,
    ):
        assert unsupported_because(admin).startswith("this is Kubernetes 1.34; use Kubernetes 1.35 or newer")
        controllers = Controllers(cluster, server, admin, tmp_path)
        controllers.start()
        controllers.add(bridge("gpu", RESOURCE))
        assert "this is Kubernetes 1.34" in controllers.wait_reason("gpu", "NotSupported")
        assert controllers.device_class(CLASS) is None
        controllers.delete("gpu")
        controllers.close()


def test_a_gate_that_is_off_is_found_out_and_when_it_is_on_again(tmp_path):
    with booted(tmp_path / "cluster", "--emulate", "1.35") as (cluster, admin, server):
        assert "drops spec.extendedResourceName" in unsupported_because(admin)
        controllers = Controllers(cluster, server, admin, tmp_path)
        controller = controllers.start()
        controllers.add(bridge("gpu", RESOURCE))
        message = controllers.wait_reason("gpu", "NotSupported")
        assert "DRAExtendedResource" in message
        assert controllers.conditions("gpu")["Degraded"][:2] == ("True", "NotSupported")
        assert controllers.device_class(CLASS) is None
        with contextlib.closing(Yard(admin)) as yard:
            yard.add_pod("waits", resource=RESOURCE)
            note = yard.told("waits", "NotSupported")
            assert note.startswith("ExtendedResourceBridge gpu: the API server drops spec.extendedResourceName")
        cluster.change(feature_gates="DRAExtendedResource=true")
        server.close()
        # It is asked again when the server is back, by the process that was there or by its successor.
        if not controller.running:
            controllers.start()
        controllers.wait_carrier(RESOURCE, CLASS)
        assert unsupported_because(admin) == ""
        controllers.close()
