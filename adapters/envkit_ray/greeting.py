"""Check that a worker can play for this process."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError

import envkit
from envkit.errors import ConfigurationError, EnvkitError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identity of a worker process."""

    version: str
    """Version of its envkit."""
    host: str
    pid: int
    error: EnvkitError | None = None
    """Why it cannot play; None if it can."""


def version() -> str:
    """Return the version of this process's envkit; "unknown" for a bare source tree."""
    try:
        return envkit.__version__
    except PackageNotFoundError:
        return "unknown"


def check_hello(hello: Hello) -> None:
    """Reject a worker that cannot play for this process.

    Raises:
        ConfigurationError: It says why it cannot, or has another version of envkit.
    """
    if hello.version != version():
        raise ConfigurationError(
            f"the Ray worker on {hello.host} has envkit {hello.version} and this process has "
            f"{version()}: install the same version on every node of the cluster"
        )
    if hello.error is not None:
        hello.error.add_note(f"raised by the Ray worker on {hello.host}, process {hello.pid}")
        raise hello.error


def check_import(text: str) -> None:
    """Raise if a worker died because it lacks a package, which a restart cannot fix."""
    if "ModuleNotFoundError" in text or "ImportError" in text:
        raise unusable(text)


def unusable(reason: str) -> ConfigurationError:
    """Return the error for a worker whose process cannot load this package."""
    lines = [line.strip() for line in reason.splitlines() if "Error" in line] or [reason]
    return ConfigurationError(
        f"a Ray worker cannot load envkit: {lines[-1]}. Install envkit-rl {version()} with the "
        "extra ray on every node of the cluster, or list it in player_options.runtime_env"
    )
