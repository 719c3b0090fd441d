"""What is promised of the installed package, and rules of the whole tree."""

import ast
import importlib
import pkgutil
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, entry_points, packages_distributions
from importlib.resources import files
from pathlib import Path

import pytest

import dradriver

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dradriver.__path__, "dradriver.")
    if not module.name.endswith("__main__")
)


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


def test_what_is_imported_is_declared():
    root = Path(dradriver.__path__[0])
    top = {name.partition(".")[0] for path in root.rglob("*.py") for name in _imports(path)}
    foreign = top - sys.stdlib_module_names - {"dradriver", "controller", "_typeshed"}
    project = tomllib.loads((root.parent / "pyproject.toml").read_text())["project"]
    declared = {_normal(re.match(r"[\w-]+", line)[0]) for line in project["dependencies"]}
    owners = {name: {_normal(owner) for owner in given} for name, given in packages_distributions().items()}
    # A namespace (google) is several distributions': one of them is enough.
    assert {name for name in foreign if not declared & owners.get(name, set())} == set()


def _normal(name):
    return name.lower().replace("_", "-")


def test_the_console_script_is_the_plugin():
    (script,) = entry_points(group="console_scripts", name="dradriver")
    assert script.value == "dradriver.__main__:main"


@pytest.mark.parametrize("package", ["dradriver", "controller"])
def test_types_are_told(package):
    assert files(package).joinpath("py.typed").is_file()


def test_the_deprecated_namesake_of_nvidia_ml_py_is_not_installed():
    with pytest.raises(PackageNotFoundError):
        distribution("pynvml")
    assert distribution("nvidia-ml-py").version


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported_by_itself_and_has_a_docstring(name):
    module = importlib.import_module(name)
    assert name.endswith("_pb2") or module.__doc__


@pytest.mark.parametrize("name", [name for name in MODULES if hasattr(importlib.import_module(name), "__all__")])
def test_what_a_room_offers_exists_and_is_sorted(name):
    module = importlib.import_module(name)
    offered = list(module.__all__)
    assert sorted(offered, key=lambda word: (not word.isupper(), not word[0].isupper(), word)) == offered
    assert [word for word in offered if not hasattr(module, word)] == []
