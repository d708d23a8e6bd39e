"""Names of a package that are imported on first use (PEP 562)."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    `dir` lists what `__all__` does, and the modules. It omits what the package itself imports.

    Args:
        package: Name of the package, which defines `__all__`.
        homes: The module that defines each lazy name; ".module" is relative to the package.
        modules: Public modules of the package that are imported on first use.
    """
    public = frozenset(modules)

    def get(name: str) -> Any:  # noqa: ANN401  # modules, classes and functions
        if name in homes:
            return getattr(import_module(homes[name], package), name)
        if name in public:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        own = vars(sys.modules[package])
        hidden = (name for name in own if name.startswith("__"))
        return sorted({*own["__all__"], *public, *hidden})

    return get, names
