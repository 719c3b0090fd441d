import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench import scheduler
from bench.aims import AIMS

from dradriver.kube import NODES, RESOURCE_SLICES

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.control_plane
def test_the_benchmark_measures_everything_and_leaves_nothing(control_plane, admin):
    options = ["--kubeconfig", str(control_plane.kubeconfig), "--starts", "1", "--rounds", "8", "--idle", "0.1"]
    options += ["--seeds", "5", "--node-rounds", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *options],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    summary = done.stdout.partition("Aims")[2]
    assert [name for name in AIMS if name not in summary] == []
    assert "one look at all GPUs" in done.stdout
    assert "Packing, calculated: 8xh100-80gb, load 0.9, 5 seeds" in done.stdout
    left = [item["metadata"]["name"] for kind in (NODES, RESOURCE_SLICES) for item in admin.list(kind).items]
    assert [name for name in left if name.startswith("bench-")] == []


@pytest.mark.control_plane
def test_the_scheduler_s_benchmark_measures_every_kind_and_leaves_nothing(control_plane, admin):
    found = scheduler.measure(admin, control_plane.kubeconfig, cycles=1, percent=2, layouts=["standard, lean"])
    assert {kind: len(costs) for kind, costs in found["standard, lean"].items()} == dict.fromkeys(scheduler.KINDS, 1)
    left = [item["metadata"]["name"] for kind in (NODES, RESOURCE_SLICES) for item in admin.list(kind).items]
    assert [name for name in left if "stage-" in name] == []
