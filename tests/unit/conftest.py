from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.apiserver import ApiServer

from dradriver.kube import Client
from dradriver.kube.connection import connect

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch):
    """What a developer's shell goes through is none of the tests' business."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Iterator[Client]:
    made = connect(server.kubeconfig(tmp_path))
    yield made
    made.close()
