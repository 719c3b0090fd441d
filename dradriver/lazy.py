"""Modules that others import but nobody here uses, loaded only if somebody does."""

import importlib
import sys
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


def _deferred(name: str) -> ModuleType:
    module = ModuleType(name)

    def load(attribute: str) -> Any:
        # Whoever walks over all modules to look for marks must not wake them.
        if attribute.startswith("__") and attribute != "__path__":
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        if sys.modules.get(name) is module:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    vars(module)["__getattr__"] = load
    return module
