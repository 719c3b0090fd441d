import pytest
from doubles.preparing import PreparingNode


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
