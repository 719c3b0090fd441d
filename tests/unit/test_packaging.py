"""What is promised of the installed package, and rules of the whole tree."""

import importlib
import pkgutil
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from importlib.resources import files

import pytest

import dradriver

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dradriver.__path__, "dradriver.")
    if not module.name.endswith("__main__")
)


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
