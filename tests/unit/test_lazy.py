"""What is put off costs nothing until it is wanted, and is all there then."""

import importlib
import importlib.util
import sys
import threading

import pytest

from dradriver import lazy

LIBRARY = {
    "toolbox/__init__.py": "from toolbox import heavy\n",
    "toolbox/heavy.py": "import loads\nloads.append('heavy')\nsize = 3\n",
    "login/__init__.py": (
        "import loads\nloads.append('login')\n"
        "class Session:\n    kind = 'session'\n"
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


# --- as the real one ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["toolbox.heavy", "login"])
def test_it_can_be_found_without_being_loaded(loads, name):
    lazy.defer("toolbox.heavy")
    lazy.defer_class("login", "Session")
    spec = importlib.util.find_spec(name)
    assert spec.name == name
    assert spec.origin.endswith(".py")
    assert spec.loader is not None
    assert sys.modules[name].__file__ == spec.origin
    assert loads == []
    assert "toolbox" not in sys.modules


def test_a_module_that_does_not_exist_is_left_to_its_importer(loads):
    lazy.defer("toolbox.none", "nowhere.at.all")
    lazy.defer_class("nowhere", "Session")
    assert not {"toolbox.none", "nowhere", "nowhere.at.all"} & set(sys.modules)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nowhere")


def test_who_holds_the_stand_in_has_all_of_the_module_once_it_is_loaded(loads):
    lazy.defer("toolbox.heavy")
    held = sys.modules["toolbox.heavy"]
    assert held.size == 3
    real = sys.modules["toolbox.heavy"]
    assert held is not real
    assert {key: vars(held)[key] for key in vars(real)} == vars(real)
    assert "size" in dir(held)


def test_everything_can_be_imported(loads):
    lazy.defer("toolbox.heavy")
    namespace = {}
    exec("from toolbox.heavy import *", namespace)
    assert namespace["size"] == 3


def test_a_submodule_imported_before_its_package_is_an_attribute_of_it(loads):
    lazy.defer_class("login", "Session")
    importlib.import_module("login.errors")
    assert sys.modules["login"].Session().words == ()
    assert sys.modules["login"].errors.kind == "login error"


def test_many_threads_load_it_once(loads, tmp_path):
    (tmp_path / "toolbox/heavy.py").write_text(
        "import loads, time\nloads.append('heavy')\ntime.sleep(0.2)\nsize = 3\nclass Box:\n    pass\n"
    )
    lazy.defer_class("toolbox.heavy", "Box")
    held, box = sys.modules["toolbox.heavy"], sys.modules["toolbox.heavy"].Box
    start, found = threading.Barrier(16), []

    def use(number):
        start.wait(60)
        found.append([held.size, type(box()), importlib.import_module("toolbox.heavy").Box][number % 3])

    threads = [threading.Thread(target=use, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert loads == ["heavy"]
    assert len(found) == 16
    assert set(found) == {3, sys.modules["toolbox.heavy"].Box}


def test_threads_that_import_and_use_at_once_do_not_wait_for_each_other_for_ever(loads, tmp_path):
    # One module uses the deferred one while it is imported, and the deferred one imports that module.
    (tmp_path / "toolbox/heavy.py").write_text("import time\ntime.sleep(0.1)\nimport toolbox.user\nsize = 3\n")
    (tmp_path / "toolbox/user.py").write_text(
        "import time, sys\ntime.sleep(0.1)\nfrom toolbox import heavy\nfound = getattr(heavy, 'size', None)\n"
    )
    lazy.defer("toolbox.heavy")
    held = sys.modules["toolbox.heavy"]
    threads = [
        threading.Thread(target=lambda: held.size),
        threading.Thread(target=lambda: importlib.import_module("toolbox.user")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert held.size == 3


def test_a_class_is_one_for_isinstance_and_issubclass(loads):
    lazy.defer_class("login", "Session")
    stand_in = sys.modules["login"].Session
    assert not isinstance(object(), stand_in)
    assert not issubclass(dict, stand_in)
    assert isinstance(stand_in, type)
    assert loads == []
    session = stand_in()
    assert isinstance(session, stand_in)
    assert issubclass(type(session), stand_in)
    assert not isinstance(object(), stand_in)


def test_a_class_can_be_derived_from(loads):
    lazy.defer_class("login", "Session")

    class Mine(sys.modules["login"].Session):
        def __init__(self):
            super().__init__("mine")

    assert Mine().words == ("mine",)
    assert Mine.__mro__[1] is sys.modules["login"].Session
    assert loads == ["login"]


def test_what_belongs_to_the_class_is_reached(loads):
    lazy.defer_class("login", "Session")
    stand_in = sys.modules["login"].Session
    assert getattr(stand_in, "__wrapped__", None) is None
    assert loads == []
    assert stand_in.kind == "session"
    with pytest.raises(AttributeError):
        _ = stand_in.colour
