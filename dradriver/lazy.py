"""Parts of libraries that others import but nobody here uses, loaded only if somebody does.

Libraries import more than is needed of them. Each module put off here was measured to cost time at the start and
memory for good; what is put off still works, for it is loaded at its first use, by whichever thread, and behaves as the
real one from then on.
"""

import importlib
import importlib.util
import sys
import threading
import types
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_WAKING: Final = frozenset({"__all__", "__path__"})
"""What is asked for by who imports a submodule or everything; of other marks nobody is in need."""

_lock: Final = threading.RLock()
"""Held for looking at and changing `sys.modules` only. During an import it would be taken before the import system's
own locks here and after them elsewhere, which is a deadlock; these see to it that a module is loaded once."""


def defer(*names: str) -> None:
    """Put off importing these modules until one of their names is asked for.

    `importlib.util.LazyLoader` cannot do this for a submodule that its own package imports, since finding
    it imports the package first. Modules that do not exist are left to whoever imports them.
    """
    for name in names:
        _put_off(name)


def defer_class(module: str, name: str) -> None:
    """Put off importing a module until this class is used, or another of its names is asked for.

    For `from module import name` in a library: it gets a class that stands for the real one.
    """
    stand_in = _put_off(module)
    if stand_in is None:
        return
    vars(stand_in)[name] = _ClassStandIn(name, (), {"_module": stand_in, "__module__": module})
    if "." not in module and stand_in.__spec__ is not None and stand_in.__spec__.submodule_search_locations is not None:
        # A package whose submodules can be imported without it: `from package import name` asks whether name is one.
        vars(stand_in)["__path__"] = stand_in.__spec__.submodule_search_locations


class _StandIn(ModuleType):
    """A module that is loaded when something of it is asked for; then everything of the real one is here too."""

    def __getattr__(self, name: str) -> Any:
        # Whoever walks over all modules to look for marks must not wake them.
        if name.startswith("__") and name not in _WAKING:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(_load(self), name)

    def __dir__(self) -> list[str]:
        return dir(_load(self))


class _ClassStandIn(type):
    """A class that stands for one of a module that is put off, in all that a library does with a class."""

    _module: _StandIn

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:  # the real class's kind
        if not any(isinstance(base, _ClassStandIn) for base in bases):
            return super().__new__(cls, name, bases, namespace)
        real = tuple(base._real() if isinstance(base, _ClassStandIn) else base for base in bases)  # noqa: SLF001 (ours)
        return types.new_class(name, real, options, lambda body: body.update(namespace))

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return cls._real()(*arguments, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return cls._is_loaded() and isinstance(instance, cls._real())

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or (cls._is_loaded() and issubclass(subclass, cls._real()))

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return getattr(cls._real(), name)

    def _is_loaded(cls) -> bool:
        """Before that, nothing can be of the class."""
        return sys.modules.get(cls._module.__name__) is not cls._module

    def _real(cls) -> Any:
        return vars(_load(cls._module))[cls.__name__]


def _put_off(name: str) -> _StandIn | None:
    """Put a stand-in where the module will be; None if the module is there already, or does not exist."""
    with _lock:
        spec = None if name in sys.modules else _find(name)
        if spec is None:
            return None
        stand_in = _StandIn(name)
        vars(stand_in).update(__spec__=spec, __loader__=spec.loader, __package__=spec.parent)
        if spec.has_location:
            vars(stand_in)["__file__"] = spec.origin
        sys.modules[name] = stand_in
        return stand_in


def _find(name: str) -> ModuleSpec | None:
    """Find a module without importing its package, as `importlib.util.find_spec` would."""
    parts = name.split(".")
    path: Sequence[str] | None = None
    spec = None
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _load(stand_in: _StandIn) -> ModuleType:
    name = stand_in.__name__
    with _lock:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
    real = importlib.import_module(name)
    for key, value in list(vars(stand_in).items()):
        # Submodules that were imported meanwhile have been told to the stand-in as their package.
        if isinstance(value, ModuleType) and value.__name__ == f"{name}.{key}":
            vars(real).setdefault(key, value)
    vars(stand_in).update(vars(real))
    return real
