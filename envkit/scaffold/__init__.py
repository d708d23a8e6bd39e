"""A new environment's package, written from templates: the work of `envkit new`."""

from envkit.scaffold.package import PackageName, write_package

__all__ = ["PackageName", "write_package"]
