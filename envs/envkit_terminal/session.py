"""A terminal session: a shell in a bubblewrap without network, driven from outside."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envkit.closing import Closing
from envkit.errors import EnvFault, FaultKind, MissingDependencyError

HOME: Final = "/home/agent"
INSTALL: Final = "apt-get install --no-install-recommends bubblewrap python3"
LINK: Final = -1
"""Stands for the mode of a symbolic link in the supervisor's protocol."""
_NOBODY: Final = 65534
_START_SECONDS: Final = 20.0
_GRACE_SECONDS: Final = 20.0
"""Time beyond a command's own until the sandbox counts as dead."""
_MIB: Final = 1 << 20
_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
_ETC: Final = ("alternatives", "ld.so.cache", "localtime", "mime.types", "ssl/certs")
_PASSWD: Final = f"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:Agent:{HOME}:/bin/bash\n"
_GROUP: Final = "root:x:0:\nagent:x:1000:\n"
_NO_ENV: Final = {"PATH": "/usr/bin:/bin"}
"""bwrap's own environment, which the sandbox could read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one session may use."""

    home_mib: int = 256
    """Size of the home folder and of every other writable folder."""
    memory_mib: int = 1024
    """Memory of all processes together; beyond it they are killed."""
    processes: int = 128
    """Processes at a time; beyond it all are killed."""
    output_head: int = 6000
    """Bytes kept of the start of a command's output."""
    output_tail: int = 6000
    """Bytes kept of its end."""
    snapshot_mib: int = 32
    """Final files in all; a session that leaves more scores 0."""
    snapshot_entries: int = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, a folder or a symbolic link at its absolute path."""

    data: bytes | None = None
    """None for a folder."""
    mode: int = 0o644
    link: str | None = None
    """The target of a symbolic link, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that ended."""

    output: str
    """Standard output and error in one, with a note where the middle was cut."""
    code: int
    timed_out: bool = False
    is_new_shell: bool = False
    """Whether the shell ended, so that variables and functions are lost."""
    limit: str | None = None
    """"memory" or "processes" if everything was killed for exceeding it."""
    cut: int = 0
    """Bytes left out of the output."""
    folder: str = HOME
    """The shell's folder afterwards."""


def find_bubblewrap() -> str:
    """Return the path of bubblewrap.

    Raises:
        MissingDependencyError: bubblewrap or the system's Python is not installed.
    """
    found = shutil.which("bwrap")
    if found is None or not os.access("/usr/bin/python3", os.X_OK):
        raise MissingDependencyError(
            "the terminal environment needs bubblewrap and Debian's python3, which are not "
            f"installed: {INSTALL}"
        )
    return found


@dataclass(kw_only=True)
class TerminalSession(Closing):
    """A shell with its own home folder. Commands share its state until `close`."""

    limits: Limits = field(default_factory=Limits)
    folders: Sequence[str] = ()
    """More writable folders, such as "/app"."""
    folder: str = HOME
    """Where the shell starts."""
    read_only: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Files that nothing in the session can change, by absolute path."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    _process: "subprocess.Popen[bytes] | None" = None
    _buffer: bytes = b""

    def start(self) -> "TerminalSession":
        """Start the sandbox.

        Raises:
            EnvFault: It does not start.
            MissingDependencyError: bubblewrap is not installed.
        """
        bwrap = find_bubblewrap()
        try:
            self._start(bwrap)
            if not self._read(_START_SECONDS).get("ready"):
                raise EnvFault("the terminal's sandbox did not start", kind=FaultKind.CRASHED)
        except BaseException:
            self.close()
            raise
        return self

    def put(self, entries: Mapping[str, Entry]) -> None:
        """Write files, folders and links.

        Raises:
            EnvFault: The sandbox is gone.
        """
        rows = [
            [path, one.link, LINK]
            if one.link is not None
            else [path, None if one.data is None else base64.b64encode(one.data).decode(), one.mode]
            for path, one in entries.items()
        ]
        self._ask({"put": rows}, _GRACE_SECONDS)

    def run(self, command: str, *, seconds: float) -> Ran:
        """Run a command in the shell.

        Args:
            command: Any text; bash reads it.
            seconds: Its deadline. What it started is then interrupted, and killed 2 s later.

        Raises:
            EnvFault: The sandbox is gone.
        """
        order = {
            "run": command.replace("\0", ""),
            "seconds": seconds,
            "head": self.limits.output_head,
            "tail": self.limits.output_tail,
        }
        reply = self._ask(order, seconds + _GRACE_SECONDS)
        head, tail = (base64.b64decode(reply[key]) for key in ("head", "tail"))
        return Ran(
            output=_joined(head, tail, reply["cut"]),
            code=reply["code"],
            timed_out=reply["timed_out"],
            is_new_shell=reply["is_new_shell"],
            limit=reply["limit"],
            cut=reply["cut"],
            folder=reply["folder"],
        )

    def snapshot(self) -> dict[str, Entry] | None:
        """Kill all processes and return the final files, or None if they are too large.

        Raises:
            EnvFault: The sandbox is gone.
        """
        order = {
            "snapshot": self._roots,
            "most_bytes": self.limits.snapshot_mib * _MIB,
            "most_entries": self.limits.snapshot_entries,
        }
        reply = self._ask(order, 3 * _GRACE_SECONDS)
        if reply.get("too_large"):
            return None
        return {path: _entry(data, mode) for path, data, mode in reply["entries"]}

    def close(self) -> None:
        """End the sandbox and everything in it."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()  # the sandbox's first process ends with its input
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    @property
    def _roots(self) -> list[str]:
        return [HOME, *self.folders]

    def _start(self, bwrap: str) -> None:
        with contextlib.ExitStack() as stack:
            files = {"/run/supervisor.py": _SUPERVISOR.read_bytes(), **self.read_only}
            files |= {"/etc/passwd": _PASSWD.encode(), "/etc/group": _GROUP.encode()}
            numbers = {
                path: stack.enter_context(_memory_file(data)) for path, data in files.items()
            }
            limits = {
                "processes": self.limits.processes,
                "memory": self.limits.memory_mib * _MIB,
            }
            program = ["/usr/bin/python3", "-I", "-S", "/run/supervisor.py"]
            program += [json.dumps(limits), self.folder]
            is_root = os.geteuid() == 0
            self._process = subprocess.Popen(
                [bwrap, *self._walls(numbers), "--", *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_NO_ENV,
                pass_fds=tuple(numbers.values()),
                # As root, the limit of processes would not bind, and root would own the sandbox.
                user=_NOBODY if is_root else None,
                group=_NOBODY if is_root else None,
                extra_groups=[] if is_root else None,
            )

    def _walls(self, numbers: Mapping[str, int]) -> list[str]:
        walls = ["--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
        walls += ["--as-pid-1", "--new-session", "--hostname", "terminal", "--cap-drop", "ALL"]
        walls += ["--disable-userns", "--clearenv", "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "lib", "lib64", "sbin"):
            walls += ["--symlink", f"usr/{name}", f"/{name}"]
        for name in _ETC:
            walls += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        walls += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        size = str(self.limits.home_mib * _MIB)
        for folder in ("/tmp", "/dev/shm", *self._roots):
            walls += ["--size", size if folder in self._roots else str(64 * _MIB)]
            walls += ["--tmpfs", folder]
        for path, number in numbers.items():
            walls += ["--perms", "0555", "--ro-bind-data", str(number), path]
        walls += ["--remount-ro", "/", "--chdir", HOME]
        fixed = {
            "HOME": HOME,
            "USER": "agent",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TERM": "dumb",
            "PAGER": "cat",
            "GIT_PAGER": "cat",
            "EDITOR": "false",
        }
        for name, value in {**fixed, **self.environment}.items():
            walls += ["--setenv", name, value]
        return walls

    def _ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise EnvFault("the terminal session is closed", kind=FaultKind.CRASHED)
        line = (json.dumps(order) + "\n").encode()
        # A writer of its own: a sandbox that stopped reading must not block the deadline.
        writer = threading.Thread(target=_write, args=(process.stdin, line), daemon=True)
        writer.start()
        return self._read(seconds)

    def _read(self, seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        source, end = process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([source], [], [], left)[0]:
                raise EnvFault(
                    f"the terminal's sandbox did not answer within {seconds:.0f} s",
                    kind=FaultKind.TIMEOUT,
                )
            data = os.read(source, 1 << 20)
            if not data:
                raise EnvFault("the terminal's sandbox is gone", kind=FaultKind.CRASHED)
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply


def _write(stream: Any, line: bytes) -> None:  # noqa: ANN401  # a pipe's buffered writer
    with contextlib.suppress(OSError, ValueError):
        stream.write(line)
        stream.flush()


@contextlib.contextmanager
def _memory_file(data: bytes) -> Generator[int]:
    number = os.memfd_create("file")
    try:
        with open(number, "wb", closefd=False) as handle:
            handle.write(data)
        os.lseek(number, 0, os.SEEK_SET)
        yield number
    finally:
        os.close(number)


def _joined(head: bytes, tail: bytes, cut: int) -> str:
    first, last = (part.decode("utf-8", "replace") for part in (head, tail))
    if not cut:
        return (head + tail).decode("utf-8", "replace")
    return f"{first}\n[... {cut} bytes left out ...]\n{last}"


def _entry(data: str | None, mode: int) -> Entry:
    if data is None:
        return Entry(mode=mode)
    if mode == LINK:
        return Entry(link=data)
    return Entry(data=base64.b64decode(data), mode=mode)
