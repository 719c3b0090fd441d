import json
import subprocess

import pytest
from bench import installed

PROGRAM = """
import importlib.util, json, sys
import dradriver.daemon, dradriver.runtime
import importlib.metadata
there = {name: importlib.util.find_spec(name) is not None for name in sys.argv[1:]}
print(json.dumps([there, importlib.metadata.version("dradriver"), sys.prefix]))
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """What a process in the environment sees."""
    folder = tmp_path_factory.mktemp("installed")
    python = installed.install(folder)
    done = subprocess.run(
        [python, "-c", PROGRAM, "structlog", "pynvml", "google.protobuf", "pytest", "hypothesis", "grpc_tools"],
        env=installed.environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    return folder, json.loads(done.stdout)


def test_the_environment_holds_what_the_plugin_needs_and_nothing_else(answer):
    folder, (there, version, prefix) = answer
    assert there == {
        "structlog": True,
        "pynvml": True,
        "google.protobuf": True,
        "pytest": False,
        "hypothesis": False,
        "grpc_tools": False,
    }
    assert version
    assert prefix == str(folder)


def test_bytecode_is_kept_in_its_folder(answer):
    folder, _ = answer
    assert any((folder / "bytecode").rglob("daemon.*.pyc"))


def test_no_variable_of_this_python_is_passed_on(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("COVERAGE_PROCESS_START", "x")
    found = installed.environment(tmp_path)
    assert {name for name in found if name.startswith(("PYTHON", "COVERAGE"))} == {"PYTHONPYCACHEPREFIX"}
