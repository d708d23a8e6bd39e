"""Process 1 of a desk. It starts the session's services and applications on orders from outside.

It runs inside the sandbox with the system's Python and reads and writes JSON lines. Rewards never
depend on what it says.
"""

import base64
import contextlib
import ctypes
import io
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

HOME = Path(os.environ["HOME"])
RUNTIME = Path(os.environ["XDG_RUNTIME_DIR"])
BUS = RUNTIME / "bus"
PR_SET_DUMPABLE = 4
MOST_OUTPUT = 8 << 20


def start(*command: str) -> None:
    """Start a program in the background."""
    subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=HOME,
    )


def run(command: list[str], seconds: float) -> dict[str, Any]:
    """Run a program to its end and return its exit code, output and errors.

    Python does not load modules of the user's, who may be a policy, into a grader's program.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=seconds,
        cwd=HOME,
        env={**os.environ, "PYTHONNOUSERSITE": "1"},
        check=False,
    )
    output, errors = (
        base64.b64encode(data[:MOST_OUTPUT]).decode() for data in (done.stdout, done.stderr)
    )
    return {"code": done.returncode, "output": output, "errors": errors}


def call(*words: str) -> str:
    """Call a method on a D-Bus."""
    return subprocess.run(
        ["gdbus", "call", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    ).stdout


def await_accessibility() -> None:
    """Wait until the registry of accessible applications answers.

    D-Bus activates the launcher. An application that starts before the registry may hang.
    """
    bus = ("--session", "--dest", "org.a11y.Bus", "--object-path", "/org/a11y/bus", "--method")
    address = call(*bus, "org.a11y.Bus.GetAddress").split("'")[1]
    properties = "org.freedesktop.DBus.Properties.Set"
    call(*bus, properties, "org.a11y.Status", "IsEnabled", "<true>")
    registry = ("--address", address, "--dest", "org.a11y.atspi.Registry", "--object-path")
    root = "/org/a11y/atspi/accessible/root"
    call(*registry, root, "--method", "org.freedesktop.DBus.Peer.Ping")


def begin() -> None:
    """Fill the home folder and start D-Bus, the window manager and accessibility."""
    with tarfile.open("/run/template.tar") as template:
        template.extractall(HOME)
    RUNTIME.mkdir(mode=0o700)
    start("dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address=unix:path={BUS}")
    start("openbox", "--sm-disable")
    until = time.monotonic() + 10
    while not BUS.exists() and time.monotonic() < until:
        time.sleep(0.002)
    await_accessibility()


def put(files: list[tuple[str, str]]) -> None:
    """Write files into the home folder; a link or a FIFO in a file's place is replaced."""
    for path, data in files:
        place = HOME / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            file.write(base64.b64decode(data))
        os.chmod(file.name, 0o644)
        os.replace(file.name, place)


def archive(paths: list[str]) -> str:
    """Return paths of the home folder as a tar archive."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for path in paths:
            if (HOME / path).exists():
                tar.add(HOME / path, path)
    return base64.b64encode(whole.getvalue()).decode()


def seal() -> None:
    """Let nothing inside read or change this process."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def send_home(socket_number: int) -> None:
    """Send the driver the open home folder, which it may not have the right to open itself."""
    home = os.open(HOME, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(fileno=socket_number) as parcel:
        socket.send_fds(parcel, [b"."], [home])
    os.close(home)


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order and return the reply."""
    if "launch" in order:
        start(*order["launch"])
    elif "put" in order:
        put(order["put"])
    elif "run" in order:
        return run(order["run"], order["seconds"])
    elif "archive" in order:
        return {"archive": archive(order["archive"])}
    return {"ok": True}


def collect() -> None:
    """Collect ended processes: process 1 inherits all orphans."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _ignore(number: int, frame: FrameType | None) -> None:
    """Have the signal wake the loop and do nothing else."""


def serve(orders: int, replies: BinaryIO) -> None:
    """Carry out orders until the driver closes them."""
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    buffer = b""
    while True:
        ready, _, _ = select.select([orders, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
            collect()
        if orders not in ready:
            continue
        data = os.read(orders, 1 << 20)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            answer(line, replies)


def answer(line: bytes, replies: BinaryIO) -> None:
    """Carry out one order and write its reply."""
    try:
        row = obey(json.loads(line))
    except Exception as error:  # noqa: BLE001  # the driver decides what it means
        row = {"error": f"{type(error).__name__}: {error}"[:500]}
    replies.write(json.dumps(row).encode() + b"\n")
    replies.flush()


def main() -> None:
    """Move the channel to descriptors that no service inherits, then serve."""
    seal()
    send_home(int(sys.argv[2]))
    orders, replies = os.dup(0), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # a driver started by nohup or "&" ignores them
    # As many as its own user namespace may have; bubblewrap itself needs no such limit.
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    begin()
    replies.write(b'{"ready": true}\n')
    replies.flush()
    serve(orders, replies)


if __name__ == "__main__":
    main()
