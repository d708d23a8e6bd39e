"""Templates for a new environment's package, and the writer that `envkit new` uses."""

from envkit.scaffold.package import PackageName, write_package

__all__ = ["PackageName", "write_package"]
