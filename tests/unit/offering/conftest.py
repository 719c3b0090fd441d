"""A node whose offering is driven by hand."""

import pytest
from doubles.apiserver import ApiServer
from doubles.offering import OfferingNode

from dradriver.kube.connection import connect


@pytest.fixture
def make(tmp_path):
    made, clients = [], []
    with ApiServer() as server:

        def build(**fields):
            clients.append(connect(server.kubeconfig(tmp_path)))
            folder = tmp_path / f"node-{len(made)}"
            folder.mkdir()
            made.append(OfferingNode(folder, server, clients[-1], **fields))
            return made[-1]

        yield build
        for node in made:
            node.nvml.close()
        for client in clients:
            client.close()


@pytest.fixture
def node(make):
    return make()
