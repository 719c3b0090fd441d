from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.apiserver import ApiServer

from dradriver.kube import Client
from dradriver.kube.connection import connect


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
