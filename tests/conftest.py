"""Clusters for tests: booted once, only where a test wants one, and taken down whatever happens."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.cluster import Cluster, ClusterError, build, is_root

EXISTING = "DRADRIVER_TEST_CLUSTER"
"""Variable with the --dir of a cluster that runs already and is to stay."""

_ON_REQUEST = "other_kubernetes"
"""Marker of tests that run only where -m names it."""

_MARKERS = {"cluster": pytest.mark.node, "control_plane": pytest.mark.control_plane}


# A machine that others use, too, is slow now and then, which says nothing of what is tested.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a cluster, so that no test can forget it, and leave out what nobody asked for."""
    for item in items:
        for fixture, marker in _MARKERS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
    if _ON_REQUEST not in config.option.markexpr:
        others = [item for item in items if item.get_closest_marker(_ON_REQUEST)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the programs before the first test: that may take a quarter of an hour, a test may not."""
    wanted = {name for item in session.items for name in _MARKERS if name in getattr(item, "fixturenames", ())}
    if not wanted or session.config.option.collectonly:
        return
    # Else a CI system that loses its patience would leave processes behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if EXISTING in os.environ:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        build([] if is_root() else ["--control-plane-only"])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Kubernetes node, `node-a`, for all tests."""
    if EXISTING in os.environ:
        yield _existing()
        return
    if not is_root():
        pytest.fail("a Kubernetes node needs root's rights; leave these tests out with -m 'not node'", pytrace=False)
    yield from _booted(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server: the one of `cluster` where tests boot that anyway and can, else one without nodes."""
    boots_node = is_root() and any("cluster" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if EXISTING in os.environ or boots_node:
        yield request.getfixturevalue("cluster")
        return
    yield from _booted(tmp_path_factory.mktemp("cluster"), "--control-plane-only")


def _existing() -> Cluster:
    found = Cluster(Path(os.environ[EXISTING]).absolute())
    if not found.kubeconfig.exists():
        pytest.fail(f"{EXISTING}={found.folder} has no cluster; boot one there with `hack/cluster up`", pytrace=False)
    return found


def _booted(folder: Path, *options: str) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        made.up(*options)
        yield made
    except ClusterError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        made.down()
