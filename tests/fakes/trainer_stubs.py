"""Lets slime and miles import on a machine without SGLang, its router and ray.

They import these for servers and actors alone, which no test starts; slime's own contract tests
stand modules in for them too (slime/tests/plugin_contracts/_shared.py).
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

_ROOTS = ("sglang", "sglang_router", "ray")


class _Anything:
    """Takes any arguments; as a decorator it leaves what it decorates as it is."""

    def __init__(self, *given: Any, **named: Any) -> None:
        del given, named

    def __call__(self, *given: Any, **named: Any) -> Any:
        del named
        return given[0] if given else self


class _Module(types.ModuleType):
    """A module in which every name is a class of that name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Anything,), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in _ROOTS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []
        module.__version__ = "9.9"  # type: ignore[attr-defined]


def install() -> None:
    """Stand stubs in for what is not imported yet; a second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
