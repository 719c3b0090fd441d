# SPDX-License-Identifier: Apache-2.0
"""Makes hack/localcluster importable and gives each test a cluster directory and a cache of its own."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

from localcluster.common import Layout
from localcluster.spec import Wish, fresh


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dradriver"


@pytest.fixture
def layout(tmp_path):
    root = tmp_path / "cluster"
    root.mkdir()
    return Layout(root)


@pytest.fixture
def made():
    return fresh(Wish(nodes=2), token="secret-token")
