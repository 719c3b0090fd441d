from collections.abc import Iterator

import pytest
from doubles.publishing import Offer
from support import planning
from support.bridging import Controllers
from support.server import Server
from support.yard import Yard

from dradriver.kube import Client
from dradriver.kube.connection import connect


@pytest.fixture(scope="session")
def admin(control_plane) -> Iterator[Client]:
    client = connect(control_plane.kubeconfig)
    yield client
    client.close()


@pytest.fixture
def offer(admin: Client, control_plane) -> Iterator[Offer]:
    with Offer(admin, control_plane.kubeconfig) as made:
        yield made


@pytest.fixture(scope="module")
def server(control_plane) -> Iterator[Server]:
    made = Server(control_plane.kubeconfig, programs=control_plane.programs)
    yield made
    made.close()


@pytest.fixture
def controllers(control_plane, server, admin, tmp_path) -> Iterator[Controllers]:
    made = Controllers(control_plane, server, admin, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def standing(control_plane, server, admin, tmp_path_factory) -> Iterator[Controllers]:
    """One controller for all tests of a file: each has names of its own."""
    made = Controllers(control_plane, server, admin, tmp_path_factory.mktemp("controller"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def yard(admin) -> Iterator[Yard]:
    made = Yard(admin)
    yield made
    made.close()


@pytest.fixture(scope="module")
def planned(control_plane, admin) -> Iterator[Server]:
    """A server on which a plan can be applied."""
    with planning.ready(control_plane, admin) as made:
        yield made


@pytest.fixture
def world(admin, planned, control_plane) -> Iterator[planning.World]:
    made = planning.World(admin, planned, control_plane.kubeconfig)
    yield made
    made.end()
