"""One browser: its process, its connection, and state that its pages share.

With BeginFrameControl the compositor draws a frame only on request, so frames are immediate and
reproducible. Two frames at once kill the browser, so it draws them one by one.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from envkit.errors import RefusedError
from envkit.system_packages import install_line
from envkit_browser.driver.binary import find_browser, shell_line
from envkit_browser.driver.connection import Connection, Reply
from envkit_browser.driver.process import BrowserProcess
from envkit_browser.driver.trouble import BrowserFault, Trouble

START_S: Final = 30.0
_CLOSE_S: Final = 2.0
_NOWHERE: Final = "nowhere.invalid"
_TEXT_WIDTH: Final = "new OffscreenCanvas(1, 1).getContext('2d').measureText('x').width"
_FLAGS: Final = (
    # One frame for each beginFrame, everything in it finished.
    "--deterministic-mode",
    "--enable-begin-frame-control",
    "--run-all-compositor-stages-before-draw",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-smooth-scrolling",
    "--disable-checker-imaging",
    "--disable-gpu",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--hide-scrollbars",
    "--lang=en-US",
    "--mute-audio",
    # No network access: no host name resolves, not even the proxy's.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    f"--proxy-server=socks5://{_NOWHERE}:1",
    "--proxy-bypass-list=<-loopback>",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--disable-quic",
    "--dns-prefetch-disable",
    "--no-pings",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # A page and its frames share one process, so input and screenshots cover both.
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,IsolateSandboxedIframes,"
    "MediaRouter,Translate,OptimizationHints,PaintHolding,BackForwardCache,"
    "RenderDocument",  # a new frame host per load takes a third of a reload's time
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-hang-monitor",
    # a page must not open another one, which would only be closed later
    "--block-new-web-contents",
    "--disable-prompt-on-repost",
    "--disable-client-side-phishing-detection",
    "--password-store=basic",
    "--use-mock-keychain",
)


def check_browser() -> str:
    """Start a browser as an episode does and return its path, for `envkit doctor`.

    Raises:
        ConfigurationError: As `find_browser` does.
        MissingDependencyError: None is installed, or none can start here.
        BrowserFault: It does not start.
    """

    async def start() -> str:
        browser = await Browser.start()
        await browser.aclose()
        return str(browser.process.binary)

    return asyncio.run(start())


class Browser:
    """A running browser; belongs to the event loop that started it."""

    def __init__(self, process: BrowserProcess, connection: Connection, scale: float) -> None:
        self.process, self.scale = process, scale
        self.connection = connection
        self.trouble: Trouble | None = None
        """Why it is unusable; None while it is usable."""
        self._frame_lock = asyncio.Lock()
        self._on_target: dict[str, Callable[[str], None]] = {}
        self.pages = 0
        """Pages open now."""
        self.opened = 0
        """Pages opened so far."""
        self.is_retired = False
        """Whether it accepts no more pages and ends with its last one."""
        connection.on_lost = self._lose
        connection.listen(None, self._hear)

    @classmethod
    async def start(cls, *, scale: float = 1.0, deadline_s: float = START_S) -> "Browser":
        """Start a browser.

        Args:
            scale: Device pixels per CSS pixel, for all its pages.
            deadline_s: Startup limit in seconds.

        Raises:
            MissingDependencyError: No browser is installed, or the first start in this process
                shows that none can start here.
            BrowserFault: It does not start.
        """
        flags = (*_FLAGS, f"--force-device-scale-factor={scale:g}")
        process = await asyncio.to_thread(BrowserProcess, find_browser(), flags)
        connection: Connection | None = None
        try:
            connection = await Connection.open(process.take_end())
            browser = cls(process, connection, scale)
            await browser._discover(deadline_s)
            await browser._require_images(deadline_s)
        except BaseException:
            process.kill()
            if connection is not None:
                await connection.aclose()
            raise
        BrowserProcess.has_answered = True
        return browser

    @property
    def is_usable(self) -> bool:
        """Whether new pages can be opened."""
        return self.trouble is None and self.connection.is_open and self.process.is_alive

    async def send(
        self,
        method: str,
        session: str | None = None,
        *,
        deadline_s: float = 10.0,
        **params: Any,  # noqa: ANN401  # any JSON
    ) -> Reply:
        """Send a command and wait for its result.

        Raises:
            BrowserFault: As `Connection.send`; a dead browser is distinguished from a closed
                socket.
        """
        try:
            return await self.connection.send(method, session, deadline_s, params)
        except BrowserFault as fault:
            if fault.trouble is not Trouble.SOCKET_CLOSED:
                raise
            raise await self.loss(method) from fault

    async def begin_frame(
        self, session: str, params: dict[str, Any], *, deadline_s: float
    ) -> Reply:
        """Draw a frame of a page once no other page of this browser is drawing.

        If the caller is cancelled, the frame still finishes, since frames must not overlap.
        """
        return await asyncio.shield(
            asyncio.ensure_future(self._begin_frame(session, params, deadline_s))
        )

    async def check(self, deadline_s: float = _CLOSE_S) -> bool:
        """Whether the browser answers."""
        if not self.is_usable:
            return False
        try:
            await self.send("Browser.getVersion", deadline_s=deadline_s)
        except BrowserFault as fault:
            self.discard(fault.trouble)
        return self.is_usable

    def watch(self, target: str, handler: Callable[[str], None] | None) -> None:
        """Set the handler for "crashed", "destroyed" and "lost" of a target; None removes it."""
        if handler is None:
            self._on_target.pop(target, None)
        else:
            self._on_target[target] = handler

    def discard(self, trouble: Trouble) -> None:
        """Kill the browser, which is useless to all its pages."""
        if self.trouble is None:
            self.trouble = trouble
        self.process.kill()

    async def loss(self, doing: str) -> BrowserFault:
        """Return the fault that says why the connection is gone."""
        await self._wait_for_end()
        trouble = self.trouble or Trouble.SOCKET_CLOSED
        words = self.process.last_words() if trouble is Trouble.BROWSER_DIED else ""
        said = f"; its last output: {words!r}" if words else ""
        return BrowserFault(
            f"the browser is gone ({trouble.value}), at {doing}{said}", trouble=trouble
        )

    def close_socket(self) -> None:
        """Break the connection but keep the process, for tests and fault injection."""
        self.trouble = self.trouble or Trouble.SOCKET_CLOSED  # the process then exits by itself
        self.connection.break_off()

    async def aclose(self) -> None:
        """End it and remove its profile; safe to call twice."""
        self.trouble = self.trouble or Trouble.PAGE_GONE
        self.connection.on_lost = lambda: None
        try:
            await asyncio.to_thread(self.process.kill)
        finally:
            self.process.kill()
            await self.connection.aclose()

    async def _begin_frame(self, session: str, params: dict[str, Any], deadline_s: float) -> Reply:
        async with self._frame_lock:
            return await self.send(
                "HeadlessExperimental.beginFrame", session, deadline_s=deadline_s, **params
            )

    async def _discover(self, deadline_s: float) -> None:
        """Wait until it answers, and subscribe to page crashes.

        Raises:
            MissingDependencyError: See `BrowserProcess.start_error`.
            BrowserFault: It does not answer in time, or has already exited (`START_FAILED`).
        """
        try:
            await self.send("Target.setDiscoverTargets", deadline_s=deadline_s, discover=True)
        except BrowserFault as fault:
            raise self.process.start_error() from fault

    async def _require_images(self, deadline_s: float) -> None:
        """Reject a build without frames on request, or without fonts.

        Raises:
            RefusedError: Its images would depend on the clock, or show no text.
            BrowserFault: It does not answer.
        """
        try:
            created = await self.send(
                "Target.createTarget", url="about:blank", enableBeginFrameControl=True
            )
            target = created["targetId"]
            attached = await self.send("Target.attachToTarget", targetId=target, flatten=True)
            session = attached["sessionId"]
            await self.begin_frame(session, {}, deadline_s=deadline_s)
            width = await self.send("Runtime.evaluate", session, expression=_TEXT_WIDTH)
        except BrowserFault as fault:
            if fault.trouble is not Trouble.REFUSED or BrowserProcess.has_answered:
                raise
            raise RefusedError(
                f"the browser {str(self.process.binary)!r} draws no frames on request "
                f"(HeadlessExperimental.beginFrame: {fault}), so its screenshots are not "
                f"reproducible; a headless shell does. Install it with: {shell_line()}"
            ) from fault
        if not width["result"].get("value"):
            line = install_line("fonts-liberation", fedora="liberation-fonts-all")
            raise RefusedError(
                f"the browser finds no font, so its pages show no text. Install one with: {line}"
            )
        await self.send("Target.closeTarget", targetId=target)

    async def _wait_for_end(self) -> None:
        """Wait briefly for a process to exit after its socket closed."""
        for _ in range(20):
            if self.trouble is not None:
                return
            if not self.process.is_alive:
                self.trouble = Trouble.BROWSER_DIED
                return
            await asyncio.sleep(0.005)
        self.trouble = Trouble.SOCKET_CLOSED

    def _lose(self) -> None:
        for handler in list(self._on_target.values()):
            handler("lost")

    def _hear(self, name: str, params: Reply) -> None:
        said = {"Target.targetCrashed": "crashed", "Target.targetDestroyed": "destroyed"}.get(name)
        handler = self._on_target.get(params.get("targetId", ""))
        if said is not None and handler is not None:
            handler(said)
