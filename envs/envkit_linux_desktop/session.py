"""A session: a display and a desk, with windows, input and files; and a pool of sessions."""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from PIL import Image as PilImage

from envkit.closing import Closing
from envkit.errors import EnvFault, EnvkitError, FaultKind
from envkit_linux_desktop.desk import Desk, Limits
from envkit_linux_desktop.display import Display
from envkit_linux_desktop.requirements import SYSTEM_PYTHON, check_programs
from envkit_linux_desktop.template import full_template, made_paths
from envkit_sandbox.bubblewrap import first_process, give_to_sandbox
from envkit_sandbox.home import Home
from envkit_sandbox.trial import check_sandbox
from envkit_sandbox.watchdog import watch

_OFFICE: Final = ("localc", "lowriter", "loimpress")
_TOOLBARS: Final = (0, 25, 640, 110)
_ICON_COLOURS: Final = 600
"""LibreOffice's toolbars have 775 to 930 colours there. Without them it is 410 at most."""
_PLAIN_SHARE: Final = 0.95
"""A page covers less of Chromium's window; the rest is its toolbar."""
_WINDOW_SECONDS: Final = 45.0
"""Time until an application has opened its window."""
_PREFIX: Final = "envkit-desk-"
_MIN_SHARED_MEMORY: Final = 256 << 20
"""Free bytes of /dev/shm below which frame buffers go to the temporary folder."""
_STALE_SECONDS: Final = 600.0
"""Age after which a session's folder is left over from a killed driver; a start removes it within
seconds."""
_DRAWN_SECONDS: Final = 20.0
"""Maximum seconds for the document to appear; a refused document is never drawn."""
_OPTIONS: Final = {
    "chromium": ("--new-window",),
    **dict.fromkeys(_OFFICE, ("--norestore", "--nologo")),
    "mousepad": ("--opening-mode=window",),
    "pcmanfm": ("--new-win",),
}
"""Each start opens one new window with its file."""
_QUIET_SECONDS: Final = {"chromium": 0.4, **dict.fromkeys(_OFFICE, 1.0)}
"""Seconds without a change until an application has drawn its window; 0.15 for the others.
LibreOffice updates its rulers and buttons by timers, up to 0.6 s after the rest."""
_FIRST_START: Final = ("soffice", "--headless", "--terminate_after_init")


class DesktopSession(Closing):
    """A real desktop with its own home folder. `close` removes everything."""

    def __init__(self, width: int, height: int, *, template: bytes, limits: Limits) -> None:
        """Start a session and wait until applications can open windows.

        Args:
            width: Screen width in pixels.
            height: Screen height in pixels.
            template: Initial content of the home folder, as a tar archive.
            limits: Resource limits of the session.

        Raises:
            EnvFault: It did not start.
            MissingDependencyError: A program or a package is missing, or the machine refuses
                sandboxes.
        """
        check_programs()
        check_sandbox()
        self.display: Display | None = None
        self.desk: Desk | None = None
        _remove_stale()
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_memory_folder()))
        try:
            for place in (folder, folder / "x11", folder / "fb"):
                place.mkdir(exist_ok=True)
                give_to_sandbox(place)
            self.display = Display(folder, width, height)
            assert self.display.sandbox is not None
            watch(first_process(self.display.sandbox), limit_mib=limits.display_mib)
            self.desk = Desk(folder / "x11/X0", template, limits)
            self.display.desk = self.desk.sandbox
            self.desk.await_ready()
            self.display.await_manager()
        except BaseException:
            self.close()
            raise
        finally:
            # The sandboxes and the mapping hold what they need, so nothing can be left over.
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def home(self) -> Home:
        """The home folder, for graders."""
        _, desk = self._parts()
        assert desk.home is not None
        return desk.home

    @property
    def screen(self) -> Display:
        """The display.

        Raises:
            EnvFault: The session is closed.
        """
        return self._parts()[0]

    def check(self) -> None:
        """Check that the display and the desk run.

        Raises:
            EnvFault: One of them has died.
        """
        display, desk = self._parts()
        for part, name in ((display, "display"), (desk, "desk")):
            if not part.is_alive:
                raise EnvFault(f"the {name} of the session is gone", kind=FaultKind.CRASHED)

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files into the home folder.

        Raises:
            EnvFault: The desk is gone, or they do not fit.
        """
        self._parts()[1].put(files)

    def open(self, command: Sequence[str], *, seconds: float = _WINDOW_SECONDS) -> None:
        """Start an application and wait for its window.

        Raises:
            EnvFault: The session is gone, or no window appeared in time.
        """
        display, desk = self._parts()
        before = {identity for identity, _ in display.windows()}
        desk.launch([command[0], *_OPTIONS.get(command[0], ()), *command[1:]])
        until = time.monotonic() + seconds
        while not (new := {identity for identity, _ in display.windows()} - before):
            self.check()
            if time.monotonic() > until:
                raise EnvFault(
                    f"{command[0]!r} opened no window within {seconds:g} s", kind=FaultKind.TIMEOUT
                )
            time.sleep(0.01)
        self._await_drawn(command[0], max(new))
        display.settle(quiet=_QUIET_SECONDS.get(command[0], 0.15), limit=8.0, least=0.15)

    def titles(self) -> tuple[str, ...]:
        """Return the titles of the windows from bottom to top.

        Raises:
            EnvFault: The display is gone.
        """
        return tuple(title for _, title in self._parts()[0].windows())

    def shot(self) -> PilImage.Image:
        """Return a copy of the screen.

        Raises:
            EnvFault: The display is gone.
        """
        return self._parts()[0].shot()

    def tree(self, rows: int = 200) -> str:
        """Return the accessibility tree as text, as applications report it.

        It is empty if one of them does not answer in time.

        Raises:
            EnvFault: The desk is gone.
        """
        command = (SYSTEM_PYTHON, "/run/tree.py", str(rows))
        try:
            done = self._parts()[1].run(command, seconds=15.0)
        except EnvFault as fault:
            if fault.kind is FaultKind.PERMANENT:  # refused inside, as by a limit of processes
                return ""
            raise
        return done.output.decode("utf-8", "replace") if done.code == 0 else ""

    @contextmanager
    def deadline(self, seconds: float) -> Generator[None]:
        """End the display if the block takes longer, so that no call waits forever.

        Raises:
            EnvFault: The block took longer.
        """
        display, _ = self._parts()
        timer = threading.Timer(seconds, display.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the session and everything in it."""
        for part in (self.desk, self.display):
            if part is not None:
                with suppress(OSError):
                    part.close()
        self.desk = self.display = None

    def _await_drawn(self, program: str, window: int) -> None:
        """Wait until a window shows its document."""
        screen = self.screen
        until = time.monotonic() + _DRAWN_SECONDS
        while time.monotonic() < until:
            self.check()
            title = dict(screen.windows()).get(window)
            part = screen.part(window)
            if title is None or part is None or _is_drawn(program, title, part):
                break
            time.sleep(0.05)

    def _parts(self) -> tuple[Display, Desk]:
        display, desk = self.display, self.desk
        if display is None or desk is None:
            raise EnvFault("the session is closed", kind=FaultKind.CRASHED)
        return display, desk


def _is_drawn(program: str, title: str, window: PilImage.Image) -> bool:
    """Return whether the window of a program shows its document.

    Args:
        program: As in the command that started it.
        title: The window's title.
        window: What the screen shows of it, without the title bar.
    """
    if program == "chromium":
        area = window.width * window.height
        largest = max(count for count, _ in window.getcolors(area) or [(area, 0)])
        return largest < _PLAIN_SHARE * area
    if program not in _OFFICE:
        return True
    if " - LibreOffice" not in title:  # the frame, or a question about the document
        return not title.startswith("LibreOffice")
    return len(window.crop(_TOOLBARS).getcolors(1 << 24) or ()) >= _ICON_COLOURS


def start_session(width: int, height: int, *, limits: Limits | None = None) -> DesktopSession:
    """Start a session, with one retry.

    Raises:
        EnvFault: Both attempts failed.
        MissingDependencyError: A program or a package is missing.
    """
    template = full_template(_first_session)
    chosen = limits or Limits()
    try:
        return DesktopSession(width, height, template=template, limits=chosen)
    except EnvFault:
        return DesktopSession(width, height, template=template, limits=chosen)


def _first_session(plain: bytes) -> bytes:
    """Return the files that applications create at their first start."""
    with DesktopSession(640, 480, template=plain, limits=Limits()) as session:
        assert session.desk is not None
        for command in (("fc-cache",), _FIRST_START):
            if shutil.which(command[0]):
                session.desk.run(command, seconds=90.0)
        return session.desk.archive(made_paths())


def _remove_stale() -> None:
    for place in ("/dev/shm", tempfile.gettempdir()):
        for folder in Path(place).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)


def _memory_folder() -> str | None:
    """Return a folder in memory for frame buffers; None if there is none or it is too small."""
    try:
        shared = os.statvfs("/dev/shm")
    except OSError:
        return None
    # Containers have 64 MB there, the frame buffers of 15 sessions; a full one kills displays.
    has_space = shared.f_bavail * shared.f_frsize >= _MIN_SHARED_MEMORY
    return "/dev/shm" if has_space and os.access("/dev/shm", os.W_OK) else None


class Pool(Closing):
    """Keeps sessions of one kind ready; a thread starts the next ones, one at a time.

    Each session serves one task.
    """

    def __init__(self, width: int, height: int, *, size: int, limits: Limits) -> None:
        """Create an empty pool; the first `take` starts sessions.

        Args:
            width: Screen width in pixels.
            height: Screen height in pixels.
            size: Sessions to keep ready; 0 starts each on demand.
            limits: Resource limits of each session.
        """
        self._shape, self._size, self._limits = (width, height), size, limits
        self._lock = threading.Lock()
        self._coming: list[Future[DesktopSession]] = []
        self._starter = ThreadPoolExecutor(1, "envkit-desktops") if size else None
        self._process = os.getpid()

    def take(self) -> DesktopSession:
        """Return a ready session and start the next one; the caller closes it.

        Raises:
            EnvFault: No session starts.
            MissingDependencyError: A program or a package is missing.
        """
        session = self._ready()
        self._order()
        return session or self._start()

    def close(self) -> None:
        """Close the unused sessions."""
        if self._starter is None or self._process != os.getpid():  # a fork owns none of them
            return
        self._starter.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            coming, self._coming = self._coming, []
        for one in coming:
            one.add_done_callback(_discard)

    def _ready(self) -> DesktopSession | None:
        with self._lock:
            coming = self._coming.pop(0) if self._coming else None
        if coming is None:
            return None
        with suppress(EnvkitError):
            session = coming.result()
            try:
                session.check()
            except EnvkitError:
                session.close()
                raise
            return session
        return None

    def _order(self) -> None:
        if self._starter is None:
            return
        with self._lock, suppress(RuntimeError):  # RuntimeError: closed meanwhile
            while len(self._coming) < self._size:
                self._coming.append(self._starter.submit(self._start))

    def _start(self) -> DesktopSession:
        return start_session(*self._shape, limits=self._limits)


def _discard(coming: "Future[DesktopSession]") -> None:
    if not coming.cancelled() and coming.exception() is None:
        coming.result().close()
