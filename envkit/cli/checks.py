"""Checks of `envkit doctor`: each says what is wrong, why it matters and how to fix it.

A plugin adds a check with an entry point in the group `envkit.checks`: a function without arguments
that returns its finding, or raises an EnvkitError whose message says what is wrong and ends with
"Fix it with: COMMAND".
"""

import contextlib
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

from envkit import errors, plugins
from envkit.builtin_models import ENGINES
from envkit.cli import engines, installed
from envkit.files import CACHE_VARIABLE, cache_dir

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
    yield _place(
        "current folder",
        here,
        matters="a rollout writes its run directory there unless --out names another one",
        fix="cd ~",
        space=f"du -xh --max-depth=2 {here} | sort -h | tail",
    )
    move = f"export {CACHE_VARIABLE}=/a/folder/of/yours"
    matters = "the built-in model, tokenizers and browsers are kept there"
    try:
        cache = cache_dir()
        with contextlib.suppress(OSError):  # the check below says why
            cache.mkdir(parents=True, exist_ok=True)
    except errors.ConfigurationError as error:
        yield Check(
            area="disk",
            name="cache folder",
            status=Status.FAILED,
            found=str(error),
            matters=matters,
            fix=move,
        )
        return
    yield _place("cache folder", cache, matters=matters, fix=move, space=move)


def _place(name: str, folder: Path, *, matters: str, fix: str, space: str) -> Check:
    """Return the check of a folder that must be writable and have free space.

    Args:
        name: Name of the check.
        folder: The folder.
        matters: What needs it.
        fix: Command for a folder that cannot be written.
        space: Command for a disk that is almost full.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".envkit-"):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        found = f"{folder} cannot be written: {error.strerror or error}"
    else:
        found, fix = f"{free / 2**30:.1f} GiB free", space
        if free >= _MIN_FREE_BYTES:
            return Check(area="disk", name=name, status=Status.OK, found=found)
    status = Status.FAILED
    return Check(area="disk", name=name, status=status, found=found, matters=matters, fix=fix)


def _graphics() -> Iterator[Check]:
    try:
        torch: Any = installed.torch()
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        yield Check(
            area="torch",
            name="devices",
            status=Status.FAILED,
            found=f"torch is installed, but cannot be imported: {error}",
            matters="the embedded engine cannot be used",
            fix="pip install --force-reinstall torch",
        )
        return
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
    for name, point in sorted(plugins.plugins(ENGINES).items()):
        yield _imported(
            "engine",
            name,
            engines.load_engine,
            matters=f"--engine {name} cannot be used",
            distribution=plugins.owners([point]),
        )


def _environments() -> Iterator[Check]:
    from envkit.registration import registry, spec

    for name, listed in registry().items():
        yield _imported(
            "environment",
            name,
            spec,
            matters=f"{name} cannot be built; the others are not affected",
            distribution=listed.distribution or "its package",
        )


def _imported(
    area: str, name: str, load: Callable[[str], object], *, matters: str, distribution: str
) -> Check:
    """Return the check of a plugin's import."""
    try:
        load(name)
    except errors.EnvkitError as problem:
        return _failed(area, name, problem, matters=matters, distribution=distribution)
    return Check(area=area, name=name, status=Status.OK, found=f"from {distribution}")


def _failed(
    area: str, name: str, problem: errors.EnvkitError, *, matters: str, distribution: str
) -> Check:
    """Return the check of a part of a plugin that cannot be used."""
    is_refused = isinstance(problem, errors.RefusedError)
    is_off = isinstance(problem, errors.MissingDependencyError) and not is_refused
    return Check(
        area=area,
        name=name,
        status=Status.OFF if is_off else Status.FAILED,
        found=str(problem),
        matters=matters,
        fix=_fix_in(str(problem)) or _fix_of(problem, distribution),
    )


def _fix_of(problem: errors.EnvkitError, distribution: str) -> str:
    """Return what fixes an error whose message has no command; pip cures only broken packages."""
    if isinstance(problem, errors.ContractError):
        return f"pip install --force-reinstall --no-deps {distribution}"
    return "do what the message says, then run: envkit doctor"


def _plugin_checks() -> Iterator[Check]:
    for name, points in sorted(plugins.installed(GROUP).items()):
        yield _plugin_check(name, points)


def _plugin_check(name: str, points: Sequence[EntryPoint]) -> Check:
    distribution = plugins.owners(points)
    try:
        found = str(plugins.load_only(points, f"the check {name!r}")())
    except errors.EnvkitError as error:
        matters = f"environments that need the {name} cannot be played"
        return _failed("plugin", name, error, matters=matters, distribution=distribution)
    except BaseException as error:  # a plugin's error is its finding
        if type(error) is KeyboardInterrupt:
            raise
        return Check(
            area="plugin",
            name=name,
            status=Status.FAILED,
            found=f"the check itself failed: {errors.describe(error)}",
            matters="the state of this part is unknown",
            fix=f"pip install --force-reinstall --no-deps {distribution}",
        )
    return Check(area="plugin", name=name, status=Status.OK, found=found)


def _fix_in(message: str) -> str:
    """Return the command after "Install it with:" or "Fix it with:" of an error's message."""
    line = re.search(r"(?:[Ii]nstall|Fix) (?:it|them|one) with: (.*?)(?: \(or .*)?$", message, re.S)
    return "" if line is None else line[1].strip()


def machine() -> dict[str, str]:
    """Return facts about the machine, which need no check."""
    return {
        "envkit": installed.version_of(installed.DISTRIBUTION) or "not installed",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cpus": installed.cpus(),
    }
