"""What is installed: packages by extra, engines, torch, the cache."""

import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Final

from envkit.cli.engines import load_factory, registered_engines
from envkit.errors import EnvkitError

DISTRIBUTION: Final = "envkit-rl"
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9._-]+)[^;]*(?:;.*\bextra\s*==\s*['\"]([^'\"]+))?")
_UNINTERESTING: Final = ("dev", "all")
"""Extras that only collect others, or are for working on envkit itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that envkit uses."""

    name: str
    extra: str | None
    """None for a package that the core needs."""
    version: str | None
    """None when it is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """A registered engine."""

    name: str
    source: str
    """The distribution that brings it."""
    problem: str | None
    """Why it cannot be imported; None when it can."""


def packages() -> list[Package]:
    """Return the packages of the core and of every extra, as the distribution declares them."""
    found: list[Package] = []
    for line in requires(DISTRIBUTION) or ():
        match = _REQUIREMENT.match(line)
        if match is None or match[1] == DISTRIBUTION or match[2] in _UNINTERESTING:
            continue
        found.append(Package(name=match[1], extra=match[2], version=_version(match[1])))
    return found


def missing_extras(found: list[Package]) -> list[str]:
    """Return the extras of which a package is missing, in order."""
    return sorted({p.extra for p in found if p.extra is not None and p.version is None})


def engines() -> list[EngineStatus]:
    """Return every registered engine and whether its package can be imported."""
    statuses: list[EngineStatus] = []
    for name, entry in sorted(registered_engines().items()):
        problem = None
        try:
            load_factory(entry)
        except EnvkitError as error:
            problem = str(error)
        source = entry.dist.name if entry.dist is not None else "-"
        statuses.append(EngineStatus(name=name, source=source, problem=problem))
    return statuses


def machine() -> dict[str, str]:
    """Return facts of the machine and of torch, where it is installed."""
    facts = {
        "envkit": _version(DISTRIBUTION) or "not installed",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cpus": str(os.cpu_count()),
        "cache": os.environ.get("ENVKIT_CACHE") or "the platform's (ENVKIT_CACHE moves it)",
    }
    try:
        import torch as imported
    except ImportError:
        return {**facts, "torch": "not installed"}
    torch: Any = imported  # an optional package, untyped where it is missing
    facts["torch"] = f"{torch.__version__}, {torch.get_num_threads()} threads"
    cuda: Any = torch.cuda
    if cuda.is_available():
        names = [str(cuda.get_device_name(number)) for number in range(cuda.device_count())]
        facts["cuda"] = ", ".join(names)
    else:
        facts["cuda"] = "no device"
    return facts


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
