"""The pages of a run in a real browser: rows that open, examples, causes, filters by a link."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fakes.marked_runs import grouped_run
from fakes.needs import CHROMIUM
from fakes.served import served
from fakes.trajectories import Reply, build, with_sanity
from fakes.ui_pages import Open, Scheme, go, overflow, settled, until

from envkit.errors import FaultKind
from envkit.tokens import SanityStatus
from envkit.trajectory import (
    REWARD_THRESHOLD,
    FaultPlace,
    FaultRecord,
    StopReason,
    Trajectory,
    save,
)
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer.wording import CHECKS

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]

HOSTILE = '<img src=x onerror="window.hit=1">\n' + "W" * 400
FAULTS = (
    FaultRecord(where=FaultPlace.STEP, kind=FaultKind.TIMEOUT, message="no answer in 5 s"),
    FaultRecord(where=FaultPlace.RESET, kind=FaultKind.CRASHED, message=HOSTILE),
)
STOP = StopReason.ENV_FAULT


def image_run() -> list[Trajectory]:
    """Return six groups with images: two faults, and an episode whose replies were cut."""
    rows = grouped_run(groups=6)
    rows[1] = with_sanity(rows[1], SanityStatus.EQUAL, SanityStatus.UNCHECKED)
    turns = tuple(replace(turn, finish_reason="length") for turn in rows[5].turns)
    rows[5] = replace(rows[5], turns=turns)
    for n, fault in zip((7, 12), FAULTS, strict=True):
        rows[n] = replace(rows[n], reward=None, stop_reason=STOP, fault=fault)
    return rows


def text_run(count: int = 24) -> list[Trajectory]:
    return [
        build(
            [Reply(reward=float(n % 3 == 0))],
            episode_id=f"text-{n}",
            group_id=f"g{n // 4}",
            seed=n // 4,
            metadata={"member": n % 4, REWARD_THRESHOLD: 0.5},
        )
        for n in range(count)
    ]


def fault_run() -> list[Trajectory]:
    return [
        build([], stop_reason=STOP, fault=FAULTS[n % 3 // 2], episode_id=f"f-{n}", seed=n)
        for n in range(9)
    ]


@contextmanager
def run_of(rows: list[Trajectory], folder: Path) -> Generator[str]:
    """Serve one run, named "run"."""
    save(rows, folder / "run" / FILE_NAME)
    with served(folder) as address:
        yield address


def words(node: "Locator") -> str:
    return node.inner_text().replace("\u00a0", " ")


def opened_run(open_ui: Open, address: str, place: str, count: int) -> "Page":
    """Open a page of the run, and check the number of its episodes."""
    page = open_ui(address, place)
    assert f" {count}" in page.locator(".tabs").inner_text()
    return page


def is_on(page: "Page", name: str) -> None:
    until(page, "name => document.querySelector('main').className === name", name)
    settled(page)


def is_at(page: "Page", place: str) -> None:
    """Wait until the page of an episode is complete, whatever its turn."""
    until(page, "place => location.hash.split('?')[0] === place", place)
    is_on(page, "ep")


def test_row_opens_its_episode_on_a_click_anywhere(tmp_path: Path, open_ui: Open) -> None:
    with run_of(text_run(), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run/episodes?view=list", 24)
        cell = page.locator("tbody tr").nth(4).locator("[data-l=turns]")
        cell.click()
        is_at(page, "#/run/e/5")
        page.go_back()
        is_on(page, "eps")
        page.locator("tbody th a").nth(4).focus()
        page.keyboard.press("Enter")
        is_at(page, "#/run/e/5")


def test_row_opens_in_another_tab_and_leaves_selected_text_alone(
    tmp_path: Path, open_ui: Open
) -> None:
    with run_of(text_run(), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run/episodes?view=list", 24)
        cell = page.locator("tbody tr").nth(4).locator("[data-l='ended by']")
        for click in (
            lambda: cell.click(modifiers=["Control"]),
            lambda: cell.click(button="middle"),
        ):
            with page.context.expect_page() as opened:
                click()
            is_at(opened.value, "#/run/e/5")
            opened.value.close()
            is_on(page, "eps")
        box = cell.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 14, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 90, box["y"] + 20, steps=6)
        page.mouse.up()
        until(page, "getSelection().toString() !== ''")
        selected = page.evaluate("getSelection().toString()")
        assert selected in "ended by the environment"
        is_on(page, "eps")
        cell.click(button="right")
        is_on(page, "eps")


def test_list_keeps_its_place_for_who_comes_back(tmp_path: Path, open_ui: Open) -> None:
    with run_of(text_run(400), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run/episodes?view=list", 400)
        page.keyboard.press("End")
        row = page.locator("tbody [aria-rowindex='401']")
        row.wait_for()
        until(page, "history.state?.y > 9000")
        row.locator("[data-l=turns]").click()
        is_on(page, "ep")
        page.go_back()
        is_on(page, "eps")
        row.wait_for()
        until(
            page,
            """(() => { const row = document.querySelector("[aria-rowindex='401']");
            const y = row?.getBoundingClientRect().y; return 0 < y && y < 900; })()""",
        )
        page.locator(".tabs a").first.click()
        is_on(page, "run")
        page.locator(".tabs a").last.click()
        is_on(page, "eps")
        page.locator("tbody [aria-rowindex='2']").wait_for()
        until(page, "scrollY === 0")


def test_row_of_a_group_opens_its_members(tmp_path: Path, open_ui: Open) -> None:
    with run_of(text_run(), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run/episodes", 24)
        row = page.locator("tbody tr").nth(2)
        assert "group 3 · seed 2" in words(row.locator("th"))
        row.locator("[data-l=mean]").click()
        until(page, "document.querySelectorAll('table.list tbody tr').length === 4")
        names = [words(one) for one in page.locator("tbody th .muted").all()]
        assert names == [f"episode {n} · seed 2 · member {n - 8}" for n in range(9, 13)]
        page.locator(".only", has_text="group 3").click()
        until(page, "document.querySelectorAll('tbody tr').length > 4")


def test_overview_of_images_shows_examples_of_each_outcome(tmp_path: Path, open_ui: Open) -> None:
    with run_of(image_run(), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run", 24)
        assert page.locator(".examples img").count() == 8
        loaded = (
            "[...document.querySelectorAll('.examples img, .strip img')].every(x => x.naturalWidth)"
        )
        page.locator(".strip").scroll_into_view_if_needed()
        until(page, loaded)
        heads = page.locator(".examples h3").all_inner_texts()
        assert heads == ["Solved", "Not solved", "Faults"]
        faults = page.locator(".examples section").nth(2).locator("a.member")
        assert [words(one).split("\n")[-2] for one in faults.all()] == [
            "episode 8 · seed 1",
            "episode 13 · seed 3",
        ]
        faults.nth(1).click()
        is_at(page, "#/run/e/13")
        page.go_back()
        is_on(page, "run")
        page.get_by_role("link", name="Not solved").click()
        is_on(page, "eps")
        assert page.locator("[data-value=failed]").get_attribute("aria-pressed") == "true"


def test_overview_of_faults_begins_with_their_causes(tmp_path: Path, open_ui: Open) -> None:
    with run_of(fault_run(), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run", 9)
        assert page.locator("main .card h2").first.inner_text() == "Causes of faults"
        assert page.locator(".strip, .examples").count() == 0
        first, second = (words(one) for one in page.locator(".causes li").all())
        assert first.startswith("6\nstep timeout")
        assert "no answer in 5 s" in first
        assert "<img src=x" in second
        page.get_by_role("link", name="reset crashed").click()
        until(page, "document.querySelectorAll('tbody tr').length === 3")
        assert page.evaluate("window.hit") is None


def test_text_run_has_no_place_for_images(tmp_path: Path, open_ui: Open) -> None:
    with run_of(text_run(), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run", 24)
        for place in ("#/run", "#/run/episodes", "#/run/episodes?view=list"):
            go(page, place)
            is_on(page, "eps" if "episodes" in place else "run")
            assert page.locator("main :is(img, .thumb)").count() == 0, place
            shown = page.evaluate("[...document.querySelectorAll('.blank')]"
                ".filter(x => x.offsetParent).length")  # fmt: skip
            assert shown == 0, place


def test_figures_of_a_run_say_what_they_count(tmp_path: Path, open_ui: Open) -> None:
    with run_of(image_run(), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run", 24)
        assert "reward ≥ 1" in page.locator(".fig", has_text="Solved").inner_text()
        legend = page.locator(".legend").last.locator("li").all_inner_texts()
        assert [entry.split("\n")[:2] for entry in legend] == [
            [CHECKS["equal"], "1"],
            [CHECKS["unchecked"], "1"],
            ["not checked, outside the sample that a run draws", "46"],
        ]
        page.get_by_role("link", name="4 cut at the token limit").click()
        until(page, "document.querySelectorAll('.member').length === 1")
        assert "episode 6" in words(page.locator(".member"))


def test_list_says_success_beside_its_threshold(tmp_path: Path, open_ui: Open) -> None:
    with run_of(text_run(), tmp_path) as address:
        page = opened_run(open_ui, address, "#/run/episodes?view=list&cols=solved", 24)
        cells = page.locator("[data-l=solved]").all_inner_texts()
        assert cells[:3] == ["yes, ≥ 0.50", "no, ≥ 0.50", "no, ≥ 0.50"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_new_parts_fit_every_width(
    width: int, scheme: Scheme, tmp_path: Path, open_ui: Open
) -> None:
    for name, rows in (("images", image_run()), ("faults", fault_run()), ("text", text_run())):
        save(rows, tmp_path / name / FILE_NAME)
    with served(tmp_path) as address:
        page = open_ui(address, "#/images", width=width, scheme=scheme)
        for place in ("#/images", "#/images/episodes", "#/faults", "#/text/episodes?view=list"):
            go(page, place)
            assert overflow(page) == 0, place
