"""Names of a package that are imported on first use (PEP 562)."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from envkit.errors import MissingDependencyError


def lazy_names(
    package: str, homes: Mapping[str, str], modules: Iterable[str] = (), *, extra: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    `dir` lists what `__all__` does, and the modules. It omits what the package itself imports.

    Args:
        package: Name of the package, which defines `__all__`.
        homes: The module that defines each lazy name; ".module" is relative to the package.
        modules: Public modules of the package that are imported on first use.
        extra: The extra that the lazy names need. If a package is missing, importing a name then
            raises `MissingDependencyError` with the line that installs it.
    """
    public = frozenset(modules)

    def get(name: str) -> Any:  # noqa: ANN401  # modules, classes and functions
        if name in homes:
            try:
                return getattr(import_module(homes[name], package), name)
            except ModuleNotFoundError as error:
                if not extra or error.name is None or error.name.startswith("envkit"):
                    raise
                feature = f"{package}.{name}"
                raise MissingDependencyError.for_extra(feature, error.name, extra) from error
        if name in public:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        own = vars(sys.modules[package])
        hidden = (name for name in own if name.startswith("__"))
        return sorted({*own["__all__"], *public, *hidden})

    return get, names
