from collections.abc import Iterator

import pytest
from doubles.publishing import Offer

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
