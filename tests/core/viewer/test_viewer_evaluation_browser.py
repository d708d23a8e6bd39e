"""The page of an evaluation in a real browser, in a single file and in `envkit ui`."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fakes.evaluations import write_evaluation_folder
from fakes.needs import CHROMIUM, packages
from fakes.served import served
from fakes.ui_pages import Open, Scheme, axe_faults, overflow, settled, until

from envkit.viewer import write_evaluation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]


def check_variants(page: "Page") -> None:
    settled(page)
    assert page.locator(".point").count() == 3  # two variants, and one difference
    assert page.locator(".whisker").count() == 3
    row = page.locator("section").filter(has_text="Paired differences").locator("tbody tr")
    cells = row.locator("td").all_inner_texts()
    assert cells[1].replace("\u2212", "-").startswith("-40 points -60 to -20 points")
    assert cells[5:] == ["0 / 1 / 2", "< 0.001", "1"]
    assert overflow(page) <= 0


def test_single_file_of_an_evaluation_draws_its_variants(tmp_path: Path, open_file: Open) -> None:
    folder = write_evaluation_folder(tmp_path / "pictures")
    page = open_file(write_evaluation(folder, tmp_path / "report.html"))
    check_variants(page)
    cards = page.locator(".shownby .member")
    assert cards.count() == 2
    cards.last.scroll_into_view_if_needed()
    until(page, "[...document.querySelectorAll('.shownby img')].every(one => one.naturalWidth > 0)")
    page.get_by_role("link", name="blank-image").first.click()
    page.locator("main.run").wait_for()
    assert page.locator(".brand").get_attribute("href") == "#/"


def test_served_evaluation_draws_its_variants(tmp_path: Path, open_ui: Open) -> None:
    write_evaluation_folder(tmp_path / "runs" / "pictures")
    with served(tmp_path / "runs") as address:
        page = open_ui(address)
        until(page, "document.querySelectorAll('[data-run]').length === 2")
        page.locator(".doc summary").click()
        page.get_by_role("link", name="Variants compared").click()
        page.locator("main.evaluation").wait_for()
        check_variants(page)


@packages("axe_playwright_python").mark
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_evaluation_breaks_no_rule_of_access(
    tmp_path: Path, browser: "Browser", scheme: Scheme, width: int
) -> None:
    folder = write_evaluation_folder(tmp_path / "pictures", ("none", "blank-image", "grid-overlay"))
    file = write_evaluation(folder, tmp_path / "report.html")
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.goto(file.as_uri())
    settled(page)
    assert axe_faults(page) == []
    assert overflow(page) <= 0
    context.close()
