"""Parts of libraries that others import but nobody here uses, loaded only if somebody does.

Libraries import more than is needed of them. Each module put off here was measured to cost time at the start and
memory for good; what is put off still works, for it is loaded at its first use.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def defer(*names: str) -> None:
    """Put off importing these modules until one of their names is asked for.

    `importlib.util.LazyLoader` cannot do this for a submodule that its own package imports, since finding
    it imports the package first.
    """
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _deferred(name)


def defer_class(module: str, name: str) -> None:
    """Put off importing a module until an object of this class is made, or another of its names is asked for.

    For `from module import name` in a library: it gets a function that loads the class and makes the object.
    """
    if module not in sys.modules:
        stand_in = _deferred(module)
        vars(stand_in)[name] = _maker(stand_in, name)
        if "." not in module:
            # Asked for by `from package import name`; a submodule's could only be told by importing its package.
            vars(stand_in)["__path__"] = _path(module)
        sys.modules[module] = stand_in


def _path(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    return list((spec and spec.submodule_search_locations) or ())


def _maker(stand_in: ModuleType, name: str) -> Callable[..., Any]:
    def make(*arguments: Any, **options: Any) -> Any:
        return getattr(_load(stand_in), name)(*arguments, **options)

    return make


def _deferred(name: str) -> ModuleType:
    module = ModuleType(name)

    def load(attribute: str) -> Any:
        # Whoever walks over all modules to look for marks must not wake them.
        if attribute.startswith("__") and attribute != "__path__":
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        return getattr(_load(module), attribute)

    vars(module)["__getattr__"] = load
    return module


def _load(stand_in: ModuleType) -> ModuleType:
    name = stand_in.__name__
    if sys.modules.get(name) is stand_in:
        del sys.modules[name]
    return importlib.import_module(name)
