"""Enter a sandbox and run a command, write files, read files, or end all processes.

    python -I -S enter.py PID ORDER

PID is the sandbox's process 1 as the host sees it. ORDER is a JSON object: `do` is "exec", "put",
"get" or "end". Standard input and output carry a tar archive or the command's output. The process
that does it is a child in the sandbox's namespaces, with few capabilities and no way to get more.
Everything that it needs is imported before it enters: the sandbox's files are the policy's.
"""

import contextlib
import ctypes
import errno
import io
import json
import os
import resource
import signal
import sys
import tarfile
from pathlib import Path
from typing import Any

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
"""In order: the first gives the rights to enter the others."""
KEPT = frozenset((0, 1, 3, 5, 6, 7))
"""Capabilities inside: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID and SETUID."""
LAST_CAPABILITY = 63
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITY_VERSION = 0x20080522
FAILED = 125
"""Exit status if the order itself cannot be carried out."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def main() -> int:
    """Enter, fork into the process namespace, and return the child's exit status."""
    process, order = sys.argv[1], json.loads(sys.argv[2])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the worker died before this asked to die with it
        return FAILED
    opened = [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    with contextlib.suppress(PermissionError):
        os.setgroups([])
    for number in opened:
        if libc.setns(number, 0):
            raise OSError(ctypes.get_errno(), "a namespace of the sandbox cannot be entered")
        os.close(number)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            _confine(libc, order)
            status = _carry_out(order)
        except OSError as error:
            os.write(2, f"{os.strerror(error.errno or errno.EIO)}: {error.filename}\n".encode())
        except (tarfile.TarError, EOFError) as error:
            os.write(2, f"{error}\n".encode())
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _confine(libc: ctypes.CDLL, order: dict[str, Any]) -> None:
    """Drop capabilities for good, and set limits."""
    os.setsid()
    for number in range(LAST_CAPABILITY + 1):
        if number not in KEPT:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kept = sum(1 << number for number in KEPT)
    sets = (_Sets * 2)(_Sets(kept, kept, 0), _Sets(0, 0, 0))
    if libc.capset(ctypes.byref(_Header(CAPABILITY_VERSION, 0)), sets):
        raise OSError(ctypes.get_errno(), "capset")
    if order["do"] == "end":
        return  # a limit that the policy reached must not stop this
    for kind, most in order.get("limits", {}).items():
        number = getattr(resource, kind)
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))


def _carry_out(order: dict[str, Any]) -> int:
    match order["do"]:
        case "exec":
            os.chdir(order["cwd"])
            os.execve(order["argv"][0], order["argv"], order["env"])
        case "end":
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all but process 1 and this one, at once
            return 0
        case "put":
            return _put(order["path"])
        case _:
            return _get(order["path"], order["most"])


def _put(target: str) -> int:
    """Unpack the archive on standard input into a folder, which is made."""
    os.makedirs(target, exist_ok=True)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            archive.extract(member, target, filter="tar", numeric_owner=True)
    return 0


def _get(source: str, most: int) -> int:
    """Write the regular files of a folder, or one file, as an archive, up to so many bytes."""
    left = most
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for path in _files(Path(source)):
            with contextlib.suppress(OSError):  # what cannot be read is not there
                data = _read(path, left)
                name = path.relative_to(source) if path != Path(source) else Path(path.name)
                entry = tarfile.TarInfo(name.as_posix())
                entry.size, entry.mode = len(data), 0o644
                archive.addfile(entry, io.BytesIO(data))
                left -= len(data)
    return 0


def _files(source: Path) -> list[Path]:
    if source.is_symlink():
        return []
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(source))
    found = (path for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(found, key=lambda path: (not path.name.startswith("reward."), str(path)))


def _read(path: Path, most: int) -> bytes:
    """Return a file's content.

    Raises:
        OSError: It is a link, not a regular file, or too large.
    """
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(number, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, "too large", str(path))
    return data


if __name__ == "__main__":
    sys.exit(main())
