"""A terminal session: a shell in a bubblewrap without network, driven from outside."""

import base64
import json
import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envkit.closing import Closing
from envkit.errors import EnvFault, FaultKind, MissingDependencyError
from envkit.text import utf8
from envkit_sandbox import bubblewrap
from envkit_sandbox.bubblewrap import Sandbox
from envkit_sandbox.channel import Channel
from envkit_sandbox.trial import check_sandbox

HOME: Final = "/home/agent"
_START_SECONDS: Final = 20.0
_GRACE_SECONDS: Final = 20.0
"""Seconds past a command's deadline until the sandbox counts as dead."""
_COPY_SECONDS: Final = 60.0
"""Maximum seconds for the files of a session to be read or written."""
_MIB: Final = 1 << 20
_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
_ETC: Final = ("alternatives", "ld.so.cache", "localtime", "mime.types", "ssl/certs")
_PASSWD: Final = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:Agent:{home}:/bin/bash\n"
_GROUP: Final = "root:x:0:\nagent:x:1000:\n"
_SCRATCH_MIB: Final = 64
_SPARE_REPLY: Final = 16 * _MIB
"""Bytes of the supervisor's largest reply besides the files and names of a snapshot."""
_ENVIRONMENT: Final = {
    "USER": "agent",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "EDITOR": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of one session."""

    home_mib: int = 256
    """Size of the home folder and of every other writable folder."""
    memory_mib: int = 1024
    """Memory of all processes together; above it they are killed."""
    processes: int = 128
    """Processes at a time; above it all are killed."""
    output_head: int = 6000
    """Bytes kept from the start of a command's output."""
    output_tail: int = 6000
    """Bytes kept from its end."""
    snapshot_mib: int = 32
    """Total size of the final files and of their paths; a session that leaves more scores 0."""
    snapshot_entries: int = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, a folder, a symbolic link or a special file at its absolute path.

    Paths and targets are bytes, decoded as `os.fsdecode` does on Linux.
    """

    data: bytes | None = None
    """The content of a file, else None."""
    mode: int = 0o644
    """Permission bits."""
    link: str | None = None
    """The target of a symbolic link, else None."""
    special: int = 0
    """The type bits of a FIFO, a socket or a device, such as `stat.S_IFIFO`; else 0."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.data is None and self.link is None and not self.special


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that ended."""

    output: str
    """Standard output and error together, with a note where the middle was cut."""
    code: int
    timed_out: bool = False
    is_new_shell: bool = False
    """Whether the shell ended and its variables and functions are lost."""
    limit: str | None = None
    """"memory" or "processes" if everything was killed for exceeding it."""
    cut: int = 0
    """Bytes dropped from the output."""
    folder: str = HOME
    """The shell's folder afterwards."""


class CopyFault(EnvFault):
    """Files cannot be written to a sandbox: the folder is full, or a name is impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """What is at a path that was to be read."""

    exists: bool
    data: bytes | None
    """None unless it is a regular file of at most 1 MiB."""


def check_programs() -> str:
    """Return how sessions run here, which a trial start shows.

    Raises:
        MissingDependencyError: bubblewrap, the system's Python or pyseccomp is not installed, or
            the machine refuses sandboxes.
        EnvFault: No sandbox can start now.
    """
    bubblewrap.find_bubblewrap()
    if not os.access("/usr/bin/python3", os.X_OK):
        raise MissingDependencyError(
            "a terminal session needs Debian's python3, which is not installed. "
            f"Install it with: {bubblewrap.INSTALL_LINE}"
        )
    return check_sandbox()


@dataclass(kw_only=True)
class TerminalSession(Closing):
    """A shell with its own home folder. Commands share its state until `close`."""

    limits: Limits = field(default_factory=Limits)
    folders: Sequence[str] = ()
    """Additional writable folders, such as "/app"."""
    folder: str = HOME
    """Where the shell starts."""
    read_only: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Read-only files by absolute path."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    home: str = HOME
    """The user's home, also without the variable HOME; another one than `HOME` is empty at first
    and not in snapshots."""
    scratch: Sequence[str] = ()
    """Additional writable folders that are not in snapshots."""
    _process: Sandbox | None = None
    _channel: Channel | None = None

    def start(self) -> "TerminalSession":
        """Start the sandbox.

        Raises:
            EnvFault: It does not start.
            MissingDependencyError: Something is not installed, or the machine refuses sandboxes.
        """
        check_programs()
        try:
            self._start().reply(_START_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def put(self, entries: Mapping[str, Entry]) -> None:
        """Write files, folders, links and special files. Links among them are not followed.

        Raises:
            CopyFault: One cannot be written.
            EnvFault: The sandbox is gone.
        """
        rows = [_row(path, one) for path, one in entries.items()]
        reply = self._ask({"put": rows}, _COPY_SECONDS)
        if "failed" in reply:
            raise CopyFault(
                f"the files cannot be written to the sandbox: {reply['failed']}",
                kind=FaultKind.PERMANENT,
            )

    def run(self, command: str, *, seconds: float) -> Ran:
        """Run a command in the shell.

        Args:
            command: Any text; bash reads it.
            seconds: Its deadline. Its processes are then interrupted, and killed 2 s later.

        Raises:
            EnvFault: The sandbox is gone.
        """
        order = {
            "run": utf8(command.replace("\0", "")),
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
        reply = self._ask(order, _COPY_SECONDS)
        if reply.get("too_large"):
            return None
        return {_text(path): _entry(data, mode) for path, data, mode in reply["entries"]}

    def read(self, folder: str, *names: str) -> list[ReadFile]:
        """Kill all processes and read files of a folder, without following links.

        Raises:
            EnvFault: The sandbox is gone.
        """
        reply = self._ask({"read": [folder, names]}, _GRACE_SECONDS)
        return [ReadFile(exists=one["exists"], data=_bytes(one["data"])) for one in reply["files"]]

    def close(self) -> None:
        """End the sandbox and everything in it."""
        process, self._process, self._channel = self._process, None, None
        if process is not None:
            bubblewrap.end(process)

    @property
    def _roots(self) -> list[str]:
        return [HOME, *self.folders]

    def _start(self) -> Channel:
        limits = {
            "processes": self.limits.processes,
            "memory": self.limits.memory_mib * _MIB,
        }
        program = ["/usr/bin/python3", "-I", "-S", "/run/supervisor.py"]
        program += [json.dumps(limits), self.folder]
        own = {
            "/run/supervisor.py": _SUPERVISOR.read_bytes(),
            "/etc/passwd": _PASSWD.format(home=self.home).encode(),
            "/etc/group": _GROUP.encode(),
        }
        spec = bubblewrap.SandboxSpec(
            hostname="terminal",
            folders={
                "/tmp": _SCRATCH_MIB,
                "/dev/shm": _SCRATCH_MIB,
                **dict.fromkeys(self._roots, self.limits.home_mib),
                **dict.fromkeys(self.scratch, _SCRATCH_MIB),
                **({} if self.home in self._roots else {self.home: _SCRATCH_MIB}),
            },
            files={**self.read_only, **own},
            etc=_ETC,
            environment={**_ENVIRONMENT, "HOME": self.home, **self.environment},
            folder=HOME,
            is_first=True,
        )
        self._process = bubblewrap.spawn(
            spec, program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        most = 2 * self.limits.snapshot_mib * _MIB + _SPARE_REPLY
        self._channel = Channel(self._process, "the terminal's sandbox", most_reply=most)
        return self._channel

    def _ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        if self._channel is None:
            raise EnvFault("the terminal session is closed", kind=FaultKind.CRASHED)
        return self._channel.ask(order, seconds)


def _joined(head: bytes, tail: bytes, cut: int) -> str:
    first, last = (part.decode("utf-8", "replace") for part in (head, tail))
    if not cut:
        return (head + tail).decode("utf-8", "replace")
    return f"{first}\n[... {cut} bytes left out ...]\n{last}"


def _row(path: str, entry: Entry) -> list[Any]:
    """Return an entry for the supervisor: path, content or target, and mode with its type."""
    if entry.link is not None:
        return [_shown(path), _shown(entry.link), stat.S_IFLNK | 0o777]
    if entry.data is not None:
        return [_shown(path), base64.b64encode(entry.data).decode(), stat.S_IFREG | entry.mode]
    return [_shown(path), None, (entry.special or stat.S_IFDIR) | entry.mode]


def _entry(data: str | None, mode: int) -> Entry:
    found, bits = _bytes(data), stat.S_IMODE(mode)
    if stat.S_ISREG(mode):
        return Entry(data=found, mode=bits)
    if stat.S_ISLNK(mode):
        return Entry(link=(found or b"").decode("utf-8", "surrogateescape"))
    return Entry(mode=bits, special=0 if stat.S_ISDIR(mode) else stat.S_IFMT(mode))


def _bytes(data: str | None) -> bytes | None:
    return None if data is None else base64.b64decode(data)


def _shown(path: str) -> str:
    return base64.b64encode(path.encode("utf-8", "surrogateescape")).decode()


def _text(path: str) -> str:
    return base64.b64decode(path).decode("utf-8", "surrogateescape")
