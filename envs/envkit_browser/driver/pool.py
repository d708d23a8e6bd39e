"""A pool of browsers shared by the environments of one process and event loop.

A browser holds several pages and is replaced when it dies, reaches its page limit or grows too
large. The last environment that leaves the pool ends all browsers. Blank pages are kept ready, so
that a reset does not wait for a process to start.
"""

import asyncio
import contextlib
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from envkit.errors import ConfigurationError
from envkit_browser.driver.browser import START_S, Browser
from envkit_browser.driver.page import Page, PageOptions
from envkit_browser.driver.trouble import BrowserFault, Trouble

_PAUSE_S: Final = 0.1
"""Delay before a spare is opened, so its process starts after the current episode has loaded."""
_MAX_SHAPES: Final = 4
"""Maximum page shapes kept; the least recently used is dropped."""

Shape = tuple[int, int, float]
"""Width and height in device pixels, and device pixels per CSS pixel."""


class Spares:
    """Blank pages by shape."""

    def __init__(
        self, open_page: Callable[[PageOptions], Awaitable[Page | None]], most: int
    ) -> None:
        """Prepare to keep pages.

        Args:
            open_page: Opens a page, or returns None if there is no room for a spare.
            most: Maximum pages kept per shape.
        """
        self._open, self._most = open_page, most
        self._pages: dict[Shape, list[Page]] = {}
        self._tasks: dict[asyncio.Task[None], Shape] = {}

    def take(self, options: PageOptions) -> Page | None:
        """Return a page that is ready, or None."""
        pages = self._pages.get(_shape(options), [])
        while pages:
            page = pages.pop()
            if page.is_usable:
                page.options = options
                return page
        return None

    def knows(self, options: PageOptions) -> bool:
        """Return whether pages of this shape have been kept before."""
        return _shape(options) in self._pages

    def refill(self, options: PageOptions) -> None:
        """Start opening missing pages of a shape in the background."""
        shape = _shape(options)
        kept = self._pages.pop(shape, [])
        self._pages[shape] = kept = [page for page in kept if page.is_usable]
        coming = sum(other == shape for other in self._tasks.values())
        for _ in range(self._most - len(kept) - coming):
            task = asyncio.ensure_future(self._prepare(options, shape))
            self._tasks[task] = shape
            task.add_done_callback(self._tasks.pop)
        while len(self._pages) > _MAX_SHAPES:
            for page in self._pages.pop(next(iter(self._pages))):
                task = asyncio.ensure_future(page.aclose())
                self._tasks[task] = shape
                task.add_done_callback(self._tasks.pop)

    def count(self, browser: Browser) -> int:
        """Return the number of spare pages in a browser."""
        return sum(page.browser is browser for pages in self._pages.values() for page in pages)

    def forget(self, browser: Browser) -> None:
        """Drop the pages of a browser that is ending."""
        for shape, pages in self._pages.items():
            self._pages[shape] = [page for page in pages if page.browser is not browser]

    async def aclose(self) -> None:
        """Stop preparing; the pages themselves end with their browsers."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pages.clear()

    async def _prepare(self, options: PageOptions, shape: Shape) -> None:
        await asyncio.sleep(_PAUSE_S)
        with contextlib.suppress(BrowserFault):  # the next request for a page gets the failure
            page = await self._open(options)
            if page is not None:
                await page.warm_up()
                self._pages.setdefault(shape, []).append(page)


def _shape(options: PageOptions) -> Shape:
    return options.width, options.height, options.scale


_ATTEMPTS: Final = 3
_CHECK_EVERY: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Limits of a pool."""

    pages_per_browser: int = 8
    """Maximum open pages per browser."""
    recycle_pages: int = 500
    """Pages opened before a browser is retired; it ends when the last one closes."""
    recycle_bytes: int = 3 * 2**30
    """Resident memory at which a browser is retired, checked after every 16th page."""
    start_s: float = START_S
    """Startup limit in seconds."""
    starts: int = 2
    """Maximum browsers that start at the same time."""
    spares: int = 1
    """Blank pages kept ready per shape once a page was released; 0 keeps none."""

    def __post_init__(self) -> None:
        counts = (self.pages_per_browser, self.recycle_pages, self.recycle_bytes, self.starts)
        if min(counts) < 1 or self.start_s <= 0 or self.spares < 0:
            raise ConfigurationError(
                f"a pool's options must be positive and spares at least 0, got {self}"
            )


class BrowserPool:
    """Opens pages in as few browsers as its options allow; belongs to one event loop."""

    def __init__(self, options: PoolOptions | None = None) -> None:
        self.options = options or PoolOptions()
        self.troubles: Counter[Trouble] = Counter()
        """Faults so far, by kind; users add theirs with `count`."""
        self.started = 0
        """Browsers started so far."""
        self._browsers: list[Browser] = []
        self._promised: Counter[Browser] = Counter()
        self._released = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._spares = Spares(self._open_spare, self.options.spares)
        self._starts = asyncio.Semaphore(self.options.starts)

    @property
    def browsers(self) -> tuple[Browser, ...]:
        """Running browsers."""
        return tuple(self._browsers)

    def count(self, fault: BrowserFault) -> None:
        """Count a fault by its kind."""
        self.troubles[fault.trouble] += 1

    async def open(self, options: PageOptions) -> Page:
        """Open a page, in a new browser if the running ones are full, worn or dead.

        Raises:
            MissingDependencyError: No browser is installed.
            BrowserFault: Browsers fail repeatedly.
        """
        spare = self._spares.take(options)
        if self._spares.knows(options):
            self._spares.refill(options)
        if spare is not None:
            return spare
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._open(options)
            except BrowserFault as fault:
                self.count(fault)
        return await self._open(options)

    async def release(self, page: Page) -> None:
        """Close a page, and its browser if that is broken or retired.

        A page that works is closed in the background, while the next one is prepared.
        """
        if not page.is_usable:
            await self._release(page)
            return
        self._spares.refill(page.options)
        task = asyncio.ensure_future(self._release(page))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _release(self, page: Page) -> None:
        await page.aclose()
        self._released += 1
        if self._released % _CHECK_EVERY == 0:
            for browser in self._browsers:
                if browser.process.memory() > self.options.recycle_bytes:
                    browser.is_retired = True
        await self._sweep()

    async def aclose(self) -> None:
        """End all browsers; safe to call twice."""
        await self._spares.aclose()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(self._drop(browser) for browser in self.browsers))

    async def _open(self, options: PageOptions) -> Page:
        browser = await self._find(options.scale)
        try:
            return await Page.open(browser, options)
        except BrowserFault:
            browser.discard(Trouble.START_FAILED)
            raise
        finally:
            self._promised[browser] -= 1
            if self._promised[browser] <= 0:
                del self._promised[browser]  # a counter must not keep a dead browser
            await self._sweep()

    async def _open_spare(self, options: PageOptions) -> Page | None:
        """Open a page in a running browser; `spares` pages may exceed `pages_per_browser`."""
        for browser in self._browsers:
            if browser.scale == options.scale and self._has_room(browser, self.options.spares):
                return await Page.open(browser, options)
        return None

    async def _find(self, scale: float) -> Browser:
        """Reserve room for a page in a running browser."""
        while True:
            await self._sweep()
            for browser in self._browsers:
                if browser.scale == scale and self._has_room(browser):
                    self._promised[browser] += 1
                    return browser
            await self._wait_for_start(scale)

    async def _wait_for_start(self, scale: float) -> None:
        """Start a browser, or wait for one that another caller is starting."""
        async with self._starts:
            if any(b.scale == scale and self._has_room(b) for b in self._browsers):
                return
            browser = await Browser.start(scale=scale, deadline_s=self.options.start_s)
            self.started += 1
            self._browsers.append(browser)

    def _has_room(self, browser: Browser, extra: int = 0) -> bool:
        opened = browser.opened + self._promised[browser]
        return (
            browser.is_usable
            and not browser.is_retired
            and opened < self.options.recycle_pages
            and self._load(browser) < self.options.pages_per_browser + extra
        )

    def _load(self, browser: Browser) -> int:
        return browser.pages + self._promised[browser]

    async def _sweep(self) -> None:
        """End browsers that are broken, or worn and empty."""
        for browser in self.browsers:
            is_worn = browser.is_retired or browser.opened >= self.options.recycle_pages
            is_idle = self._load(browser) == self._spares.count(browser)
            if (is_worn and is_idle) or not browser.is_usable:
                await self._drop(browser)

    async def _drop(self, browser: Browser) -> None:
        with contextlib.suppress(ValueError):
            self._browsers.remove(browser)
        self._spares.forget(browser)
        await browser.aclose()
        self._promised.pop(browser, None)


_POOLS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, BrowserPool] = (
    weakref.WeakKeyDictionary()
)
_USERS: weakref.WeakKeyDictionary[BrowserPool, weakref.WeakSet[object]] = (
    weakref.WeakKeyDictionary()
)


def join_pool(user: object) -> BrowserPool:
    """Join the pool of the running event loop."""
    loop = asyncio.get_running_loop()
    pool = _POOLS.get(loop)
    if pool is None:
        pool = _POOLS[loop] = BrowserPool()
    _USERS.setdefault(pool, weakref.WeakSet()).add(user)
    return pool


async def leave_pool(user: object, pool: BrowserPool) -> None:
    """Leave a pool from `join_pool`; the last user ends its browsers. Safe to call twice."""
    users = _USERS.get(pool)
    if users is None or user not in users:
        return
    users.discard(user)
    if not users:
        _USERS.pop(pool, None)
        for loop, owned in list(_POOLS.items()):
            if owned is pool:
                del _POOLS[loop]
        await pool.aclose()
