"""The first process of a sandbox: keeps a shell, runs commands in it, enforces limits.

    python3 -I -S supervisor.py < orders > replies

One JSON object per line, an order and its reply. Being process 1 of its namespace, it cannot be
killed from inside; it is not dumpable, so it cannot be traced either; and it ends with its input,
which closes when the driver dies. Everything else in the sandbox dies with it. Standard library
only: it runs under the system's Python, without envkit.
"""

import base64
import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import shlex
import signal
import stat
import subprocess
import sys
import time
from typing import Any

TICK = 0.05
INTERRUPT_SECONDS = 2.0
KILL_SECONDS = 1.0
CHUNK = 1 << 16
PR_SET_DUMPABLE = 4
SPARE_PROCESSES = 64
DIE_SECONDS = 10.0
MOST_READ = 1 << 20


class Shell:
    """One bash. Commands go in on its stdin; their exit codes come out on a separate pipe."""

    def __init__(self, folder: str) -> None:
        control, control_in_shell = os.pipe()
        self.output, output_in_shell = os.pipe()
        os.set_blocking(self.output, False)
        self.control = control
        process = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=output_in_shell,
            stderr=output_in_shell,
            pass_fds=(control_in_shell,),
            cwd=folder,
            start_new_session=True,
        )
        process.returncode = 0  # `reap` collects the status of every process
        assert process.stdin is not None
        self.pid, self._stdin = process.pid, process.stdin
        os.set_blocking(self._stdin.fileno(), False)  # a stopped shell reads nothing
        self.unsent = b""
        self._number = control_in_shell
        os.close(control_in_shell)
        os.close(output_in_shell)

    def order(self, command: str) -> None:
        """Prepare a command; `send` passes it to the shell."""
        # eval keeps the shell's state, and builtin ignores functions named like it. All is one
        # line, so that the command finds no rest of it on the shell's input. What it writes to the
        # control pipe itself lacks the mark.
        self._mark = os.urandom(8).hex()
        line = f"builtin eval {shlex.quote(command)} </dev/null {self._number}>&-; "
        line += f'builtin printf "%s %s %s\\n" {self._mark} "$?" "$PWD" >&{self._number}\n'
        self.unsent = line.encode("utf-8", "surrogateescape")

    @property
    def entrance(self) -> int:
        """The descriptor that takes commands."""
        return self._stdin.fileno()

    def send(self) -> None:
        """Pass on as much of the command as the shell takes."""
        try:
            self.unsent = self.unsent[os.write(self.entrance, self.unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # killed in between: `wait` finds out
            self.unsent = b""

    def ended(self) -> tuple[int, str] | None:
        """Read the exit code and the folder after a command; None if the shell is unusable."""
        line = os.read(self.control, CHUNK).decode("utf-8", "replace")
        mark, _, rest = line.partition(" ")
        code, _, folder = rest.partition(" ")
        if mark != self._mark or not code.isdecimal() or not folder.endswith("\n"):
            return None
        return int(code), folder[:-1]

    def close(self) -> None:
        """Close the pipes."""
        os.close(self.control)
        os.close(self.output)
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()


class Kept:
    """The head and tail of an output, and the number of bytes between them."""

    def __init__(self, head: int, tail: int) -> None:
        self._most_head, self._most_tail = head, tail
        self.head, self.tail, self.cut = b"", b"", 0

    def add(self, data: bytes) -> None:
        """Append output."""
        room = self._most_head - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        over = len(self.tail) - self._most_tail
        if over > 0:
            self.tail, self.cut = self.tail[over:], self.cut + over


class Supervisor:
    """Executes orders one at a time."""

    def __init__(self, limits: dict[str, int], start: str) -> None:
        self.limits, self._start = limits, start
        self.statuses: dict[int, int] = {}
        self.folder = self.start
        self.shell = Shell(self.folder)

    @property
    def start(self) -> str:
        """Where a new shell starts: the task's folder, the home folder, or the root.

        The first may not exist yet, and a command may lock both.
        """
        places = (self._start, os.environ["HOME"])
        return next((p for p in places if os.path.isdir(p) and os.access(p, os.X_OK)), "/")

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Execute one order."""
        if "run" in order:
            return self.run(order)
        if "put" in order:
            try:
                put([(named(path), data, mode) for path, data, mode in order["put"]])
            except OSError as error:
                return {"failed": str(error)[:500]}
            if self.folder != self.start:
                self.replace(None)
            return {"ok": True}
        if "snapshot" in order:
            self.kill_processes()
            return snapshot(
                [os.fsencode(root) for root in order["snapshot"]],
                order["most_bytes"],
                order["most_entries"],
            )
        if "read" in order:
            self.kill_processes()
            folder, names = order["read"]
            return {"files": [read(folder, name) for name in names]}
        raise ValueError("unknown order")

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run a command in the shell, and replace the shell if the command ended it."""
        self.reap()
        if self.shell.pid in self.statuses:
            self.replace(None)  # it died between two commands
        kept = Kept(order["head"], order["tail"])
        started = ticks()
        self.shell.order(order["run"])
        outcome = self.wait(kept, started, order["seconds"])
        is_new = outcome["code"] is None or self.shell.pid in self.statuses
        if is_new:
            outcome["code"] = self.replace(outcome["code"])
        return {
            **outcome,
            "head": base64.b64encode(kept.head).decode(),
            "tail": base64.b64encode(kept.tail).decode(),
            "cut": kept.cut,
            "is_new_shell": is_new,
            "folder": self.folder,
        }

    def wait(self, kept: Kept, started: int, seconds: float) -> dict[str, Any]:
        """Collect output until the command or the shell ends, or time or a limit runs out."""
        begun, stage, reason = time.monotonic(), 0, None
        stops = (seconds, seconds + INTERRUPT_SECONDS, seconds + INTERRUPT_SECONDS + KILL_SECONDS)
        while True:
            wanted = [self.shell.output, self.shell.control, 0]
            full = [self.shell.entrance] if self.shell.unsent else []
            ready, free, _ = select.select(wanted, full, [], TICK)
            if 0 in ready and not peek():
                sys.exit(0)  # the driver is gone
            if free:
                self.shell.send()
            drain(self.shell.output, kept)
            if self.shell.control in ready:
                ended = self.shell.ended()
                drain(self.shell.output, kept)
                code = None
                if ended is not None:
                    code, self.folder = ended
                return {"code": code, "timed_out": stage > 0, "limit": reason}
            self.reap()
            if self.shell.pid in self.statuses:  # a process may still hold its control pipe open
                drain(self.shell.output, kept)
                return {"code": None, "timed_out": stage > 0, "limit": reason}
            if (over := self.over_limit()) is not None:
                reason = over
                kill_all()
            while stage < len(stops) and time.monotonic() - begun >= stops[stage]:
                self.stop(stage, started)
                stage += 1

    def stop(self, stage: int, started: int) -> None:
        """Interrupt the command's processes, then kill them, then kill the shell."""
        if stage == 2:
            kill(self.shell.pid, signal.SIGKILL)
            return
        wanted = (signal.SIGINT, signal.SIGKILL)[stage]
        for pid in descendants(self.shell.pid, started):
            kill(pid, wanted)

    def replace(self, code: int | None) -> int:
        """Start a new shell and return the exit code of the old one."""
        kill(self.shell.pid, signal.SIGKILL)
        while self.shell.pid not in self.statuses:
            self.reap()
            time.sleep(0.001)
        status = self.statuses.pop(self.shell.pid)
        self.shell.close()
        self.shell = self.new_shell()
        found = os.waitstatus_to_exitcode(status)
        return code if code is not None else (128 - found if found < 0 else found)

    def new_shell(self) -> Shell:
        """Start a shell, even while commands in the background lock folders or use up processes."""
        for _ in range(3):
            self.folder = self.start
            try:
                return Shell(self.folder)
            except BlockingIOError:  # no process is left for it
                self.kill_processes()
            except OSError:  # its folder was locked in between
                continue
        self.folder = "/"
        return Shell(self.folder)

    def kill_processes(self) -> None:
        """Kill every other process and wait until all are gone, so that none writes any more.

        Raises:
            TimeoutError: One does not die.
        """
        until = time.monotonic() + DIE_SECONDS
        while True:
            kill_all()
            self.reap()
            if not processes():
                return
            if time.monotonic() >= until:
                raise TimeoutError("a process does not die")
            time.sleep(0.001)

    def over_limit(self) -> str | None:
        """Return the limit that the processes exceed together, if any."""
        count = total = 0
        for pid in processes():
            count += 1
            try:
                with open(f"/proc/{pid}/statm") as handle:
                    fields = handle.read().split()
                total += (int(fields[1]) - int(fields[2])) * 4096
            except (OSError, IndexError):
                continue
        if count > self.limits["processes"]:
            return "processes"
        return "memory" if total > self.limits["memory"] else None

    def reap(self) -> None:
        """Reap every process that ended; orphans become this process's children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.shell.pid:
                self.statuses[pid] = status


def drain(source: int, kept: Kept) -> None:
    """Read available output, at most a few megabytes, so that deadlines are checked in between."""
    for _ in range(64):
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            return
        if not data:
            return
        kept.add(data)


def peek() -> bool:
    """Return whether the driver's end of the pipe is still open."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return not any(event & select.POLLHUP for _, event in poll.poll(0))


def ticks() -> int:
    """Return the time since boot in the unit of start times in /proc."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")) - 1


def processes() -> list[int]:
    """Return the ids of all processes except this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def descendants(root: int, started: int) -> list[int]:
    """Return the processes below one that started at or after a time."""
    parents: dict[int, tuple[int, int]] = {}
    for pid in processes():
        try:
            with open(f"/proc/{pid}/stat") as handle:
                fields = handle.read().rpartition(")")[2].split()
            parents[pid] = int(fields[1]), int(fields[19])
        except (OSError, IndexError):
            continue
    found: list[int] = []
    fresh = {root}
    while fresh:
        fresh = {pid for pid, (parent, _) in parents.items() if parent in fresh} - set(found)
        found += fresh
    return [pid for pid in found if parents[pid][1] >= started]


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_all() -> None:
    """Kill every process except this one, in one system call."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def put(entries: list[tuple[bytes, str | None, int]]) -> None:
    """Write files, folders, links and special files; the mode of each has the bits of its type.

    Links come after everything that could be written through them, and the modes of folders last,
    inner ones first, since a folder may be locked.

    Raises:
        OSError: One cannot be written, for example because the folder is full.
    """
    for path, data, mode in sorted(entries, key=lambda entry: stat.S_ISLNK(entry[2])):
        try:
            put_one(path, data, mode)
        except FileNotFoundError:  # the folders of a task's files may be left out
            os.makedirs(os.path.dirname(path))
            put_one(path, data, mode)
    for path, _, mode in reversed(entries):
        if stat.S_ISDIR(mode):
            os.chmod(path, stat.S_IMODE(mode))


def put_one(path: bytes, data: str | None, mode: int) -> None:
    """Write a file, a folder, a link, a FIFO, a socket or a device."""
    if stat.S_ISDIR(mode):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
    elif stat.S_ISLNK(mode):
        os.symlink(named(data or ""), path)
    elif stat.S_ISREG(mode):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb") as handle:
            handle.write(base64.b64decode(data or ""))
        os.chmod(path, stat.S_IMODE(mode))
    else:
        os.mknod(path, mode)


def snapshot(roots: list[bytes], most_bytes: int, most_entries: int) -> dict[str, Any]:
    """Return everything below some folders. No other process may be running.

    Names count as bytes too. Every folder is opened up, which its mode cannot prevent: all belong
    to the user of the sandbox.
    """
    entries: list[list[Any]] = []
    total, folders = 0, list(roots)
    while folders:
        names = children(folders.pop(), most_entries)
        if names is None:
            return {"too_large": True}
        for path in names:
            found = os.lstat(path)
            data = None
            total += len(path)
            if stat.S_ISLNK(found.st_mode):
                data = shown(os.readlink(path))
                total += len(data)
            elif stat.S_ISDIR(found.st_mode):
                folders.append(path)
            elif stat.S_ISREG(found.st_mode):
                total += found.st_size
                if total <= most_bytes:
                    data = shown(content(path, found.st_mode, found.st_size))
            entries.append([shown(path), data, found.st_mode])
            if total > most_bytes or len(entries) > most_entries:
                return {"too_large": True}
    return {"entries": entries}


def children(folder: bytes, most: int) -> list[bytes] | None:
    """Return the paths in a folder; None if they are too many, or too long for a path."""
    try:
        os.chmod(folder, 0o700)
        with os.scandir(folder) as found:
            paths = [entry.path for entry, _ in zip(found, range(most + 1), strict=False)]
        return (
            None if len(paths) > most or max(map(len, paths), default=0) > 4095 else sorted(paths)
        )
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def content(path: bytes, mode: int, most: int) -> bytes:
    """Return a file's first bytes, even if its mode forbids reading."""
    if not mode & stat.S_IRUSR:
        os.chmod(path, 0o600)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as handle:
            return handle.read(most)
    finally:
        if not mode & stat.S_IRUSR:
            os.chmod(path, stat.S_IMODE(mode))  # another name of the file may follow


def read(folder: str, name: str) -> dict[str, Any]:
    """Return a regular file's bytes; links are not followed. No other process may be running.

    "exists" is also true for what is not a file, is too long or cannot be read.
    """
    os.chmod(folder, 0o700)
    path = os.path.join(os.fsencode(folder), os.fsencode(name))
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return {"exists": False, "data": None}
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_READ:
        return {"exists": True, "data": None}
    return {"exists": True, "data": shown(content(path, found.st_mode, MOST_READ))}


def shown(data: bytes) -> str:
    """Return bytes, such as a name, as JSON can hold them."""
    return base64.b64encode(data).decode()


def named(text: str) -> bytes:
    """Return the bytes of `shown`."""
    return base64.b64decode(text)


def main() -> None:
    """Execute orders until the input ends."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # a driver started by nohup or "&" ignores them
    limits: dict[str, int] = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A second line of defence: as another user than root the kernel counts, without delay.
    most = limits["processes"] + SPARE_PROCESSES
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    supervisor = Supervisor(limits, sys.argv[2])
    sys.stdout.write(json.dumps({"ready": True}) + "\n")
    sys.stdout.flush()
    buffered = bytearray()
    while True:
        # Unbuffered, so that select sees what is left; limits hold between orders too.
        ready = select.select([0], [], [], 0.2)[0]
        if not ready:
            supervisor.reap()
            if supervisor.over_limit() is not None:
                kill_all()
            continue
        data = os.read(0, CHUNK)
        if not data:
            return
        buffered.extend(data)
        while (end := buffered.find(b"\n")) >= 0:
            try:
                reply = supervisor.answer(json.loads(bytes(buffered[:end])))
            except Exception as error:  # noqa: BLE001  # the driver decides what it means
                reply = {"error": f"{type(error).__name__}: {error}"[:500]}
            del buffered[: end + 1]
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
