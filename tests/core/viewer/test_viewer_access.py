"""The viewer without a mouse and for every eye: axe's rules, Tab, visible focus, arrow keys."""

import asyncio
import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fakes.branching import SUMMARY
from fakes.branching import rewritten as rewritten_by
from fakes.marked_runs import EVERY_MARK, forked_run, grouped_run, marked, rewritten
from fakes.needs import CHROMIUM, packages
from fakes.served import served
from fakes.trajectories import build, example
from fakes.ui_pages import Scheme, axe_faults, go, overflow, settled, until, walk_by_tab

from envkit.errors import FaultKind
from envkit.trajectory import FaultPlace, FaultRecord, StopReason, save
from envkit.trajectory.storage import FILE_NAME, TrajectoryWriter
from envkit.viewer import write_diff, write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]

BOTH: tuple[Scheme, ...] = ("light", "dark")
PAGES = ("#/", "#/?by=prefix", "#/?by=environment&pick=one,two", "#/?compare=one,two",
         "#/?compare=one,two&x=run&y=tokens", "#/?compare=one,two&of=episodes&smooth=0.5",
         "#/?tag=paper&cols=reward,note", "#/?first=one&second=two", "#/one",
         "#/one/episodes", "#/one/episodes?view=list&q=i+go", "#/one/e/6?t=2", "#/one/e/6?vs=7",
         "#/special/e/1", "#/special/e/2?t=3", "#/nothing", "#/tree", "#/tree/episodes?show=solved",
         "#/tree/episodes?view=list", "#/tree/e/2?t=2", "#/tree/e/2?vs=3&t=4",
         "#/one/e/6?view=json", "#/special/e/1?q=i+go&t=2", "#/asked/e/1?t=3", "#/faulted",
         "#/faulted/episodes", "#/faulted/e/1")  # fmt: skip
WALKED = ("#/?pick=one,two", "#/?compare=one,two", "#/one/e/6?view=json",
          "#/?first=one&second=two", "#/one",
          "#/one/episodes", "#/one/episodes?view=list", "#/one/e/6?t=2", "#/one/e/6?vs=7",
          "#/tree", "#/tree/e/2?t=2", "#/faulted", "#/faulted/e/1", "#/nothing")  # fmt: skip


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with everything that a page draws, a certificate and an evaluation."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        save(grouped_run(groups=3), root / name / FILE_NAME)
    notes = {"schema": 1, "note": "A long note. " * 20, "tags": ["paper", "good run"]}
    (root / "one" / "notes.json").write_text(json.dumps(notes))
    save(forked_run(), root / "tree" / FILE_NAME)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asyncio.run, rewritten_by(SUMMARY)).result()
    save([asked], root / "asked" / FILE_NAME)
    every = marked([EVERY_MARK, []], rewards=[-0.5, 1.0])
    save([every, rewritten()], root / "special" / FILE_NAME)
    fault = FaultRecord(where=FaultPlace.RESET, kind=FaultKind.CRASHED, message="no display")
    faulted = build([], stop_reason=StopReason.ENV_FAULT, fault=fault)
    save([faulted], root / "faulted" / FILE_NAME)
    line = {"name": "leaks", "verdict": "fail", "value": 0.3, "detail": "blind", "evidence": ["x"]}
    certificate = {"target": "a", "is_complete": True, "passed": False, "lines": [line]}
    (root / "certificate.json").write_text(json.dumps(certificate))
    estimate = {"mean": 0.5, "interval": {"low": 0.2, "high": 0.9}, "tasks": 9}
    figures = {"env_id": "a", "tag": None, "tasks": 9, "success": estimate, "reward": estimate}
    document = {"schema": 1, "counting": {}, "is_complete": True, "lines": [figures]}
    (root / "eval.json").write_text(json.dumps({**document, "runs": {"one": {}}}))
    return root


@contextmanager
def opened(
    browser: "Browser", address: str, *, width: int, scheme: Scheme = "light"
) -> "Generator[Page]":
    """Open an address in a page into which axe can be put."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        reduced_motion="reduce",
        bypass_csp=True,  # of axe itself
    )
    with context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(address)
        settled(page)
        yield page


def unfold(page: "Page") -> None:
    """Open all folds of a page; some are filled once they are open."""
    page.evaluate("document.querySelectorAll('main details').forEach(one => one.open = true)")
    until(
        page,
        "[...document.querySelectorAll('main details[open]')].every(x => x.children.length > 1)",
    )


def press(page: "Page", key: str, dialog: str) -> None:
    """Press a key that opens a dialog."""
    page.keyboard.press(key)
    page.locator(f"{dialog}[open]").wait_for()


def close(page: "Page", dialog: str) -> None:
    page.keyboard.press("Escape")
    page.locator(f"{dialog}[open]").wait_for(state="detached")


@packages("axe_playwright_python").mark
@pytest.mark.parametrize("width", [1400, 800, 390])
def test_pages_fit_and_have_no_fault_that_axe_knows(
    width: int, every_kind: Path, browser: "Browser"
) -> None:
    with (
        served(every_kind, takes_notes=True) as address,
        opened(browser, address, width=width) as page,
    ):
        found: list[Any] = []
        for place in PAGES:
            go(page, place)
            unfold(page)
            assert overflow(page) == 0, place
            found += [(place, fault) for fault in axe_faults(page, schemes=BOTH)]
        go(page, "#/one/e/6")
        for key, dialog in (("z", "#light"), ("?", "#help")):
            press(page, key, dialog)
            found += [(dialog, fault) for fault in axe_faults(page, schemes=BOTH)]
            close(page, dialog)
        assert found == []


@packages("axe_playwright_python").mark
@pytest.mark.parametrize("width", [1400, 390])
def test_single_file_has_no_fault_that_axe_knows(
    width: int, tmp_path: Path, browser: "Browser"
) -> None:
    rows = grouped_run(groups=2)
    report = write_report(rows, tmp_path / "report.html", token_text=lambda i: f"<{i}>")
    diff = write_diff(rows, grouped_run(groups=2), tmp_path / "diff.html")
    found: list[Any] = []
    for file, places in ((report, ("/episodes", "/e/6?t=2", "/e/6?vs=7")), (diff, ())):
        with opened(browser, file.as_uri(), width=width) as page:
            home = page.evaluate("JSON.parse(document.getElementById('index').textContent)")
            unfold(page)
            found += [(file.name, fault) for fault in axe_faults(page, schemes=BOTH)]
            for place in places:
                go(page, f"#/{home['runs'][0]['name']}{place}")
                unfold(page)
                found += [(place, fault) for fault in axe_faults(page, schemes=BOTH)]
    assert found == []


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_tab_reaches_every_control_and_shows_where_it_is(
    width: int, scheme: Scheme, every_kind: Path, browser: "Browser"
) -> None:
    with (
        served(every_kind, takes_notes=True) as address,
        opened(browser, address, width=width, scheme=scheme) as page,
    ):
        faults: list[Any] = []
        for place in WALKED:
            go(page, place)
            faults += [(place, fault) for fault in walk_by_tab(page)]
        go(page, "#/one/e/6")
        for key, dialog in (("z", "#light"), ("?", "#help")):
            press(page, key, dialog)
            faults += [(dialog, fault) for fault in walk_by_tab(page)]
            close(page, dialog)
        assert faults == []


LOADED = (  # a place, and what it asks the server for
    ("#/one", "run"),
    ("#/one/e/6", "episode"),
    ("#/one/e/6?view=json", "record"),
    ("#/one/episodes?q=go", "search"),
    ("#/?compare=one,two", "metrics"),
    ("#/?compare=one,two&of=episodes", "run"),
    ("#/?first=one&second=two", "diff"),
    ("#/?first=one&second=two&q=go", "search"),
)


@pytest.mark.parametrize(("place", "asked"), LOADED)
def test_page_is_busy_while_it_loads_what_it_shows(
    place: str, asked: str, every_kind: Path, browser: "Browser"
) -> None:
    states = list[str | None]()
    with (
        served(every_kind) as address,
        opened(browser, address, width=1400) as page,
    ):
        main = page.locator("main")

        def answer(route: "Route") -> None:
            states.append(main.get_attribute("aria-busy"))
            route.continue_()

        page.route(f"**/api/{asked}?*", answer)
        go(page, place)
        assert states
        assert set(states) == {"true"}
        assert main.get_attribute("aria-busy") is None
        assert main.locator(".error").count() == 0


GROWING = (  # a place, what has the focus, and what changes once the run has another episode
    ("#/?pick=one,two", ".picked a", ".c-episodes"),
    ("#/", "[data-sort=reward]", ".c-episodes"),
    ("#/", ".taskcell a[href='#/one']", ".c-episodes"),
    ("#/", ".doc summary", ".c-episodes"),
    ("#/?compare=one,two", ".point", ".mini td"),
    ("#/one/episodes?view=list", "[data-sort=turns]", ".tabs"),
    ("#/one/e/1", ".tabs a", ".tabs"),
    ("#/?first=one&second=two", ".toggle button", ".tally"),
)


@pytest.mark.parametrize(("place", "focused", "changing"), GROWING)
def test_focus_and_folds_stay_where_they_are_while_a_run_grows(
    place: str, focused: str, changing: str, tmp_path: Path, browser: "Browser"
) -> None:
    first, *rest = grouped_run(groups=2)
    save([first, *rest], tmp_path / "two" / FILE_NAME)
    line = {"name": "leaks", "verdict": "fail", "value": 0.3, "detail": "blind", "evidence": ["x"]}
    certificate = {"target": "a", "is_complete": True, "passed": False, "lines": [line]}
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    with TrajectoryWriter(tmp_path / "one") as writer, ExitStack() as stack:
        writer.write(first)
        address = stack.enter_context(served(tmp_path))
        page = stack.enter_context(opened(browser, address, width=1400))
        go(page, place)
        unfold(page)
        page.locator(focused).first.focus()
        folds = page.locator("main details[open]").count()
        before = page.locator(changing).all_inner_texts()
        writer.write(rest[0])
        texts = "what => [...document.querySelectorAll(what)].map(one => one.innerText)"
        until(page, f"([what, before]) => ({texts})(what).join() !== before.join()",
              [changing, before])  # fmt: skip
        settled(page)
        assert page.evaluate("what => document.activeElement.matches(what)", focused)
        assert page.locator("main details[open]").count() == folds


def test_keys_scroll_a_long_box_that_has_the_focus(tmp_path: Path, browser: "Browser") -> None:
    rows = [replace(example(0), metadata={f"key {n}": n for n in range(80)})]
    file = write_report(rows, tmp_path / "report.html")
    with opened(browser, file.as_uri(), width=1400) as page:
        go(page, "#/trajectories%20in%20memory/e/1")
        unfold(page)
        box = page.locator("pre", has_text="key 79").first
        box.focus()
        page.keyboard.press("End")
        until(page, "document.activeElement.scrollTop > 100")
        assert page.locator(".turns [aria-current=step] .n").inner_text() == "1"
