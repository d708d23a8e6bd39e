"""A real browser and pages of `envkit ui` in it.

A test module names this file in `pytest_plugins`.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from fakes.chromium import Watched, running_chromium
from fakes.ui_pages import Open, Scheme, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> "Generator[Browser]":
    with running_chromium() as found:
        yield found


@pytest.fixture
def open_ui(browser: "Browser") -> Generator[Open]:
    """Open a page of a served folder; at the end nothing was said on a console."""
    opened: list[Watched] = []

    def open_(
        address: str, place: str = "", *, width: int = 1400, scheme: Scheme = "light"
    ) -> "Page":
        context = browser.new_context(
            viewport={"width": width, "height": 900 if width > 500 else 844},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        page = context.new_page()
        page.set_default_timeout(20_000)
        opened.append(Watched(page))
        page.goto(address + place)
        until(page, "document.querySelector('main').className !== ''")
        return page

    yield open_
    for watched in opened:
        assert watched.console == []
        origin = watched.requests[0].split("/?")[0]
        assert [url for url in watched.requests if not url.startswith((origin, "data:"))] == []
        watched.page.context.close()
