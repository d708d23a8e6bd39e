"""Whether SkyRL is there, before anything of it is imported."""

import importlib.util

from envkit.errors import MissingDependencyError


def require_skyrl() -> None:
    """Check that SkyRL and its environments' package are installed.

    Raises:
        MissingDependencyError: One is not; the message is the line that installs it.
    """
    for package in ("skyrl", "skyrl_gym"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError.for_extra("the SkyRL adapter", package, "skyrl")
