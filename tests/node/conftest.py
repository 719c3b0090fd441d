"""A node with GPUs and a namespace for each test, and a look at what the test left behind."""

import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.bridging import Controllers
from support.cluster import Cluster
from support.gpunode import GpuNode, Keeper, Setup
from support.space import Space

from dradriver.kube import Client
from dradriver.kube.connection import connect

UseNode = Callable[..., GpuNode]


@pytest.fixture(scope="session")
def keeper(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    made = Keeper(cluster, tmp_path_factory.mktemp("machines"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def use_node(keeper: Keeper) -> Iterator[UseNode]:
    """Gives a node as described by the fields of `Setup`; afterwards nothing of claims may be left on it."""

    def use(**fields: Any) -> GpuNode:
        return keeper.use(Setup(**fields))

    yield use
    if keeper.current is not None:
        try:
            keeper.current.wait_clean()
        except AssertionError:
            keeper.current.spoilt = True
            raise


@pytest.fixture
def node(use_node: UseNode) -> GpuNode:
    """Eight simulated H100, every partition offered."""
    return use_node()


@pytest.fixture
def sick(use_node: UseNode) -> Iterator[UseNode]:
    """Gives nodes that no other test gets: what GPUs said within the last hour makes the plugin wait longer."""
    made: list[GpuNode] = []

    def use(**fields: Any) -> GpuNode:
        made.append(use_node(**fields))
        return made[-1]

    yield use
    for node in made:
        node.spoilt = True


@pytest.fixture
def space(keeper: Keeper, use_node: UseNode, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace, cleared at the end by whatever node there is then."""
    readable = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    made = Space(keeper.server, f"{readable}-{secrets.token_hex(3)}", labels=keeper.labels)
    yield made
    if keeper.current is not None and not keeper.current.plugin.running:
        keeper.current.start()
    made.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show beside a failure what the cluster and the plugin say."""
    report: Any = yield
    if report.failed:
        values = getattr(item, "funcargs", {})
        if (keeper := values.get("keeper")) is not None and keeper.current is not None:
            report.sections.append(("plugin", keeper.current.plugin.log()[-20_000:]))
        if report.when == "call" and (space := values.get("space")) is not None:
            report.sections.append(("namespace", space.story()))
    return report


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Iterator[Client]:
    client = connect(cluster.kubeconfig)
    yield client
    client.close()


@pytest.fixture
def controllers(cluster: Cluster, keeper: Keeper, admin: Client, tmp_path: Path) -> Iterator[Controllers]:
    made = Controllers(cluster, keeper.server, admin, tmp_path)
    yield made
    made.close()
