"""The virtual environment of the SGLang contract server: built once, kept outside the checkout.

Its folder is named after a hash of the recipe (the files beside this one and the interpreter), so a
changed recipe makes a new one. It is built under another name and renamed when it works.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
SGLANG_VERSION = "0.5.23"
RECIPE_FILES = ("requirements.txt", "sgl_kernel_stub.py", "torchvision_stub.py")
BUILD_TIMEOUT_S = 45 * 60
UNUSED_DAYS = 30
PROGRESS_S = 20

# Everything that the server imports before it reads a model. The kind of torch is read from its
# files: a build for CUDA does not import here, because its libraries are not installed.
_CHECK = """
import importlib.util, pathlib, runpy
torch = pathlib.Path(importlib.util.find_spec("torch").origin)
cuda = runpy.run_path(str(torch.with_name("version.py")))["cuda"]
if cuda is not None:
    raise SystemExit(
        f"this torch is a build for CUDA {cuda}. Point PIP_EXTRA_INDEX_URL at PyTorch's index of "
        "CPU wheels and run this again"
    )
import sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler
import sglang.srt.multimodal.processors.qwen_vl
"""


class EnvironmentBuildError(Exception):
    """The environment could not be built; this says nothing about envkit's client."""


def say(text: str) -> None:
    """Write a line at once, so that a log shows it while the next step runs."""
    sys.stdout.write(f"[contract-sglang] {text}\n")
    sys.stdout.flush()


def cache_root() -> Path:
    """Return the folder that keeps environments, models and logs between runs."""
    named = os.environ.get("ENVKIT_TEST_CACHE")
    if named:
        return Path(named).resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "envkit"


def environment_dir() -> Path:
    """Return where the environment of this recipe is, or will be."""
    digest = hashlib.sha256()
    for part in (platform.machine(), platform.python_version(), _CHECK):
        digest.update(part.encode() + b"\0")
    for name in RECIPE_FILES:
        digest.update((HERE / name).read_bytes())
    return cache_root() / f"sglang-{SGLANG_VERSION}-{digest.hexdigest()[:12]}"


def ensure_environment() -> Path:
    """Return the environment's interpreter, building the environment when it is missing.

    Raises:
        EnvironmentBuildError: A step of the build failed; its output ends the message.
    """
    folder = environment_dir()
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / "sglang-environment.lock"):
        if python.exists():
            say(f"environment: {folder} (kept from an earlier run)")
            os.utime(folder)
            return python
        _remove_unused(folder.parent)
        started = time.monotonic()
        say(f"environment: building {folder}; downloads about 0.9 GB, takes 2.8 GB of disk")
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _build(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(folder)
        say(f"environment: built in {time.monotonic() - started:.0f} s")
    return python


def _remove_unused(root: Path) -> None:
    """Remove environments of older recipes that nobody has used for a month."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for folder in root.glob("sglang-[0-9]*"):
        if folder.is_dir() and folder.stat().st_mtime < oldest:
            say(f"environment: removing {folder}, unused for {UNUSED_DAYS} days")
            shutil.rmtree(folder, ignore_errors=True)


def _build(folder: Path) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise EnvironmentBuildError(
            f"the recipe is for Linux on x86-64, this is {sys.platform} on {platform.machine()}"
        )
    log = folder.with_name(folder.name + ".log")
    log.unlink(missing_ok=True)
    _step("making a virtual environment", [sys.executable, "-m", "venv", str(folder)], folder, log)
    python = str(folder / "bin" / "python")
    requirements = str(HERE / "requirements.txt")
    pip = [python, "-m", "pip", "install", "--no-deps", "--progress-bar", "off", "--no-compile"]
    _step("installing packages", [*pip, "--requirement", requirements], folder, log)
    site = Path(_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))
    (site / "sgl_kernel").mkdir()
    shutil.copy(HERE / "sgl_kernel_stub.py", site / "sgl_kernel" / "__init__.py")
    shutil.copy(HERE / "torchvision_stub.py", site / "envkit_torchvision_stub.py")
    (site / "envkit_torchvision_stub.pth").write_text("import envkit_torchvision_stub\n")
    _step("importing the server", [python, "-c", _CHECK], folder, log)


def _step(what: str, command: Sequence[str], folder: Path, log: Path) -> None:
    started = time.monotonic()
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with log.open("ab") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)
        try:
            while True:
                seconds = time.monotonic() - started
                if seconds > BUILD_TIMEOUT_S:
                    raise EnvironmentBuildError(f"{what} took more than {BUILD_TIMEOUT_S} s")
                try:
                    code = process.wait(PROGRESS_S)
                    break
                except subprocess.TimeoutExpired:
                    say(f"environment: {what}, {seconds:.0f} s, {_gigabytes(folder):.1f} GB so far")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0:
        raise EnvironmentBuildError(f"{what} failed with status {code}:\n{tail(log)}")
    say(f"environment: {what}: {time.monotonic() - started:.0f} s")


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _gigabytes(folder: Path) -> float:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue  # pip moves files while this walks
    return total / 1e9


def tail(log: Path, lines: int = 40) -> str:
    """Return the last lines of a log, or a note that there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return f"(no log at {log})"


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("environment: another run is building it; waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
