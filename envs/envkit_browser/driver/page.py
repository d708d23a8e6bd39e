"""A page: one isolated session in a browser, with its own clock.

Time in the page stops between calls. It passes in `advance` and after each input, as fast as
the machine allows, so timers, animations and dates are the same in every run.
"""

import asyncio
import base64
import contextlib
import json
import math
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.resources import files
from typing import Any, Final

from envkit import ranges
from envkit_browser.driver.browser import Browser
from envkit_browser.driver.connection import Reply
from envkit_browser.driver.site import ORIGIN, Site
from envkit_browser.driver.trouble import BrowserFault, Trouble

MAX_DIALOGS: Final = 20
"""Maximum dialogs whose text is kept; all are counted."""
_MAX_TEXT: Final = 500


class PageEvent(StrEnum):
    """Kind of event that is counted."""

    DIALOG = "dialog"
    """A JavaScript dialog, which was answered with OK."""
    CONSOLE_ERROR = "console_error"
    """A call of `console.error`."""
    EXCEPTION = "exception"
    """An exception that the page did not catch."""
    BLOCKED = "blocked"
    """A request that would have left the site."""
    BLOCKED_NAVIGATION = "blocked_navigation"
    """A navigation that would have left the site; the page stays."""
    POPUP = "popup"
    """A page opened another page, which is closed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialog:
    """A JavaScript dialog that the page showed; it was answered with OK."""

    kind: str
    """"alert", "confirm", "prompt" or "beforeunload"."""
    text: str
    """At most 500 characters."""


@dataclass(slots=True, kw_only=True)
class PageEvents:
    """What happened in a page since its events were last taken."""

    dialogs: list[Dialog] = field(default_factory=list[Dialog])
    """At most `MAX_DIALOGS`."""
    counts: Counter[PageEvent] = field(default_factory=Counter[PageEvent])

    def add_dialog(self, kind: str, text: str) -> None:
        """Record a dialog."""
        self.counts[PageEvent.DIALOG] += 1
        if len(self.dialogs) < MAX_DIALOGS:
            self.dialogs.append(Dialog(kind=kind, text=text[:_MAX_TEXT]))


FRAME_MS: Final = 1000 / 60
START_TIME: Final = 1_767_225_600
"""Start time of every page: 2026-01-01 00:00 UTC, in seconds."""
_MAX_FRAMES: Final = 60
_LOAD_MS: Final = 10_000.0
_PUMP_S: Final = 0.03
_NEXT_FRAME_MS: Final = 0.05
_BINDING: Final = "__envkit_tell"
_SCRIPT: Final = files("envkit_browser.driver").joinpath("page.js").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """Options of a page."""

    width: int
    """Screen width in device pixels, the unit of screenshots and actions."""
    height: int
    """Screen height in device pixels."""
    scale: float = 1.0
    """Device pixels per CSS pixel."""
    site: Site = field(default_factory=Site)
    """Files it may load."""
    settle_ms: float = 100.0
    """Milliseconds of page time that pass after each input."""
    deadline_s: float = 10.0
    """Seconds per command; a page that takes longer counts as hung."""

    def __post_init__(self) -> None:
        ranges.within(1, 4096, width=self.width, height=self.height)
        ranges.within(0.25, 8, scale=self.scale)
        ranges.positive(deadline_s=self.deadline_s)
        ranges.at_least(0, settle_ms=self.settle_ms)

    def with_site(self, site: Site) -> "PageOptions":
        """Return the same options with another site."""
        return replace(self, site=site)


class Page:
    """A page in its own browser context: cookies, storage, history and clipboard."""

    def __init__(self, browser: Browser, options: PageOptions, context: str, target: str) -> None:
        self.browser, self.options = browser, options
        self.events = PageEvents()
        self.left: str | None = None
        """Why it no longer shows the site: "navigated" or "closed"; None while it does."""
        self._context, self._target = context, target
        self._session = ""
        self._trouble: Trouble | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refusals: set[asyncio.Task[Any]] = set()
        self._expired: asyncio.Future[None] | None = None
        self._ticks, self._elapsed_ms, self._frame_ticks = 0.0, 0.0, 0.0
        self._is_loaded = False
        self._script: str | None = None
        self._clipboard = ""
        self._rescue: asyncio.Future[None] | None = None
        self.last_screenshot: bytes | None = None
        """The last screenshot; None before the first one."""

    @classmethod
    async def open(cls, browser: Browser, options: PageOptions) -> "Page":
        """Open a blank page in a fresh context.

        Raises:
            BrowserFault: The browser is gone or does not answer.
        """
        limit = options.deadline_s
        created = await browser.send(
            "Target.createBrowserContext", deadline_s=limit, disposeOnDetach=True
        )
        context = created["browserContextId"]
        css = (math.ceil(length / options.scale) for length in (options.width, options.height))
        made = await browser.send(
            "Target.createTarget",
            deadline_s=limit,
            url="about:blank",
            browserContextId=context,
            width=next(css),
            height=next(css),
            enableBeginFrameControl=True,
        )
        page = cls(browser, options, context, made["targetId"])
        browser.pages += 1
        browser.opened += 1
        try:
            await page._attach()
        except BaseException:
            await page.aclose()
            raise
        return page

    @property
    def is_usable(self) -> bool:
        """Whether the page still works."""
        return self._trouble is None and self.left != "closed" and self.browser.is_usable

    async def warm_up(self) -> None:
        """Draw the first frame of the blank page, which takes longer than later ones."""
        await self.screenshot()
        self.last_screenshot = None

    def take_events(self) -> PageEvents:
        """Return what happened since the last call."""
        taken, self.events = self.events, PageEvents()
        return taken

    async def goto(self, path: str = "index.html", *, seed: int = 0) -> None:
        """Load a file of the site and wait until its load event.

        Args:
            path: Path of the file, with query and fragment.
            seed: Seed of `Math.random` and `crypto` in the page.

        Raises:
            BrowserFault: The page cannot be loaded.
        """
        await self._await_refusals()
        await self._set_script(seed)
        self._is_loaded, self.left = False, None
        url = f"{ORIGIN}/{path.lstrip('/')}"
        answer = await self.send("Page.navigate", url=url)
        if answer.get("errorText"):
            raise BrowserFault(
                f"the page {path!r} does not load: {answer['errorText']}", trouble=Trouble.REFUSED
            )
        began = self._elapsed_ms
        while not self._is_loaded:
            await self.advance(FRAME_MS)
            if self._elapsed_ms - began > _LOAD_MS:
                raise BrowserFault(
                    f"the page {path!r} does not finish loading in {_LOAD_MS / 1000:g} s of its "
                    "own time",
                    trouble=Trouble.HUNG,
                )
        await self.advance(FRAME_MS)

    async def evaluate(self, expression: str) -> Any:  # noqa: ANN401  # any JSON
        """Return the value of a JavaScript expression as JSON data; undefined is None.

        Raises:
            BrowserFault: It threw an exception (`SCRIPT_FAILED`), or the page does not answer.
        """
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        details = answer.get("exceptionDetails")
        if details is not None:
            thrown = details.get("exception", {})
            said = thrown.get("description") or thrown.get("value") or details.get("text")
            raise BrowserFault(
                f"a script in the page threw {said!r:.400}", trouble=Trouble.SCRIPT_FAILED
            )
        return answer["result"].get("value")

    async def advance(self, milliseconds: float, *, frames: int | None = None) -> None:
        """Let time pass in the page.

        Args:
            milliseconds: Page time.
            frames: Frames to draw meanwhile; None draws 60 per second, 60 at most.
        """
        if milliseconds <= 0:
            return
        count = frames or min(_MAX_FRAMES, math.ceil(milliseconds / FRAME_MS))
        for _ in range(count):
            await self.pass_time(milliseconds / count)
            await self.frame()

    async def pass_time(self, milliseconds: float) -> None:
        """Let time pass without drawing a frame, and wait for the page's pending requests."""
        self._check()
        self._expired = asyncio.get_running_loop().create_future()
        await self.send(
            "Emulation.setVirtualTimePolicy",
            policy="pauseIfNetworkFetchesPending",
            budget=milliseconds,
        )
        try:
            async with asyncio.timeout(self.options.deadline_s):
                await self._expired
        except TimeoutError as error:
            self._hang()
            raise BrowserFault(
                f"the page does not finish {milliseconds:g} ms of its own time within "
                f"{self.options.deadline_s:g} s",
                trouble=Trouble.HUNG,
            ) from error
        self._elapsed_ms += milliseconds

    async def frame(self) -> None:
        """Draw a frame."""
        await self._begin_frame()

    async def screenshot(self) -> bytes:
        """Draw a frame and return it as PNG of the page's size.

        If nothing changed, the browser sends no image and the last one is returned.
        """
        self._check()
        shot = {"format": "png", "optimizeForSpeed": True}
        for _ in range(3):
            answer = await self._begin_frame(screenshot=shot)
            data = answer.get("screenshotData")
            if data:
                self.last_screenshot = base64.b64decode(data)
            if self.last_screenshot is not None:
                return self.last_screenshot
        raise BrowserFault("the browser draws no frame of the page", trouble=Trouble.REFUSED)

    async def deliver(self, *commands: tuple[str, dict[str, Any]], frames: int = 1) -> None:
        """Send inputs in order, and draw frames until the page has taken them all.

        Args:
            commands: DevTools commands of the domain Input, with their parameters.
            frames: Minimum number of frames. A page can count its frames, so their number should
                not depend on machine speed: name what the inputs need.
        """
        self._check()
        await self._await_refusals()
        work = asyncio.gather(*(self.send(name, **params) for name, params in commands))
        try:
            for _ in range(frames):
                await self.frame()
            while not (await asyncio.wait([work], timeout=_PUMP_S))[0]:
                await self.frame()
        finally:
            if not work.done():
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        work.result()

    async def send(self, method: str, **params: Any) -> Reply:  # noqa: ANN401  # any JSON
        """Send a DevTools command to the page.

        Raises:
            BrowserFault: The page is gone, does not answer, or refuses.
        """
        self._check()
        try:
            return await self.browser.send(
                method, self._session, deadline_s=self.options.deadline_s, **params
            )
        except BrowserFault as fault:
            self._take_fault(fault)
            raise

    async def aclose(self) -> None:
        """Close the page and forget its context; safe to call twice."""
        if not self._context:
            return
        context, self._context = self._context, ""
        self._trouble = self._trouble or Trouble.PAGE_GONE
        try:
            if self._rescue is not None:
                await self._rescue
        finally:
            self.browser.pages -= 1
        self.browser.connection.listen(self._session, None)
        self.browser.watch(self._target, None)
        for task in self._tasks:
            task.cancel()
        if self.browser.is_usable:
            with contextlib.suppress(BrowserFault):
                await self.browser.send(
                    "Target.disposeBrowserContext", deadline_s=2.0, browserContextId=context
                )

    async def _attach(self) -> None:
        attached = await self.browser.send(
            "Target.attachToTarget",
            deadline_s=self.options.deadline_s,
            targetId=self._target,
            flatten=True,
        )
        self._session = attached["sessionId"]
        self.browser.connection.listen(self._session, self._hear)
        self.browser.watch(self._target, self._hear_target)
        answers = await asyncio.gather(
            self.send(
                "Emulation.setVirtualTimePolicy", policy="pause", initialVirtualTime=START_TIME
            ),
            self.send("Page.enable"),
            self.send("Runtime.enable"),
            self.send("Fetch.enable", patterns=[{"urlPattern": "*"}]),
            self.send("Runtime.addBinding", name=_BINDING),
            self.send("Emulation.setFocusEmulationEnabled", enabled=True),
            self.send("Emulation.setTimezoneOverride", timezoneId="UTC"),
            self.browser.send(
                "Browser.setDownloadBehavior", behavior="deny", browserContextId=self._context
            ),
        )
        self._ticks = answers[0]["virtualTimeTicksBase"]

    async def _set_script(self, seed: int) -> None:
        config = json.dumps({"seed": seed, "clipboard": self._clipboard})
        if self._script is not None:
            await self.send("Page.removeScriptToEvaluateOnNewDocument", identifier=self._script)
        added = await self.send(
            "Page.addScriptToEvaluateOnNewDocument",
            source=_SCRIPT.replace("CONFIG);", config + ");"),
        )
        self._script = added["identifier"]

    async def _begin_frame(self, **params: Any) -> Reply:  # noqa: ANN401  # any JSON
        self._check()
        # Two requests at the same time yield one frame, and the second is never answered.
        self._frame_ticks = max(self._ticks + self._elapsed_ms, self._frame_ticks + _NEXT_FRAME_MS)
        try:
            return await self.browser.begin_frame(
                self._session,
                {"frameTimeTicks": self._frame_ticks, "interval": FRAME_MS, **params},
                deadline_s=self.options.deadline_s,
            )
        except BrowserFault as fault:
            self._take_fault(fault)
            raise

    def _check(self) -> None:
        if self._trouble is not None:
            raise BrowserFault(
                f"the page is gone ({self._trouble.value}): reset the environment",
                trouble=self._trouble,
            )

    def _take_fault(self, fault: BrowserFault) -> None:
        if fault.trouble is Trouble.HUNG:
            self._hang()
        elif fault.trouble in (Trouble.BROWSER_DIED, Trouble.SOCKET_CLOSED):
            self._trouble = fault.trouble

    def _hang(self) -> None:
        """Abandon the page and end its process, so the browser can continue without it."""
        if self._trouble is None:
            # Set this first: ending the process would report pending calls as a crash.
            self._give_up(Trouble.HUNG, "the page hangs")
            self._rescue = asyncio.ensure_future(self._quietly(self._end_process()))

    async def _end_process(self) -> None:
        if await self.browser.check():
            await self.browser.send("Page.crash", self._session, deadline_s=1.0)

    def _give_up(self, trouble: Trouble, what: str) -> None:
        if self._trouble is None:
            self._trouble = trouble
        fault = BrowserFault(what, trouble=trouble)
        self.browser.connection.fail(self._session, fault)
        if self._expired is not None and not self._expired.done():
            self._expired.set_exception(fault)
            self._expired.exception()  # retrieved, even if nothing waits for it any more

    def _hear_target(self, said: str) -> None:
        if said == "crashed":
            self._give_up(Trouble.RENDERER_CRASHED, "the process of the page crashed")
        elif said == "destroyed":
            self.left = "closed"
            self._give_up(Trouble.PAGE_GONE, "the page closed itself")
        else:
            self._spawn(self._lose())

    async def _lose(self) -> None:
        fault = await self.browser.loss("a page")
        self._give_up(fault.trouble, str(fault))

    def _hear(self, name: str, params: Reply) -> None:
        handler = self._HEARD.get(name)
        if handler is not None:
            handler(self, params)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
        with contextlib.suppress(BrowserFault):  # callers that wait for the page get the fault too
            await work

    def _on_request(self, params: Reply) -> None:
        request, number = params["request"], params["requestId"]
        if Site.owns(request["url"]):
            served = self.options.site.serve(request["url"])
            work = self.send(
                "Fetch.fulfillRequest",
                requestId=number,
                responseCode=served.status,
                responseHeaders=[{"name": "Content-Type", "value": served.content_type}],
                body=base64.b64encode(served.body).decode(),
            )
        elif params.get("resourceType") == "Document" and params.get("frameId") == self._target:
            self.events.counts[PageEvent.BLOCKED_NAVIGATION] += 1
            refusal = self._spawn(self._refuse_navigation(number))
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)
            return
        else:
            self.events.counts[PageEvent.BLOCKED] += 1
            work = self.send("Fetch.failRequest", requestId=number, errorReason="BlockedByClient")
        self._spawn(work)

    def _on_window(self, params: Reply) -> None:
        self.events.counts[PageEvent.POPUP] += 1

    async def _refuse_navigation(self, request: str) -> None:
        """Answer a navigation with "no content", which keeps the current page."""
        await self.send("Fetch.fulfillRequest", requestId=request, responseCode=204)
        # Otherwise the navigation may stop the page's clock forever, as in two of five trials.
        await self.send("Page.stopLoading")
        # The page's process stops later than it is told to, and an input may overtake that.
        await self.send("Runtime.evaluate", expression="0")

    async def _await_refusals(self) -> None:
        """Wait for refusals: `Page.stopLoading` would also stop the next input's navigation."""
        if self._refusals:
            await asyncio.wait(self._refusals)

    def _on_dialog(self, params: Reply) -> None:
        self.events.add_dialog(params.get("type", ""), params.get("message", ""))
        reply = {"promptText": params["defaultPrompt"]} if params.get("defaultPrompt") else {}
        self._spawn(self.send("Page.handleJavaScriptDialog", accept=True, **reply))

    def _on_navigated(self, params: Reply) -> None:
        frame = params["frame"]
        if frame.get("parentId") is None and not Site.owns(frame["url"]):
            self.left = "navigated"

    def _on_loaded(self, params: Reply) -> None:
        self._is_loaded = True

    def _on_expired(self, params: Reply) -> None:
        if self._expired is not None and not self._expired.done():
            self._expired.set_result(None)

    def _on_console(self, params: Reply) -> None:
        if params.get("type") in ("error", "assert"):
            self.events.counts[PageEvent.CONSOLE_ERROR] += 1

    def _on_exception(self, params: Reply) -> None:
        self.events.counts[PageEvent.EXCEPTION] += 1

    def _on_told(self, params: Reply) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            self._clipboard = str(json.loads(params["payload"])["clipboard"])

    _HEARD: Final = {
        "Fetch.requestPaused": _on_request,
        "Page.javascriptDialogOpening": _on_dialog,
        "Page.frameNavigated": _on_navigated,
        "Page.loadEventFired": _on_loaded,
        "Page.windowOpen": _on_window,
        "Emulation.virtualTimeBudgetExpired": _on_expired,
        "Runtime.consoleAPICalled": _on_console,
        "Runtime.exceptionThrown": _on_exception,
        "Runtime.bindingCalled": _on_told,
    }
