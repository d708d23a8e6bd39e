"""Blank pages kept ready, so that a reset does not wait for a process to start."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from envkit_browser.driver.browser import Browser
from envkit_browser.driver.page import Page, PageOptions
from envkit_browser.driver.trouble import BrowserFault

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
