"""A real browser, and pages of `envkit ui` and of a single file in it.

A test module names this file in `pytest_plugins`.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fakes.chromium import Watched, running_chromium
from fakes.ui_pages import Open, Scheme, settled

from envkit.viewer import write_report

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
        page.set_default_timeout(60_000)
        opened.append(Watched(page))
        page.goto(address + place)
        settled(page)
        return page

    yield open_
    for watched in opened:
        assert watched.console == []
        origin = watched.requests[0].split("/?")[0]
        own = (origin, "data:", "blob:")
        assert [url for url in watched.requests if not url.startswith(own)] == []
        watched.page.context.close()


@pytest.fixture
def open_file(browser: "Browser", tmp_path: Path) -> Generator[Open]:
    """Open a page of a file; at the end nothing was said on a console or asked of a network."""
    opened: list[Watched] = []

    def open_(
        target: Any,
        place: str = "",
        *,
        width: int = 1400,
        height: int = 900,
        scheme: Scheme = "light",
        **options: Any,
    ) -> "Page":
        if not isinstance(target, Path):
            target = write_report(target, tmp_path / "report.html", **options)
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        page.set_default_timeout(60_000)
        opened.append(Watched(page))
        page.goto(target.as_uri() + place)
        settled(page)
        return page

    yield open_
    for watched in opened:
        assert watched.console == []
        assert watched.foreign_requests == []
        watched.page.close()
