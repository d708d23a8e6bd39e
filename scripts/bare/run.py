#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Run commands on a bare Debian: Python, venv, git and make, and nothing else of this machine.

    python3 scripts/bare/run.py                       make demo, then make test
    python3 scripts/bare/run.py 'make demo' 'git log'  these commands, each with its time
    python3 scripts/bare/run.py --out build/bare 'make test ARGS=--write-skipped=$OUT/skipped.json'

A used machine hides what the README's commands need. These commands run in a fresh clone of HEAD,
as root, with an empty home folder and in their own mount and process namespaces. From this machine
they get only the settings, folders and certificates of pip and npm (`takeover.py`). debootstrap
builds the base once, into $ENVKIT_TEST_CACHE or ${XDG_CACHE_HOME:-~/.cache}/envkit.

Needs root and Debian or Ubuntu. Exit status: 0 all commands passed, 1 one failed, 2 a bare machine
cannot be made here, 130 interrupted.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import takeover

SUITE: Final = "bookworm"
"""Debian 12, for its Python 3.11: the pinned CPU build of torch exists for that version only."""
PACKAGES: Final = ("ca-certificates", "python3", "python3-venv", "git", "make")
COMMANDS: Final = ("make demo", "make test")
CHECKOUT: Final = Path(__file__).resolve().parents[2]
INSIDE: Final = "/root/envkit"
OUT: Final = "/root/out"
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ISOLATED: Final = (
    *("setpriv", "--pdeathsig", "KILL"),  # nothing goes on after this script was killed
    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
)
"""Starts a command whose mounts and processes all end with it."""
EXIT_FAILED, EXIT_IMPOSSIBLE, EXIT_INTERRUPTED = 1, 2, 130


class BareError(Exception):
    """A bare machine cannot be made."""


def main() -> int:
    """Make the bare machine, run the commands and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="*", default=COMMANDS, help="shell commands, in order")
    parser.add_argument("--out", type=Path, help="receives what the commands write to $OUT")
    options = parser.parse_args()
    end_on_signals()
    try:
        if os.geteuid() != 0:
            raise BareError("it needs root, for debootstrap, mount and chroot: run it with sudo")
        base = ensure_base(cache_folder())
        with unpacked(base) as root:
            return run_commands(root, options.commands, options.out)
    except BareError as error:
        print(f"bare: a bare machine cannot be made here: {error}", file=sys.stderr)
        return EXIT_IMPOSSIBLE
    except KeyboardInterrupt:
        print("bare: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def end_on_signals() -> None:
    """Raise KeyboardInterrupt at the first signal that asks this script to end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if (
            number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        ):  # nohup ignores it
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the clean-up is not interrupted
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def say(text: str) -> None:
    """Print a line at once."""
    print(f"bare: {text}", flush=True)


def cache_folder() -> Path:
    """Return the folder of bases and roots; it exists."""
    given = os.environ.get("ENVKIT_TEST_CACHE")
    base = given or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/envkit"
    folder = Path(base).expanduser().absolute() / "bare"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# ---- the base


def ensure_base(cache: Path) -> Path:
    """Return an archive of a fresh Debian, building it if it is missing or damaged."""
    digest = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:8]
    base = cache / f"debian-{SUITE}-{platform.machine()}-{digest}.tar.gz"
    if base.exists():
        if _call("gzip", "--test", str(base)).returncode == 0:  # it ends in a checksum
            return base
        say(f"{base} is damaged, building it again")
    say(f"building a bare Debian {SUITE}: {', '.join(PACKAGES)}")
    started = time.monotonic()
    _ensure_debootstrap()
    with work_folder(cache) as work:
        new, packed = work / "root", work / "base.tar.gz"
        _debootstrap(new)
        done = _call("tar", "-C", str(new), "-I", "gzip -1", "-cf", str(packed), ".")
        if done.returncode:
            raise BareError(f"tar failed: {done.stdout[-2000:]}")
        packed.rename(base)
    say(f"built in {time.monotonic() - started:.0f} s, kept as {base}")
    return base


def _ensure_debootstrap() -> None:
    missing = [] if shutil.which("debootstrap") else ["debootstrap"]
    missing += [] if KEYRING.exists() else ["debian-archive-keyring"]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise BareError(f"it needs {' and '.join(missing)}, and there is no apt-get to install it")
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _call("apt-get", "update", "-q", variables=variables)  # an old list may do
    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", *missing)
    done = _call(*install, variables=variables)
    if done.returncode:
        raise BareError(f"{shlex.join(install)} failed: {done.stdout[-2000:]}")


def _debootstrap(target: Path) -> None:
    command = [*ISOLATED, "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    command += [f"--keyring={KEYRING}", SUITE, str(target), *_mirror()]
    variables = dict(os.environ)
    found = _call("apt-config", "shell", "PROXY", "Acquire::http::Proxy").stdout
    proxy = re.match(r"PROXY='([^']+)'", found)
    if proxy is not None:
        variables.setdefault("http_proxy", proxy[1])
    said = ""
    for _ in range(2):  # a mirror may fail to answer once
        shutil.rmtree(target, ignore_errors=True)
        done = _call(*command, variables=variables)
        if done.returncode == 0:
            shutil.rmtree(target / "var" / "cache" / "apt", ignore_errors=True)
            return
        said = done.stdout[-2000:]
    raise BareError(f"{shlex.join(command)} failed:\n{said}")


def _mirror() -> list[str]:
    """Return the mirror of the suite in apt's settings; empty for debootstrap's own choice."""
    sources = Path("/etc/apt")
    blocks: list[tuple[str, str]] = []
    for path in sorted(sources.glob("sources.list.d/*.sources")):
        for block in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            fields = dict(re.findall(r"^(URIs|Suites):\s*(.+)$", block, flags=re.MULTILINE))
            blocks.append((fields.get("URIs", ""), fields.get("Suites", "")))
    for path in (sources / "sources.list", *sorted(sources.glob("sources.list.d/*.list"))):
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            blocks += re.findall(r"^deb\s+(?:\[[^]]*\]\s*)?(\S+)\s+(\S+)", text, flags=re.MULTILINE)
    return next(
        ([uris.split()[0]] for uris, suites in blocks if uris and SUITE in suites.split()), []
    )


# ---- the root


@contextmanager
def work_folder(cache: Path) -> Iterator[Path]:
    """Make a folder that disappears at the end; one that a killed run left disappears now."""
    for old in cache.glob("work-*"):
        with _locked(old) as is_mine:
            if is_mine:
                _remove(old)
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=cache))
    with _locked(folder):
        try:
            yield folder
        finally:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder in which killed processes may still be ending."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    say(f"{folder} could not be removed")


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


@contextmanager
def unpacked(base: Path) -> Iterator[Path]:
    """Make a root folder with a clone of HEAD; it disappears at the end."""
    with work_folder(base.parent) as work:
        root = work / "root"
        root.mkdir()
        done = _call("tar", "-C", str(root), "-I", "gzip", "-xf", str(base))
        if done.returncode:
            raise BareError(f"{base} cannot be unpacked: {done.stdout[-2000:]}")
        takeover.write_settings(root, CHECKOUT)
        _clone(root, work / "gitconfig")
        (root / OUT.lstrip("/")).mkdir()
        yield root


def _clone(root: Path, config: Path) -> None:
    """Clone HEAD, whoever owns the checkout."""
    config.write_text("[safe]\n\tdirectory = *\n", encoding="utf-8")
    variables = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    variables["GIT_CONFIG_GLOBAL"] = str(config)
    target = root / INSIDE.lstrip("/")
    clone = ("git", "clone", "--quiet", "--no-hardlinks", str(CHECKOUT), str(target))
    done = _call(*clone, variables=variables)
    if done.returncode:
        raise BareError(f"{shlex.join(clone)} failed: {done.stdout[-2000:]}")
    changed = _call("git", "-C", str(CHECKOUT), "status", "--porcelain", variables=variables).stdout
    if changed.strip():
        say(f"this is HEAD; {len(changed.splitlines())} uncommitted changes are not in it")


# ---- the commands


def run_commands(root: Path, commands: list[str], out: Path | None) -> int:
    """Run the commands until one fails, copy what they left, and return the exit status."""
    times: list[str] = []
    status = 0
    try:
        for command in commands:
            say(f"$ {command}")
            started = time.monotonic()
            status = run_inside(root, command)
            times.append(f"{command}: {time.monotonic() - started:.0f} s")
            if status:
                break
    finally:
        if out is not None:
            shutil.copytree(root / OUT.lstrip("/"), out, dirs_exist_ok=True)
    say("; ".join(times))
    if status:
        say(f"failed with exit status {status}: {commands[len(times) - 1]}")
    return EXIT_FAILED if status else 0


def run_inside(root: Path, command: str) -> int:
    """Run a shell command in the clone and return its exit status."""
    shown = takeover.visible(CHECKOUT)
    for path in shown:
        _check_place(root, path)
    variables = {
        **takeover.environment(),
        **{"HOME": "/root", "LANG": "C.UTF-8", "OUT": OUT},
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    process = subprocess.Popen(
        [
            *ISOLATED,
            *("bash", str(Path(__file__).with_name("enter.sh")), str(root), *map(str, shown), "--"),
            *("/bin/bash", "-c", f"cd {INSIDE} && {{ {command}\n}}"),
        ],
        stdin=subprocess.DEVNULL,
        env=variables,
        start_new_session=True,  # an interrupt reaches this script only, which ends the namespaces
    )
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _check_place(root: Path, path: Path) -> None:
    """Check that a mount below the root cannot leave it through a link.

    Raises:
        BareError: A link is in the way.
    """
    place = root
    for part in path.parts[1:]:
        place /= part
        if place.is_symlink():
            raise BareError(f"{path} cannot be shown inside: {place.relative_to(root)} is a link")


def _call(
    *command: str, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this machine and collect its output; a missing program is a failure."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            env=variables,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, f"{command[0]} is not installed")


if __name__ == "__main__":
    sys.exit(main())
