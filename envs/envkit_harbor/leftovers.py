"""Folders of workers: claimed while their driver or worker lives, and swept afterwards.

A claim is a lock on a file in the folder. Driver and worker both hold it, so it is free only when
both are gone, whichever way. `sweep` removes what such a pair left: processes that name the folder
on their command line, containers and networks whose label does, and the folder.
"""

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "envkit-harbor-"
PODMAN: Final = "podman"
"""Program of the containers, and the file that notes that a worker starts some."""
_LABEL: Final = "com.docker.compose.project"
"""Label of containers and networks; it begins with the name of the worker's folder."""
_PODMAN_SECONDS: Final = 60.0
TEMPORARY: Final = "temporary"
_LOCK: Final = "lock"
_NEW_SECONDS: Final = 60.0
"""Age below which a folder without a lock file is still being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A folder that is in use. It has a folder for temporary files."""

    folder: Path
    lock: int
    """An open file; the claim ends when every process that holds it has ended."""


def claim() -> Claim:
    """Make a folder and claim it. The sandboxes' user may enter it, but not list it."""
    # Images are named after it, and the names that tempfile chooses are not always allowed there.
    folder = Path(tempfile.gettempdir(), f"{PREFIX}{secrets.token_hex(6)}")
    folder.mkdir(mode=0o711)
    folder.chmod(0o711)
    (folder / TEMPORARY).mkdir()
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return Claim(folder=folder, lock=lock)


def remove(claimed: Claim) -> None:
    """End what is left of a claim and remove its folder."""
    _clear(claimed.folder)
    with suppress(OSError):
        os.close(claimed.lock)


def sweep() -> list[Path]:
    """Remove what dead drivers and workers left on this machine; return the folders."""
    swept: list[Path] = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        if _is_abandoned(folder):
            _clear(folder)
            swept.append(folder)
    return swept


def _clear(folder: Path) -> None:
    _end_named(folder)
    if (folder / PODMAN).exists():
        for what in ("container", "network"):
            _remove_labelled(what, folder.name)
        _remove_images(folder.name)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_labelled(what: str, name: str) -> None:
    """Remove podman's containers or networks whose project begins with a name."""
    listing = ["container", "ls", "--all"] if what == "container" else ["network", "ls"]
    shown = "{{.ID}}" if what == "container" else "{{.Name}}"
    removing = ["rm", "--force", "--time", "0"]
    with suppress(OSError, subprocess.SubprocessError):
        found = _podman(*listing, "--format", shown)
        for one in found.split():
            seen: dict[str, Any] = json.loads(_podman(what, "inspect", one))[0]
            labels: dict[str, Any] = (
                seen.get("labels") or seen.get("Config", {}).get("Labels") or {}
            )
            if str(labels.get(_LABEL, "")).startswith(f"{name}-"):
                _podman(what, *removing, one)


def _remove_images(name: str) -> None:
    """Remove the images that were built for a worker's containers."""
    with suppress(OSError, subprocess.SubprocessError):
        for one in _podman("image", "ls", "--format", "{{.Repository}}").split():
            if f"/{name}-" in one:
                _podman("image", "rm", "--force", one)


def _podman(*words: str) -> str:
    return subprocess.run(
        [PODMAN, *words], check=True, capture_output=True, text=True, timeout=_PODMAN_SECONDS
    ).stdout


def _is_abandoned(folder: Path) -> bool:
    try:
        if folder.stat().st_uid != os.geteuid():
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        with suppress(OSError):
            return time.time() - folder.stat().st_mtime > _NEW_SECONDS
        return False
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _end_named(folder: Path) -> None:
    """Kill processes that have the folder on their command line."""
    name = os.fsencode(folder)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if any(word == name or name + b"/" in word for word in words):
                    os.kill(int(entry.name), signal.SIGKILL)
