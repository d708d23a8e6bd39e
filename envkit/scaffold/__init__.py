"""Templates and writer of a new environment's package, for `envkit new`."""

from envkit.scaffold.package import PackageName, write_package

__all__ = ["PackageName", "write_package"]
