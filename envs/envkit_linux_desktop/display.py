"""A display: Xvfb in its own sandbox, with XTEST input and a mapped frame buffer."""

import contextlib
import importlib
import io
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

from PIL import Image as PilImage

from envkit.closing import Closing
from envkit.errors import EnvFault, FaultKind, MissingDependencyError
from envkit.images import Image
from envkit_sandbox.bubblewrap import Sandbox, SandboxSpec, end, first_process, spawn
from envkit_sandbox.idle import await_idle

_START_SECONDS: Final = 10.0
_MANAGER: Final = ("_NET_SUPPORTING_WM_CHECK", "_NET_CLIENT_LIST", "_NET_WORKAREA")
"""What a window manager sets; a program started before the last has been lost."""
_connecting: Final = threading.Lock()


def import_xlib() -> None:
    """Check that python-xlib is installed.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        importlib.import_module("Xlib.display")
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            "a real Linux desktop", "python-xlib", "linux-desktop"
        ) from error


class Display(Closing):
    """A screen, a pointer and a keyboard. Whatever draws on the screen is an X client."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        """Start Xvfb.

        Args:
            folder: An empty folder of the sandbox's user. A started desk no longer needs its name.
            width: In pixels.
            height: In pixels.

        Raises:
            EnvFault: It did not start.
            MissingDependencyError: A program or a package is missing.
        """
        import_xlib()
        self.width, self.height = width, height
        self.sandbox: Sandbox | None = None
        self.desk: Sandbox | None = None
        """The sandbox of the applications, once there is one."""
        self.x: Any = None
        self.pointer = (width // 2, height // 2)
        self._pings = 0
        try:
            self._start(folder)
            self._connect(folder / "x11/X0")
            self._map(folder / "fb/Xvfb_screen0")
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether Xvfb runs."""
        return self.sandbox is not None and self.sandbox.poll() is None

    def kill(self) -> None:
        """End Xvfb; a call that waits for it then fails."""
        if self.sandbox is not None:
            self.sandbox.kill()

    def close(self) -> None:
        """End Xvfb."""
        if self.x is not None:
            with contextlib.suppress(Exception):
                self.x.display.socket.close()
            self.x = None
        self._pixels = memoryview(b"")  # lets go of the mapped frame buffer
        if self.sandbox is not None:
            end(self.sandbox)

    def shot(self) -> PilImage.Image:
        """Return a copy of the screen, pointer included.

        Raises:
            EnvFault: The display is gone.
        """
        if not self.is_alive:
            raise EnvFault("the display of the session is gone", kind=FaultKind.CRASHED)
        size = (self.width, self.height)
        return PilImage.frombytes("RGB", size, self._pixels, "raw", "BGRX", self._stride)

    def settle(self, *, quiet: float = 0.06, limit: float = 2.0, least: float = 0.02) -> bool:
        """Wait until nothing has been drawn for a while.

        Args:
            quiet: Seconds without a change.
            limit: Maximum seconds to wait.
            least: Minimum seconds to wait.

        Returns:
            Whether the screen settled.
        """
        with self.faults():
            begun = last = time.monotonic()
            while (now := time.monotonic()) - begun < limit:
                if now - last >= quiet and now - begun >= least:
                    return True
                pause = max(0.001, min(max(quiet - (now - last), least - (now - begun)), 0.05))
                select.select([self.x.fileno()], [], [], pause)
                while self.x.pending_events():
                    if self.x.next_event().type == self._damage_event:
                        last = time.monotonic()
            return False

    def await_input(self, seconds: float = 2.0) -> bool | None:
        """Wait until the application of the active window has read all input so far.

        Applications handle events in order, so a reply to a ping means that earlier input was read.

        Args:
            seconds: Maximum seconds to wait.

        Returns:
            Whether it answered in time; None if it ignores pings, as terminals do.
        """
        from Xlib import X, error
        from Xlib.protocol import event

        with self.faults(), contextlib.suppress(error.BadWindow):
            window, ping = self._active(), self.x.get_atom("_NET_WM_PING")
            if window is None or ping not in (window.get_wm_protocols() or ()):
                return None
            self._pings += 1
            data = [ping, self._pings, window.id, 0, 0]
            kind = self.x.get_atom("WM_PROTOCOLS")
            message = event.ClientMessage(window=window, client_type=kind, data=(32, data))
            self.x.send_event(window, message, event_mask=X.NoEventMask)
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                while self.x.pending_events():
                    came = self.x.next_event()
                    if came.type == X.ClientMessage and list(came.data[1][:2]) == data[:2]:
                        return True
                select.select([self.x.fileno()], [], [], left)
            return False
        return None  # the window has closed

    def await_idle(self, seconds: float) -> bool:
        """Wait until the display and its applications have nothing left to do.

        Args:
            seconds: Maximum seconds to wait.

        Returns:
            Whether they became idle in time.
        """
        if self.sandbox is None:
            return False
        firsts = [first_process(self.sandbox)]
        if self.desk is not None:
            firsts.append(first_process(self.desk))
        return await_idle(firsts, seconds)

    def windows(self) -> list[tuple[int, str]]:
        """Return the identities and titles of the windows from bottom to top."""
        from Xlib import X, error

        found: list[tuple[int, str]] = []
        with self.faults():
            atom = self.x.get_atom
            listed = self._root.get_full_property(
                atom("_NET_CLIENT_LIST_STACKING"), X.AnyPropertyType
            )
            for identity in listed.value if listed else ():
                with contextlib.suppress(error.BadWindow, UnicodeDecodeError):
                    window = self.x.create_resource_object("window", identity)
                    name = window.get_full_property(atom("_NET_WM_NAME"), atom("UTF8_STRING"))
                    found.append((int(identity), name.value.decode() if name else ""))
        return found

    def focused(self) -> str:
        """Return the class of the active window; "" if there is none."""
        from Xlib import error

        with self.faults(), contextlib.suppress(error.BadWindow):
            window = self._active()
            names = None if window is None else window.get_wm_class()
            return str(names[0]) if names else ""
        return ""

    def part(self, window: int) -> PilImage.Image | None:
        """Return the screen's pixels in a window's area; None if the window is gone."""
        from Xlib import error

        with self.faults(), contextlib.suppress(error.BadWindow, error.BadDrawable):
            place = self.x.create_resource_object("window", window)
            size, at = place.get_geometry(), place.translate_coords(self._root, 0, 0)
            left, top = max(0, -at.x), max(0, -at.y)
            right, bottom = min(self.width, left + size.width), min(self.height, top + size.height)
            return self.shot().crop((left, top, max(left + 1, right), max(top + 1, bottom)))
        return None

    def await_manager(self, seconds: float = _START_SECONDS) -> None:
        """Wait until the window manager is ready.

        Raises:
            EnvFault: It did not start in time.
        """
        from Xlib import X

        with self.faults():
            atoms = [self.x.get_atom(name) for name in _MANAGER]
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if all(self._root.get_full_property(atom, X.AnyPropertyType) for atom in atoms):
                    return
                time.sleep(0.005)
        raise EnvFault("the window manager did not start", kind=FaultKind.TIMEOUT)

    @contextlib.contextmanager
    def faults(self) -> Generator[None]:
        """Raise connection errors as faults."""
        from Xlib import error

        try:
            yield
        except (error.ConnectionClosedError, error.DisplayError, OSError, AttributeError) as lost:
            if isinstance(lost, AttributeError) and self.x is not None:
                raise
            raise EnvFault("the display of the session is gone", kind=FaultKind.CRASHED) from lost

    def _active(self) -> Any:  # noqa: ANN401  # python-xlib has no types
        """Return the active window; None if there is none."""
        from Xlib import X

        active: Any = self._root.get_full_property(
            self.x.get_atom("_NET_ACTIVE_WINDOW"), X.AnyPropertyType
        )
        if active is None or not active.value[0]:
            return None
        return self.x.create_resource_object("window", active.value[0])

    def _start(self, folder: Path) -> None:
        spec = SandboxSpec(
            hostname="display",
            folders={"/tmp": 16},
            binds={"/tmp/.X11-unix": str(folder / "x11"), "/fb": str(folder / "fb")},
            etc=("ld.so.cache", "alternatives", "X11"),
        )
        ready, says = os.pipe()
        try:
            size = f"{self.width}x{self.height}x24"
            program = ["Xvfb", ":0", "-screen", "0", size, "-fbdir", "/fb", "-ac", "-noreset"]
            program += ["-nolisten", "tcp", "-dpi", "96", "-displayfd", str(says)]
            try:
                self.sandbox = spawn(spec, program, keep=(says,))
            finally:
                os.close(says)
            self._await_number(ready)
        finally:
            os.close(ready)

    def _await_number(self, ready: int) -> None:
        """Wait for the display number, which Xvfb writes in two parts before the screen exists."""
        said, until = b"", time.monotonic() + _START_SECONDS
        while not said.endswith(b"\n"):
            left = until - time.monotonic()
            got = (
                os.read(ready, 16) if left > 0 and select.select([ready], [], [], left)[0] else b""
            )
            if not got:
                reason = "" if self.sandbox is None else self.sandbox.reason
                raise EnvFault(f"the display (Xvfb) did not start{reason}", kind=FaultKind.CRASHED)
            said += got

    def _connect(self, path: Path) -> None:
        import Xlib.display
        from Xlib import XK, X
        from Xlib.ext import damage, xtest
        from Xlib.protocol import display as protocol

        connect: Any = vars(protocol)["connect"]

        def open_socket(*_: object) -> socket.socket:
            return _reach(path, lambda: self.is_alive)

        # python-xlib derives the socket's path from the display's number; ours lies elsewhere.
        with _connecting:
            original = connect.get_socket, connect.get_auth
            connect.get_socket = open_socket
            connect.get_auth = _no_key
            try:
                self.x = Xlib.display.Display(":0")
            finally:
                connect.get_socket, connect.get_auth = original
        self._root = self.x.screen().root
        self.x.set_error_handler(_ignore)  # a window that closed meanwhile
        self._root.change_attributes(event_mask=X.SubstructureNotifyMask)  # for answers to pings
        self._damage_event = self.x.query_extension("DAMAGE").first_event
        self.x.damage_query_version()
        self._root.damage_create(damage.DamageReportRawRectangles)
        # The first key of XTEST makes every client reload the layout, and openbox loses chords
        # meanwhile. No client runs yet.
        library: Any = xtest
        for kind in (X.KeyPress, X.KeyRelease):
            library.fake_input(self.x, kind, self.x.keysym_to_keycode(XK.XK_Shift_L))
        self.x.sync()

    def _map(self, path: Path) -> None:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        head = struct.unpack(">25I", mapped[:100])  # the header of an XWD file
        offset, self._stride = head[0] + 12 * head[19], head[12]
        self._pixels = memoryview(mapped)[offset : offset + self._stride * self.height]


def _no_key(*_: object) -> tuple[bytes, bytes]:
    return b"", b""


def _ignore(*_: object) -> None:
    """Ignore an error that no call waits for."""


def encoded(picture: PilImage.Image) -> Image:
    """Return a screenshot with its PNG bytes, which are never encoded again."""
    file = io.BytesIO()
    picture.save(file, "png", compress_level=1)
    return Image.from_pil(picture, png=file.getvalue())


def _reach(path: Path, is_alive: Callable[[], bool]) -> socket.socket:
    until = time.monotonic() + _START_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > until or not is_alive():
                raise EnvFault(
                    "the display (Xvfb) does not answer", kind=FaultKind.CRASHED
                ) from error
            time.sleep(0.002)
