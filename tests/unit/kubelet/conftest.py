import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dradriver.kubelet import SocketPaths, socket_paths

DRIVER = "gpu.nvidia.com"


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet's root folder with a short name: tmp_path's may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        (Path(folder) / "plugins_registry").mkdir()
        yield Path(folder)


@pytest.fixture
def paths(root: Path) -> SocketPaths:
    return socket_paths(DRIVER, plugins_folder=root / "plugins", registry_folder=root / "plugins_registry")
