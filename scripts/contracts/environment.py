"""Virtual environments of contract tests: built once, kept outside the checkout.

A recipe is a complete list of pinned packages, extra files, and code that must import.
An environment's folder is named after a hash of its recipe and interpreter, so a changed recipe
creates a new one. It is built under a temporary name and renamed once its imports work.

Packages are installed with `--no-deps`: for `torchvision` or `qwen-vl-utils` a resolver would
install gigabytes of CUDA packages, and trainers reject combinations that work. Only a recipe that
`resolves` gets dependencies that it does not list.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BUILD_TIMEOUT_S = 45 * 60
UNUSED_DAYS = 30
PROGRESS_S = 20

# Read torch's build from its files: a CUDA build does not import here without its libraries.
_CPU_TORCH = """
import importlib.util, pathlib, runpy
torch = pathlib.Path(importlib.util.find_spec("torch").origin)
cuda = runpy.run_path(str(torch.with_name("version.py")))["cuda"]
if cuda is not None:
    raise SystemExit(
        f"this torch is a build for CUDA {cuda}. Point PIP_EXTRA_INDEX_URL at PyTorch's index of "
        "CPU wheels and run this again"
    )
"""


class EnvironmentBuildError(Exception):
    """The environment could not be built, which is not a failure of envkit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraFile:
    """A file copied into the environment after its packages.

    Attributes:
        source: The file in the checkout.
        target: Its path inside site-packages.
        at_start: Import it in every process of the environment; `target` is a top-level module.
    """

    source: Path
    target: str
    at_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to build one environment.

    Attributes:
        name: The first part of the folder's name. Up to a dash, it is also pytest's marker and the
            folder of tests.
        version: The tested project's version, the second part.
        requirements: A pip requirements file that lists every package, dependencies included.
        check: Python code that imports what the tests need, run at the end of a build.
        pip_options: Additional options of `pip install`.
        files: Files copied after the packages, for example stubs.
        variables: Environment variables of `check` and of the tests.
        cost: Download and disk size of a build, for its first progress line.
        has_torch: Whether the packages include torch, which must be a CPU build.
        resolves: Let pip add the dependencies of what is listed, from wheels only.
        oldest: The oldest Python that the packages accept.
    """

    name: str
    version: str
    requirements: Path
    check: str
    pip_options: tuple[str, ...] = ()
    files: tuple[ExtraFile, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    cost: str = "downloads about 0.5 GB, takes 1.7 GB of disk"
    has_torch: bool = True
    resolves: bool = False
    oldest: tuple[int, int] = (3, 11)

    def whole_check(self) -> str:
        """Return the code that must run at the end of a build."""
        return _CPU_TORCH + self.check if self.has_torch else self.check

    def folder(self) -> Path:
        """Return the environment's folder, existing or not."""
        described = [
            platform.machine(),
            interpreter(self.oldest)[1],
            self.whole_check(),
            *self.pip_options,
            *(f"{file.target} {file.at_start}" for file in self.files),
            *(f"{name}={value}" for name, value in self.variables),
        ]
        digest = hashlib.sha256(json.dumps(described).encode())
        for path in (self.requirements, *(file.source for file in self.files)):
            digest.update(b"\0" + path.read_bytes())
        return cache_root() / f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


@cache
def interpreter(oldest: tuple[int, int]) -> tuple[str, str]:
    """Return an interpreter that is new enough, and its version.

    It is this one, or what ENVKIT_NEWER_PYTHON names, or the oldest on the path or of pyenv.

    Raises:
        EnvironmentBuildError: This machine has none.
    """
    if sys.version_info >= oldest:
        return sys.executable, platform.python_version()
    named = os.environ.get("ENVKIT_NEWER_PYTHON")
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    names = [f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 4)]
    found = (
        [named] if named else [*map(shutil.which, names), *root.glob("versions/3.*/bin/python3")]
    )
    ask = "import ensurepip, platform; print(platform.python_version())"
    usable: dict[tuple[int, ...], tuple[str, str]] = {}
    for one in filter(None, found):
        with suppress(OSError, subprocess.CalledProcessError):
            command = [str(one), "-c", ask]
            version = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()
            usable[tuple(map(int, re.findall(r"\d+", version)[:3]))] = str(one), version
    new = {version: one for version, one in usable.items() if version >= oldest}
    if not new:
        raise EnvironmentBuildError(
            f"it needs Python {oldest[0]}.{oldest[1]} or newer; name one in ENVKIT_NEWER_PYTHON"
        )
    return new[min(new)]


def say(name: str, text: str) -> None:
    """Write and flush a line, so a log shows it while the next step runs."""
    sys.stdout.write(f"[contract-{name}] {text}\n")
    sys.stdout.flush()


def cache_root() -> Path:
    """Return the folder for environments, models and logs that persist between runs."""
    named = os.environ.get("ENVKIT_TEST_CACHE")
    if named:
        return Path(named).resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "envkit"


def tail(log: Path, lines: int = 40) -> str:
    """Return the last lines of a log, or a note that there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return f"(no log at {log})"


def ensure_environment(recipe: Recipe) -> Path:
    """Return the environment's interpreter, building the environment if needed.

    Raises:
        EnvironmentBuildError: A step of the build failed; its output ends the message.
    """
    folder = recipe.folder()
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(recipe.name):
        if python.exists():
            say(recipe.name, f"environment: {folder} (kept from an earlier run)")
            os.utime(folder)
            return python
        _remove_unused(recipe)
        started = time.monotonic()
        say(recipe.name, f"environment: building {folder}; {recipe.cost}")
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _Build(recipe, partial).run()
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(folder)
        say(recipe.name, f"environment: built in {time.monotonic() - started:.0f} s")
    return python


def _remove_unused(recipe: Recipe) -> None:
    """Remove environments of older recipes that have not been used for a month."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for folder in cache_root().glob(f"{recipe.name}-[0-9]*"):
        if folder.is_dir() and folder.stat().st_mtime < oldest:
            say(recipe.name, f"environment: removing {folder}, unused for {UNUSED_DAYS} days")
            shutil.rmtree(folder, ignore_errors=True)


class _Build:
    """One build into a folder, with a log next to it."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe = recipe
        self._folder = folder
        self._log = folder.with_name(folder.name + ".log")
        self._variables = {**os.environ, **dict(recipe.variables)}
        self._variables["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"

    def run(self) -> None:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise EnvironmentBuildError(
                f"the recipe is for Linux on x86-64, this is {sys.platform} on {platform.machine()}"
            )
        self._log.unlink(missing_ok=True)
        venv = [interpreter(self._recipe.oldest)[0], "-m", "venv", str(self._folder)]
        self._step("creating a virtual environment", venv)
        python = str(self._folder / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--no-compile", "--progress-bar", "off"]
        pip += ["--only-binary", ":all:"] if self._recipe.resolves else ["--no-deps"]
        listed = ["--requirement", str(self._recipe.requirements)]
        self._step("installing packages", [*pip, *self._recipe.pip_options, *listed])
        self._copy_files(python)
        self._step("importing", [python, "-c", self._recipe.whole_check()])

    def _copy_files(self, python: str) -> None:
        where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        found = subprocess.run(where, check=True, capture_output=True, text=True)
        site = Path(found.stdout.strip())
        for file in self._recipe.files:
            target = site / file.target
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.source, target)
            if file.at_start:
                target.with_suffix(".pth").write_text(f"import {target.stem}\n")

    def _step(self, what: str, command: Sequence[str]) -> None:
        name, started = self._recipe.name, time.monotonic()
        with self._log.open("ab") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink, env=self._variables)
            try:
                code = self._wait(process, what, started)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if code != 0:
            raise EnvironmentBuildError(f"{what} failed with status {code}:\n{tail(self._log)}")
        say(name, f"environment: {what}: {time.monotonic() - started:.0f} s")

    def _wait(self, process: "subprocess.Popen[bytes]", what: str, started: float) -> int:
        while True:
            seconds = time.monotonic() - started
            if seconds > BUILD_TIMEOUT_S:
                raise EnvironmentBuildError(f"{what} took more than {BUILD_TIMEOUT_S} s")
            try:
                return process.wait(PROGRESS_S)
            except subprocess.TimeoutExpired:
                size = f"{_gigabytes(self._folder):.1f} GB so far"
                say(self._recipe.name, f"environment: {what}, {seconds:.0f} s, {size}")


def _gigabytes(folder: Path) -> float:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue  # pip moves files while this walks
    return total / 1e9


@contextmanager
def locked(name: str) -> Generator[None]:
    """Let one process at a time build what has this name."""
    with (cache_root() / f"{name}-environment.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(name, "environment: waiting for another run to build it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
