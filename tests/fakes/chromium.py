"""A real browser for tests of pages: a page that reports what it does."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fakes.slow_ui import slow_pages

from envkit_browser.driver import find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Watched:
    """A page, with what its console said and what it asked for besides its own file."""

    def __init__(self, page: "Page") -> None:
        self.page = page
        self.console: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: self.console.append(said.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", lambda asked: self.requests.append(asked.url))

    @property
    def foreign_requests(self) -> list[str]:
        """Addresses that are no file, no data and no blob of the page itself."""
        own = ("file:", "data:", "blob:")
        return [url for url in self.requests if not url.startswith(own)]


@contextmanager
def running_chromium() -> "Generator[Browser]":
    """Start a real browser, and close it at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        slow_pages(browser)
        try:
            yield browser
        finally:
            browser.close()
