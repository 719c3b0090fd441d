import pytest
from doubles.apiserver import PATIENCE, ApiServer
from doubles.offers import QUICK, Counter
from doubles.pools import DRIVER, NODE

from dradriver.publish import Publisher


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    """An API server that has the node."""
    server.put("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "uid": "node-uid"}})
    return server


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
