"""A desk: window manager, D-Bus, accessibility, applications and home folder in one sandbox."""

import base64
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envkit.closing import Closing
from envkit.errors import EnvFault, FaultKind
from envkit_linux_desktop.requirements import SYSTEM_PYTHON
from envkit_sandbox.bubblewrap import SandboxSpec, end, first_process, spawn
from envkit_sandbox.channel import Channel
from envkit_sandbox.home import Home
from envkit_sandbox.watchdog import watch

HOME: Final = "/home/user"
_START_SECONDS: Final = 20.0
_ORDER_SECONDS: Final = 20.0
_ETC: Final = (
    "X11",
    "alternatives",
    "at-spi2",
    "chromium",
    "dbus-1",
    "fonts",
    "gtk-2.0",
    "gtk-3.0",
    "ld.so.cache",
    "libreoffice",
    "localtime",
    "mime.types",
    "ssl/certs",
    "ssl/openssl.cnf",
    "xdg",
)
_CHROMIUM: Final = (
    "--no-sandbox --no-first-run --no-default-browser-check --disable-gpu --password-store=basic "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--test-type --disable-dev-shm-usage --force-renderer-accessibility"
)
"""Chromium's own sandbox needs namespaces, which this one refuses."""
_FILES: Final = {
    "/etc/passwd": f"user:x:1000:1000:User:{HOME}:/bin/bash\n",
    "/etc/group": "user:x:1000:\n",
    "/etc/machine-id": f"{1:032x}\n",
    "/etc/hosts": "127.0.0.1 localhost desk\n",
    "/etc/chromium.d/envkit": f'CHROMIUM_FLAGS="$CHROMIUM_FLAGS {_CHROMIUM}"\n',
}
_ENVIRONMENT: Final = {
    "HOME": HOME,
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "DISPLAY": ":0",
    "XDG_RUNTIME_DIR": "/run/user",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/bus",
    "GTK_MODULES": "gail:atk-bridge",
    "GDK_BACKEND": "x11",
    "SAL_USE_VCLPLUGIN": "gtk3",
    "GSETTINGS_BACKEND": "keyfile",
    "LIBGL_ALWAYS_SOFTWARE": "1",
}
_PROGRAMS: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of one session."""

    home_mib: int = 256
    """Size of the home folder."""
    memory_mib: int = 2048
    """Memory of all processes together; above it the largest process is killed."""
    display_mib: int = 512
    """Memory of the display, where applications keep images; above it the session is a fault."""
    processes: int = 400
    """Processes and threads at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A program that ended. Of its output and its errors the first 8 MiB each are kept."""

    code: int
    output: bytes
    errors: bytes


class Desk(Closing):
    """The sandbox of the applications; `home` reads its files from outside."""

    def __init__(self, display: Path, template: bytes, limits: Limits) -> None:
        """Start the desk without waiting until it is ready.

        Args:
            display: The display's socket.
            template: Initial content of the home folder, as a tar archive.
            limits: Its limits.

        Raises:
            EnvFault: It did not start.
            MissingDependencyError: A program or a package is missing.
        """
        self.home: Home | None = None
        spec = SandboxSpec(
            hostname="desk",
            folders={
                "/tmp": 64,
                "/run": 16,
                "/dev/shm": 256,
                HOME: limits.home_mib,
            },
            files={
                **{path: text.encode() for path, text in _FILES.items()},
                "/run/supervisor.py": (_PROGRAMS / "supervisor.py").read_bytes(),
                "/run/tree.py": (_PROGRAMS / "tree.py").read_bytes(),
                "/run/template.tar": template,
            },
            binds={"/tmp/.X11-unix/X0": str(display)},
            etc=_ETC,
            environment=_ENVIRONMENT,
            folder=HOME,
            is_first=True,
        )
        self._limits = limits
        self._parcel, theirs = socket.socketpair()
        arguments = (str(limits.processes), str(theirs.fileno()))
        program = [SYSTEM_PYTHON, "-I", "/run/supervisor.py", *arguments]
        pipe = subprocess.PIPE
        try:
            self.sandbox = spawn(spec, program, stdin=pipe, stdout=pipe, keep=(theirs.fileno(),))
        except BaseException:
            self._parcel.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(self.sandbox, "the desk of the session")

    def await_ready(self) -> None:
        """Wait until applications can start.

        Raises:
            EnvFault: The desk is gone, or not ready in time.
        """
        self._channel.reply(_START_SECONDS)
        self.home = Home(self._received())
        self.memory = watch(first_process(self.sandbox), limit_mib=self._limits.memory_mib)

    def _received(self) -> int:
        """Return the descriptor of the home folder that the desk sent before it was ready.

        Opening `/proc/PID/root` instead would need SYS_PTRACE, which root in a container lacks.
        """
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        with self._parcel, suppress(OSError):
            _, numbers, _, _ = socket.recv_fds(self._parcel, 1, 1, flags)
            if numbers:
                return numbers[0]
        raise EnvFault("the desk of the session sent no home folder", kind=FaultKind.CRASHED)

    @property
    def is_alive(self) -> bool:
        """Whether process 1 runs."""
        return self.sandbox.poll() is None

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files into the home folder.

        Raises:
            EnvFault: The desk is gone, or they do not fit.
        """
        rows = [[path, base64.b64encode(data).decode()] for path, data in files.items()]
        self.ask({"put": rows})

    def launch(self, command: Sequence[str]) -> None:
        """Start an application.

        Raises:
            EnvFault: The desk is gone, or the program does not exist.
        """
        self.ask({"launch": list(command)})

    def run(self, command: Sequence[str], *, seconds: float) -> Ended:
        """Run a program to its end.

        Raises:
            EnvFault: The desk is gone, or the program took too long.
        """
        reply = self.ask({"run": list(command), "seconds": seconds}, seconds + _ORDER_SECONDS)
        output, errors = (base64.b64decode(reply[key]) for key in ("output", "errors"))
        return Ended(code=reply["code"], output=output, errors=errors)

    def archive(self, paths: Sequence[str]) -> bytes:
        """Return paths of the home folder as a tar archive.

        Raises:
            EnvFault: The desk is gone.
        """
        return base64.b64decode(self.ask({"archive": list(paths)})["archive"])

    def ask(self, order: Mapping[str, Any], seconds: float = _ORDER_SECONDS) -> dict[str, Any]:
        """Send an order to process 1 and return its reply.

        Raises:
            EnvFault: The desk is gone, does not answer in time, or the order failed.
        """
        return self._channel.ask(order, seconds)

    def close(self) -> None:
        """Kill all processes on the desk."""
        self._parcel.close()
        if self.home is not None:
            self.home.close()
        end(self.sandbox)
