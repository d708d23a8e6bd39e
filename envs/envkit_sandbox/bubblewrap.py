"""Start programs in a bubblewrap sandbox, with no network, no privileges and only chosen files."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind, MissingDependencyError
from envkit_sandbox.seccomp import filter_program

INSTALL_LINE: Final = "apt-get install --no-install-recommends bubblewrap python3"
NOBODY: Final = 65534
"""The user that runs sandboxes if the driver is root and can switch, because the kernel's process
limits do not apply to root."""
_SWITCH: Final = sum(1 << number for number in (0, 1, 5, 6, 7))
"""Capabilities for sandboxes of another user: CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID."""
_END_SECONDS: Final = 5.0
_STARTER: Final = "envkit-sandboxes"
_LOG_BYTES: Final = 4096
_REASON_CHARACTERS: Final = 300
_NO_ENV: Final = {"PATH": "/usr/bin:/bin"}
"""bubblewrap's own environment, which a sandbox could read."""
_FIXED: Final = (
    *("--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin"),
    *("--proc", "/proc", "--dev", "/dev"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Contents of a sandbox in addition to a read-only `/usr`."""

    hostname: str
    folders: Mapping[str, int] = field(default_factory=dict[str, int])
    """Empty writable folders: path -> size in MiB."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Read-only files: path -> content."""
    binds: Mapping[str, str] = field(default_factory=dict[str, str])
    """Writable paths of the host: path inside -> path outside."""
    etc: Sequence[str] = ()
    """Names in `/etc` that are visible, read-only."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: str = "/"
    """Where the program starts."""
    is_first: bool = False
    """Whether the program is process 1, which nothing inside can kill."""
    has_filter: bool = True
    """Whether a seccomp filter applies."""


def find_bubblewrap() -> str:
    """Return the path of bubblewrap.

    Raises:
        MissingDependencyError: It is not installed.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise MissingDependencyError(
            "a sandbox needs the program bwrap, which is not installed. "
            f"Install it with: {INSTALL_LINE}"
        )
    return found


class Sandbox(subprocess.Popen[bytes]):
    """A started sandbox: bubblewrap's process, and the start of what it and its program report."""

    def __init__(self, command: Sequence[str], *, log: int, **how: Any) -> None:  # noqa: ANN401
        """Start bubblewrap.

        Args:
            command: Its command line.
            log: A memory file for its errors, closed by `end`.
            how: As for `subprocess.Popen`.
        """
        self.log = log
        super().__init__(command, stderr=log, **how)

    @property
    def reason(self) -> str:
        """The last words of a sandbox that ended, as one line after a colon; "" if none."""
        said = b"" if self.log < 0 else os.pread(self.log, _LOG_BYTES, 0)
        words = " ".join(said.decode("utf-8", "replace").replace("\0", " ").split()).rstrip(".")
        return f": {words[-_REASON_CHARACTERS:]}" if words else ""


def give_to_sandbox(path: Path) -> None:
    """Make a new file or folder belong to the user that sandboxes run as."""
    if is_switching():
        os.chown(path, NOBODY, NOBODY)


@cache
def is_switching() -> bool:
    """Return whether sandboxes run as `NOBODY`.

    Root stays root without the capabilities, or in a user namespace without that user.
    """
    found = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.M)
    has_rights = found is not None and int(found[1], 16) & _SWITCH == _SWITCH
    return os.geteuid() == 0 and has_rights and all(map(_is_mapped, ("uid_map", "gid_map")))


def _is_mapped(name: str) -> bool:
    rows = (map(int, row.split()) for row in Path(f"/proc/self/{name}").read_text().splitlines())
    return any(first <= NOBODY < first + count for first, _, count in rows)


def spawn(
    spec: SandboxSpec,
    program: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    keep: Sequence[int] = (),
) -> Sandbox:
    """Start a program in a sandbox; the sandbox ends with this process.

    Args:
        spec: The sandbox.
        program: Command line inside. Its standard error is kept for `Sandbox.reason`; give what a
            policy runs another one.
        stdin: As for `subprocess.Popen`.
        stdout: As for `subprocess.Popen`.
        keep: Open descriptors that the program inherits.

    Raises:
        EnvFault: It cannot be started.
        MissingDependencyError: bubblewrap or pyseccomp is not installed.
    """
    bwrap = find_bubblewrap()
    user = NOBODY if is_switching() else None
    with ExitStack() as stack:
        opened: list[int] = []

        def hold(data: bytes) -> str:
            number = _memory_file(data)
            stack.callback(os.close, number)
            opened.append(number)
            return str(number)

        words = [*_words(spec)]
        for path, data in spec.files.items():
            words += ["--perms", "0555", "--ro-bind-data", hold(data), path]
        if spec.has_filter:
            words += ["--seccomp", hold(filter_program())]
        # What is writable has a size; the root and /dev are not, and come last.
        words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", spec.folder]
        # Not on the command line, which shows paths of the host to whoever lists processes.
        listed = hold(b"".join(word.encode() + b"\0" for word in words))
        log = _log_file()

        def start() -> Sandbox:
            return Sandbox(
                [bwrap, "--args", listed, "--", *program],
                log=log,
                stdin=stdin,
                stdout=stdout,
                env=_NO_ENV,
                pass_fds=(*opened, *keep),
                start_new_session=True,  # an interrupt at the terminal is the driver's to handle
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )

        try:
            return _starter.run(start)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can start
            os.close(log)
            reason = getattr(error, "strerror", error)
            raise EnvFault(
                f"bubblewrap did not start: {reason}", kind=FaultKind.TRANSIENT
            ) from error


def first_process(sandbox: Sandbox) -> int:
    """Return the id of the sandbox's process 1, as seen from the host.

    Raises:
        EnvFault: The sandbox is gone.
    """
    try:
        listed = Path(f"/proc/{sandbox.pid}/task/{sandbox.pid}/children").read_text()
        return int(listed.split()[0])
    except (OSError, IndexError) as error:
        raise EnvFault("the sandbox is gone", kind=FaultKind.CRASHED) from error


def end(sandbox: Sandbox) -> None:
    """Kill a sandbox and everything in it, and wait until it is gone."""
    with suppress(EnvFault, ProcessLookupError):
        # Process 1 takes all others along, and bubblewrap collects it. If bubblewrap died first,
        # a machine without an init process would keep a zombie.
        os.kill(first_process(sandbox), signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            sandbox.wait(_END_SECONDS)
    sandbox.kill()
    sandbox.wait()
    for stream in (sandbox.stdin, sandbox.stdout):
        if stream is not None:
            with suppress(OSError):  # unwritten orders to a dead sandbox
                stream.close()
    if sandbox.log >= 0:
        os.close(sandbox.log)
        sandbox.log = -1


class _Starter:
    """Starts all sandboxes from one thread that lives as long as the process.

    The kernel ends a sandbox with the thread that started it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Create an idle starter."""
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, _STARTER)

    def run(self, start: Callable[[], Sandbox]) -> Sandbox:
        """Call the function on the thread."""
        with self._lock:
            try:
                started = self._thread.submit(start)
            except RuntimeError:  # no thread can start, and the call must not run later
                self._thread = ThreadPoolExecutor(1, _STARTER)
                raise
        return started.result()


def _words(spec: SandboxSpec) -> Iterable[str]:
    yield from _FIXED
    yield from ("--hostname", spec.hostname)
    if spec.is_first:
        yield "--as-pid-1"
    for name in spec.etc:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for path, size in spec.folders.items():
        yield from ("--size", str(size << 20), "--perms", "0755", "--tmpfs", path)
    for inside, outside in spec.binds.items():
        yield from ("--bind", outside, inside)
    for name, value in {**_ENVIRONMENT, **spec.environment}.items():
        yield from ("--setenv", name, value)


_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}


def _memory_file(data: bytes) -> int:
    number = os.memfd_create("sandbox")
    with open(number, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _log_file() -> int:
    """Return an empty memory file that never grows beyond its size."""
    number = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(number, _LOG_BYTES)
    fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return number


_starter: Final = _Starter()
os.register_at_fork(after_in_child=_starter.reset)
