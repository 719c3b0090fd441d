# SPDX-License-Identifier: Apache-2.0
"""make and hack/cluster keep what they build in one folder, whatever the environment says."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from localcluster import common

REPOSITORY = Path(common.__file__).resolve().parents[2]


def make(environment):
    kept = {name: value for name, value in os.environ.items() if name not in {"HOME", "XDG_CACHE_HOME", "MAKEFLAGS"}}
    words = ["make", "-C", str(REPOSITORY), "--print-data-base", "--question", "help"]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=kept | environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"HOME": ""},
        {"HOME": "relative"},
        {"HOME": "/some/home"},
        {"XDG_CACHE_HOME": "/some/cache"},
        {"XDG_CACHE_HOME": "relative"},
        {"XDG_CACHE_HOME": "relative", "HOME": "/some/home"},
        {"XDG_CACHE_HOME": "", "HOME": "/some/home"},
    ],
)
def test_both_use_the_same_folder(environment, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert f"\nCACHE := {common.cache_dir()}\n" in make(environment).stdout


@pytest.mark.parametrize("environment", [{"XDG_CACHE_HOME": "/tmp/a b"}, {"HOME": "/tmp/a b"}])
def test_a_space_is_refused_in_one_sentence(environment):
    answer = make(environment)
    assert answer.returncode
    assert "has a space in its name" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_uv_is_told_a_version_by_which_it_keeps_the_environment_there_is(tmp_path):
    # Given a path it would remove the environment first, and leave none where packages cannot be fetched.
    uv, told = tmp_path / "uv", tmp_path / "told"
    uv.write_text(f'#!/bin/sh\necho "$@" > {told}\n')
    uv.chmod(0o755)
    words = ["make", "-C", str(REPOSITORY), f"UV={uv}", f"VENV={tmp_path}", f"PYTHON={sys.executable}", "setup"]
    subprocess.run(words, capture_output=True, check=True)
    assert told.read_text().split()[-2:] == ["--python", platform.python_version()]
