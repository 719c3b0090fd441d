"""What is put off costs nothing until it is wanted, and is all there then."""

import importlib
import sys

import pytest

from dradriver import lazy

LIBRARY = {
    "toolbox/__init__.py": "from toolbox import heavy\n",
    "toolbox/heavy.py": "import loads\nloads.append('heavy')\nsize = 3\n",
    "login/__init__.py": (
        "import loads\nloads.append('login')\n"
        "class Session:\n"
        "    def __init__(self, *words, **options):\n"
        "        self.words, self.options = words, options\n"
    ),
    "login/errors.py": "kind = 'login error'\n",
}


@pytest.fixture
def loads(tmp_path, monkeypatch):
    """What the library's modules write when they are executed."""
    for name, text in LIBRARY.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = []
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "loads", found)
        yield found
    for name in [name for name in sys.modules if name.partition(".")[0] in {"toolbox", "login"}]:
        del sys.modules[name]


def test_a_deferred_module_is_loaded_when_asked(loads):
    lazy.defer("toolbox.heavy")
    toolbox = importlib.import_module("toolbox")
    assert loads == []
    assert toolbox.heavy.size == 3
    assert loads == ["heavy"]
    assert sys.modules["toolbox.heavy"].size == 3


def test_a_loaded_module_is_left_alone(loads):
    before = importlib.import_module("toolbox.heavy")
    lazy.defer("toolbox.heavy")
    lazy.defer_class("toolbox.heavy", "size")
    assert sys.modules["toolbox.heavy"] is before


def test_a_class_can_be_imported_by_name_without_loading_it(loads):
    lazy.defer_class("login", "Session")
    namespace = {}
    exec("from login import Session", namespace)
    assert loads == []
    session = namespace["Session"]("a", b=1)
    assert loads == ["login"]
    assert (session.words, session.options) == (("a",), {"b": 1})
    assert isinstance(session, sys.modules["login"].Session)


def test_a_second_object_is_of_the_same_class(loads):
    lazy.defer_class("login", "Session")
    make = sys.modules["login"].Session
    assert type(make()) is type(make())
    assert loads == ["login"]


def test_submodules_of_a_package_put_off_can_be_imported(loads):
    lazy.defer_class("login", "Session")
    assert importlib.import_module("login.errors").kind == "login error"
    assert loads == []


def test_what_is_not_there_is_an_attribute_error(loads):
    lazy.defer("toolbox.heavy")
    with pytest.raises(AttributeError, match="colour"):
        _ = sys.modules["toolbox.heavy"].colour


def test_marks_wake_nothing(loads):
    lazy.defer_class("login", "Session")
    assert getattr(sys.modules["login"], "__warningregistry__", None) is None
    assert loads == []
