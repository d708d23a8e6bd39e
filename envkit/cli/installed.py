"""Installed packages by extra, processors, and torch."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

DISTRIBUTION: Final = "envkit-rl"
EXTRAS: Final = {
    "browser": "MiniWoB's pages as environments",
    "geo3k": "Geometry3K's own data; generated problems do not need it",
    "gymnasium": "Gymnasium's games as environments with images",
    "harbor": "task folders of Harbor and Terminal-Bench; Python 3.12",
    "linux-desktop": "sessions of a real Linux desktop and of a shell",
    "mcp": "MCP servers as tools, and envkit environments as MCP servers",
    "notebook": "widgets in notebooks",
    "openenv": "OpenEnv servers as environments, and envkit environments as OpenEnv servers",
    "opentelemetry": "rollout --sink opentelemetry",
    "parquet": "rollout --sink parquet=FILE, and export to parquet",
    "prometheus": "rollout --sink prometheus=PORT",
    "ray": "workers on a Ray cluster: rollout --workers",
    "reasoning-gym": "the collection reasoning_gym; pip needs a C compiler for a dependency",
    "search": "search over a corpus on disk; small ones are searched in memory",
    "sglang": "codecs of the models that an SGLang server serves",
    "skyrl": "training with SkyRL",
    "tensorboard": "rollout --sink tensorboard=DIR",
    "transformers": "the embedded engine, the built-in model, and codecs of models",
    "trl": "training with TRL",
    "verifiers": "environments of the verifiers library",
    "verl": "training with verl",
    "vllm": "codecs of the models that a vLLM server serves",
    "wandb": "rollout --sink wandb",
    "yaml": "settings in YAML files",
}
"""What each extra is for."""
_REQUIREMENT: Final = re.compile(r"\s*(?P<name>[A-Za-z0-9._-]+)(?P<limits>[^;]*)(?:;(?P<rest>.*))?")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([^'\"]+)")
_PYTHON: Final = re.compile(r"python_version\s*>=\s*['\"]([0-9.]+)")
_LEAST: Final = re.compile(r">=\s*([0-9.]+)")
_UNINTERESTING: Final = ("dev", "all", "docs")
"""Extras that combine others, or are for developing envkit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that envkit uses."""

    name: str
    extra: str | None
    """None for a package that the core needs."""
    version: str | None
    """None if it is not installed."""
    requirement: str
    """The requirement of the distribution, without markers."""
    python: str | None = None
    """The minimum Python version, if this one is older."""

    @property
    def problem(self) -> str | None:
        """What is wrong with it; None if it is usable."""
        if self.version is not None:
            least = _LEAST.search(self.requirement)
            if least is None or _numbers(self.version) >= _numbers(least[1]):
                return None
            return f"{self.version} is older than {least[1]}"
        return "missing" if self.python is None else f"needs Python {self.python}"


def packages() -> list[Package]:
    """Return the packages of the core and of every extra, as the distribution declares them."""
    found: list[Package] = []
    for line in requires(DISTRIBUTION) or ():
        match = _REQUIREMENT.match(line)
        markers = "" if match is None else match["rest"] or ""
        of_extra = _EXTRA.search(markers)
        extra = None if of_extra is None else of_extra[1]
        if match is None or match["name"] == DISTRIBUTION or extra in _UNINTERESTING:
            continue
        name, limits = match["name"], match["limits"].strip()
        needed = _PYTHON.search(markers)
        is_newer = needed is not None and _numbers(needed[1]) > sys.version_info[:2]
        found.append(
            Package(
                name=name,
                extra=extra,
                version=version_of(name),
                requirement=f"{name}{limits}",
                python=needed[1] if needed is not None and is_newer else None,
            )
        )
    return found


def cpus(root: Path = Path("/")) -> str:
    """Return the number of processors, and what this process may use of them.

    Args:
        root: Where `proc` and `sys` are.
    """
    count = os.cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    usable = count if affinity is None else len(affinity(0))
    found = str(count) if usable == count else f"{usable} of {count}"
    quota = min(_quotas(root), default=None)
    if quota is None or quota >= usable:
        return found
    return f"{found}, with a quota of {quota:g}: this container or job gets no more time"


def _quotas(root: Path) -> Iterator[float]:
    """Yield the limits of this process's control groups, in processors.

    Source: the kernel's admin-guide/cgroup-v2.rst (`cpu.max`) and scheduler/sched-bwc.rst (version
    1). A container sees its own group as the root.
    """
    with suppress(OSError, ValueError):
        for row in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = row.split(":", 2)
            if controllers not in ("", "cpu", "cpu,cpuacct"):
                continue
            base = root / "sys/fs/cgroup" / controllers
            group = base / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(base):
                    yield from _quota_of(folder)


def _quota_of(group: Path) -> Iterator[float]:
    files = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    for names in files:
        with suppress(OSError, ValueError):  # absent, or "max"
            quota, period = map(int, " ".join((group / n).read_text() for n in names).split())
            if quota > 0:
                yield quota / period


def torch() -> Any:  # noqa: ANN401  # an optional package, untyped where it is missing
    """Return torch; None if it is not installed.

    Raises:
        ImportError: It is installed, but broken, or OSError if a library of it is.
    """
    try:
        import torch as imported
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    return imported


def version_of(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, such as (2, 13, 0) of "2.13.0+cpu"."""
    leading = re.match(r"[0-9]+(\.[0-9]+)*", text)
    return () if leading is None else tuple(map(int, leading[0].split(".")))
