"""`hack/proto` on a copy of the repository, so that nothing here is touched."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def copy(tmp_path):
    for folder in ("proto", "dradriver/proto"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    (tmp_path / "hack").mkdir()
    shutil.copy(REPOSITORY / "hack/proto", tmp_path / "hack/proto")
    return tmp_path


def run(root, *arguments):
    return subprocess.run(
        [sys.executable, root / "hack/proto", *arguments], capture_output=True, text=True, check=False
    )


def test_a_difference_is_found_and_mended(copy):
    source = copy / "proto/dradriver/proto/dra_v1.proto"
    source.write_text(source.read_text().replace("string pool_name = 2;", "string pool_name = 7;"))
    before = (copy / "dradriver/proto/dra_v1_pb2.py").read_text()
    checked = run(copy, "--check")
    assert checked.returncode == 1
    assert "dradriver/proto/dra_v1_pb2.py: differs" in checked.stdout
    assert "make proto" in checked.stdout
    assert (copy / "dradriver/proto/dra_v1_pb2.py").read_text() == before
    assert run(copy).returncode == 0
    assert (copy / "dradriver/proto/dra_v1_pb2.py").read_text() != before
    assert run(copy, "--check").returncode == 0


def test_files_without_a_source_go_and_missing_ones_come(copy):
    (copy / "proto/dradriver/proto/dra_health_v1.proto").unlink()
    (copy / "dradriver/proto/dra_v1_pb2.pyi").unlink()
    checked = run(copy, "--check")
    assert "dra_health_v1_pb2.py: has no source any more" in checked.stdout
    assert "dra_v1_pb2.pyi: new" in checked.stdout
    run(copy)
    assert not (copy / "dradriver/proto/dra_health_v1_pb2.py").exists()
    assert (copy / "dradriver/proto/dra_v1_pb2.pyi").exists()
    assert (copy / "dradriver/proto/__init__.py").exists()


def test_an_unchanged_file_keeps_its_time(copy):
    target = copy / "dradriver/proto/dra_v1_pb2.py"
    before = target.stat().st_mtime_ns
    assert run(copy).stdout == ""
    assert target.stat().st_mtime_ns == before


def test_a_source_that_does_not_compile_is_told(copy):
    (copy / "proto/dradriver/proto/dra_v1.proto").write_text('syntax = "proto3"; mess')
    done = run(copy, "--check")
    assert done.returncode == 1
    assert "dra_v1.proto" in done.stderr
    assert "Traceback" not in done.stderr
