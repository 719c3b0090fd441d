from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.apiserver import PATIENCE, ApiServer
from doubles.offers import QUICK, Counter
from doubles.pools import DRIVER, NODE

from dradriver.kube import Client
from dradriver.kube.connection import connect
from dradriver.publish import Publisher


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.put("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "uid": "node-uid"}})
        yield running


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[Client]:
    made = connect(server.kubeconfig(tmp_path))
    yield made
    made.close()


@pytest.fixture
def publish(client):
    made = []

    def start(slices=(), **options):
        given = {"pace": QUICK, "meter": Counter(), **options}
        publisher = Publisher(given.pop("client", client), driver=DRIVER, node_name=NODE, pool_name=NODE, **given)
        made.append(publisher)
        publisher.start()
        if slices:
            publisher.set_slices(slices)
        return publisher

    yield start
    for publisher in made:
        publisher.stop(PATIENCE)
