"""Checks of `envkit doctor`: each says what is wrong, why it matters and how to fix it.

A plugin adds a check with an entry point in the group `envkit.checks`: a function without arguments
that returns its finding, or raises an EnvkitError whose message says what is wrong and ends with
"Fix it with: COMMAND".
"""

import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from envkit.cli import installed
from envkit.errors import EnvkitError, MissingDependencyError, RefusedError

GROUP: Final = "envkit.checks"
_MIN_FREE_BYTES: Final = 1 << 30


class Status(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    """Nothing to do."""
    OFF = "off"
    """An optional part that is not installed; not a failure."""
    FAILED = "no"
    """Something that should work does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the doctor."""

    area: str
    name: str
    status: Status
    found: str
    """What was found, or what is wrong."""
    matters: str = ""
    """What does not work because of it; empty if nothing is wrong."""
    fix: str = ""
    """The command that fixes it; empty if nothing is wrong."""


def all_checks() -> Iterator[Check]:
    """Yield all checks of this machine, cheap ones first."""
    yield from _core()
    yield from _extras()
    yield from _places()
    yield from _graphics()
    yield from _engines()
    yield from _environments()
    yield from _plugin_checks()


def _core() -> Iterator[Check]:
    for package in installed.packages():
        if package.extra is not None:
            continue
        problem = package.problem
        yield Check(
            area="core",
            name=package.name,
            status=Status.OK if problem is None else Status.FAILED,
            found=problem or str(package.version),
            matters="" if problem is None else "envkit itself needs it",
            fix="" if problem is None else f"pip install --upgrade {package.requirement!r}",
        )


def _extras() -> Iterator[Check]:
    extras: dict[str, list[installed.Package]] = {}
    for package in installed.packages():
        if package.extra is not None:
            extras.setdefault(package.extra, []).append(package)
    for extra, packages in sorted(extras.items()):
        yield _extra(extra, packages)


def _extra(extra: str, packages: "list[installed.Package]") -> Check:
    wrong = [package for package in packages if package.problem is not None]
    if not wrong:
        found = ", ".join(f"{package.name} {package.version}" for package in packages)
        return Check(area="extra", name=extra, status=Status.OK, found=found)
    is_old = any(package.version is not None for package in wrong)
    python = next((package.python for package in wrong if package.python is not None), None)
    return Check(
        area="extra",
        name=extra,
        status=Status.FAILED if is_old else Status.OFF,
        found=", ".join(f"{package.name} {package.problem}" for package in wrong),
        matters=installed.EXTRAS.get(extra, f"features that need the extra {extra}"),
        fix=f"uv venv --python {python}"
        if python is not None
        else f"pip install --upgrade '{installed.DISTRIBUTION}[{extra}]'",
    )


def _places() -> Iterator[Check]:
    here = Path.cwd()
    try:
        with tempfile.NamedTemporaryFile(dir=here, prefix=".envkit-"):
            free = shutil.disk_usage(here).free
    except OSError as error:
        yield Check(
            area="disk",
            name="current folder",
            status=Status.FAILED,
            found=f"{here} cannot be written: {error.strerror or error}",
            matters="a rollout writes its run directory there unless --out names another one",
            fix="cd ~",
        )
        return
    is_low = free < _MIN_FREE_BYTES
    yield Check(
        area="disk",
        name="current folder",
        status=Status.FAILED if is_low else Status.OK,
        found=f"{free / 2**30:.1f} GiB free",
        matters="a rollout stops when the disk is full" if is_low else "",
        fix=f"du -xh --max-depth=2 {here} | sort -h | tail" if is_low else "",
    )


def _graphics() -> Iterator[Check]:
    torch: Any = installed.torch()
    if torch is None:
        return
    driver, sees = shutil.which("nvidia-smi"), bool(torch.cuda.is_available())
    is_blind = driver is not None and not sees
    names = [str(torch.cuda.get_device_name(n)) for n in range(torch.cuda.device_count())]
    yield Check(
        area="torch",
        name="devices",
        status=Status.FAILED if is_blind else Status.OK,
        found=f"{driver} exists, but torch {torch.__version__} sees no GPU"
        if is_blind
        else ", ".join(names) or f"no GPU, {torch.get_num_threads()} CPU threads",
        matters="the embedded engine runs on the CPU, many times slower" if is_blind else "",
        fix="pip install --force-reinstall torch" if is_blind else "",
    )


def _engines() -> Iterator[Check]:
    for engine in installed.engines():
        yield _imported(
            "engine",
            engine.name,
            engine.problem,
            matters=f"--engine {engine.name} cannot be used",
            distribution=engine.source,
        )


def _environments() -> Iterator[Check]:
    from envkit.registration import registry, spec

    for name, listed in registry().items():
        problem: EnvkitError | None = None
        try:
            spec(name)
        except EnvkitError as error:
            problem = error
        yield _imported(
            "environment",
            name,
            problem,
            matters=f"{name} cannot be built; the others are not affected",
            distribution=listed.distribution or "its package",
        )


def _imported(
    area: str, name: str, problem: EnvkitError | None, *, matters: str, distribution: str
) -> Check:
    """Return the check of a plugin's import."""
    if problem is None:
        found = f"from {distribution}"
        return Check(area=area, name=name, status=Status.OK, found=found)
    return _failed(area, name, problem, matters=matters, distribution=distribution)


def _failed(
    area: str, name: str, problem: EnvkitError, *, matters: str, distribution: str
) -> Check:
    """Return the check of a part of a plugin that cannot be used."""
    is_refused = isinstance(problem, RefusedError)
    is_off = isinstance(problem, MissingDependencyError) and not is_refused
    return Check(
        area=area,
        name=name,
        status=Status.OFF if is_off else Status.FAILED,
        found=str(problem),
        matters=matters,
        fix=_fix_in(str(problem)) or f"pip install --force-reinstall --no-deps {distribution}",
    )


def _plugin_checks() -> Iterator[Check]:
    for point in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        yield _plugin_check(point)


def _plugin_check(point: EntryPoint) -> Check:
    distribution = point.dist.name if point.dist is not None else "its package"
    try:
        function: Callable[[], object] = point.load()
        found = function()
    except EnvkitError as error:
        matters = f"environments that need the {point.name} cannot be played"
        return _failed("plugin", point.name, error, matters=matters, distribution=distribution)
    except Exception as error:  # noqa: BLE001  # a plugin's error is its finding
        return Check(
            area="plugin",
            name=point.name,
            status=Status.FAILED,
            found=f"the check itself failed: {error!r}",
            matters="the state of this part is unknown",
            fix=f"pip install --force-reinstall --no-deps {distribution}",
        )
    return Check(area="plugin", name=point.name, status=Status.OK, found=str(found))


def _fix_in(message: str) -> str:
    """Return the command after "Install it with:" or "Fix it with:" of an error's message."""
    line = re.search(r"(?:Install|Fix) it with: (.*?)(?: \(or .*)?$", message, re.S)
    return "" if line is None else line[1].strip()


def machine() -> dict[str, str]:
    """Return facts about the machine, which need no check."""
    return {
        "envkit": installed.version_of(installed.DISTRIBUTION) or "not installed",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cpus": installed.cpus(),
    }
