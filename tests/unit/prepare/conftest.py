import io

import pytest
from doubles.preparing import PreparingNode

from dradriver.observe import logs


@pytest.fixture(scope="session", autouse=True)
def _as_in_production():
    """Log as the plugin does: structlog's own default draws tracebacks with rich, which takes seconds."""
    logs.configure(stream=io.StringIO())


@pytest.fixture
def make_node(tmp_path):
    nodes = []

    def make(**fields):
        folder = tmp_path / f"node-{len(nodes)}"
        folder.mkdir()
        nodes.append(PreparingNode(folder=folder, **fields))
        return nodes[-1]

    yield make
    for node in nodes:
        node.nvml.close()


@pytest.fixture
def node(make_node):
    return make_node()
