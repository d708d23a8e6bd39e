"""`envkit ui` in a real browser: runs, comparisons, live runs, harmless names, access."""

import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fakes.command import start_envkit
from fakes.marked_runs import CLICK, SIZE, grouped_run
from fakes.needs import CHROMIUM
from fakes.served import served
from fakes.trajectories import Reply, build
from fakes.ui_pages import Open, eventually, go, in_address, overflow, settled, until

from envkit.trajectory import save
from envkit.trajectory.storage import FILE_NAME, TrajectoryWriter
from envkit.viewer.growing_file import FileLine
from envkit.viewer.live_run import LiveRun

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]

NAMES = ("sweep/geo-s0", "sweep/geo-s1", "sweep/geo-s2", "base")
HOSTILE = (
    '<img src=x onerror="window.hit=1">',
    '"><svg onload=window.hit=2>',
    "\u202eesrever\u202c \x1b[31m\u200b" + "W" * 150,
    "a,b?c=d&e#f%2F;'`",
    "__proto__",
    "constructor",
    "up..%2f..",
)
HELD_WRITER = """
import time
from pathlib import Path
from envkit.trajectory import storage
append, written = storage.TrajectoryWriter.append, 0
def held(self, *prepared):
    global written
    written += len(prepared)
    while written > int(Path({gate!r}).read_text() or 0):
        time.sleep(0.02)
    append(self, *prepared)
storage.TrajectoryWriter.append = held
"""
"""Writes as many episodes as a file allows."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, three of one series; an evaluation and a certificate."""
    root = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(NAMES):
        save(grouped_run(groups=3 + 2 * number), root / name / FILE_NAME)
        written = 1_000_000_000 + number
        os.utime(root / name / FILE_NAME, (written, written))
        settings = {"env_id": "fake-v0", "engine": {"policy": "oracle"}, "episodes": 400,
                    "config": {"seed": number, "sampling": {"temperature": number},
                               "top": number or None}}  # fmt: skip
        (root / name / "run.json").write_text(json.dumps({"settings": settings}))
    line = {"name": "leaks", "verdict": "fail", "value": 0.31, "detail": "blind reward"}
    report = {"target": "fake-v0", "episodes": 4, "seed": 0, "is_complete": True, "passed": False,
              "lines": [{**line, "evidence": ["seed 3 leaks its answer"]}]}  # fmt: skip
    (root / "certificate.json").write_text(json.dumps(report))
    estimate = {"mean": 0.5, "interval": {"low": 0.21, "high": 0.93}, "tasks": 9}
    figures = {"env_id": "fake-v0", "tag": None, "value": None, "tasks": 9, "episodes": 9,
               "faulted": 0, "aborted": 0, "success": estimate, "reward": estimate,
               "pass_at": {"1": estimate, "4": estimate}, "turns": 2.0, "seconds": 1.0}  # fmt: skip
    document = {"schema": 1, "counting": {}, "is_complete": True, "lines": [figures]}
    (root / "eval.json").write_text(json.dumps({**document, "runs": {"base": {}}}))
    return root


@pytest.fixture
def slow_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server read so slowly that pages are opened before their runs are read."""
    take = LiveRun._take

    def slow(self: LiveRun, line: FileLine) -> None:
        time.sleep(0.01)
        take(self, line)

    monkeypatch.setattr(LiveRun, "_take", slow)


def is_read(page: "Page", count: int) -> None:
    """Wait until so many runs are listed, each read to its end."""
    rows = "document.querySelectorAll('[data-run]').length"
    until(page, f"count => {rows} === count && !document.querySelector('.reading')", count)


def listed(page: "Page") -> list[str]:
    return page.locator(".runs-table .taskcell a").all_inner_texts()


def test_table_of_runs_sorts_filters_groups_and_the_address_restores_it(
    folder: Path, open_ui: Open
) -> None:
    with served(folder) as address:
        page = open_ui(address)
        is_read(page, 4)
        assert listed(page)[0] == "base"  # written last
        assert "key=" not in page.evaluate("location.href")
        page.get_by_role("button", name="Run").click()
        eventually(lambda: listed(page), ["base", *NAMES[:3]])
        page.get_by_role("button", name="Episodes").click()
        page.get_by_role("button", name="Episodes").click()
        episodes = page.locator(".c-episodes")
        eventually(lambda: [int(text.split()[0]) for text in episodes.all_inner_texts()],
                   [36, 28, 20, 12])  # fmt: skip
        page.get_by_role("searchbox").fill("geo")
        page.get_by_label("Group by").select_option("prefix")
        page.locator(".chooser summary").click()
        page.get_by_role("checkbox", name="Group means").uncheck()
        page.get_by_role("checkbox", name="Seed", exact=True).check()
        page.keyboard.press("Escape")
        page.locator("th.c-groups, td.c-groups").first.wait_for(state="detached")
        head = page.locator(".grouphead").inner_text()
        assert head.startswith("sweep/geo")
        assert re.search(r"reward: 0\.\d\d ± 0\.\d\d over 3 runs", head)
        in_address(page, "seed")
        before, url = listed(page), page.evaluate("location.href")
        page.reload()
        settled(page)
        is_read(page, 3)
        assert (listed(page), page.evaluate("location.href")) == (before, url)
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
        assert page.locator(".c-groups").count() == 0
        assert page.locator(".c-seed").all_inner_texts() == ["2", "1", "0"]


def test_runs_are_compared_by_keyboard(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address)
        is_read(page, 4)
        for name in NAMES[:3]:
            page.get_by_role("checkbox", name=f"Compare {name}").focus()
            page.keyboard.press("Space")
        page.get_by_role("link", name="Compare", exact=True).focus()
        page.keyboard.press("Enter")
        page.locator(".plot").wait_for()
        settled(page)
        assert page.locator(".point").count() == 3
        assert page.locator(".axis").inner_text() == "seed"
        differing = page.locator("section").filter(has_text="Settings that differ")
        shown = differing.locator("tbody").first.locator("th").all_inner_texts()
        assert shown == ["config.sampling.temperature", "config.seed", "config.top"]
        assert differing.locator("tbody").first.locator("td").all_inner_texts()[-3:] == [
            "not set", "1", "2"]  # fmt: skip
        page.get_by_label("Y axis").select_option("turns")
        in_address(page, "y=turns")
        page.keyboard.press("Tab")
        page.locator("main").focus()
        page.keyboard.press("Escape")
        is_read(page, 4)
        eventually(page.locator(":checked[data-run]").count, 3)


def test_two_runs_are_compared_episode_by_episode(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, "#/?first=sweep%2Fgeo-s0&second=base")
        assert page.locator("h1").inner_text() == "What changed from sweep/geo-s0 to base"
        page.get_by_role("searchbox").fill("row 2")
        until(page, "document.querySelectorAll('tbody .taskcell a').length === 4")
        in_address(page, "q=row+2")
        page.reload()
        settled(page)
        assert page.locator("tbody .taskcell a").count() == 4
        page.locator("tbody .taskcell a").first.click()
        until(page, "document.querySelectorAll('.lane').length === 2")


@pytest.mark.usefixtures("slow_reading")
def test_two_runs_are_compared_while_they_are_read(folder: Path, open_ui: Open) -> None:
    with served(folder, is_read=False) as address:
        page = open_ui(address, "#/?first=sweep%2Fgeo-s0&second=base")
        page.locator("main.diff").wait_for()
        until(page, "document.querySelectorAll('tbody .taskcell a').length === 12")
        page.get_by_role("searchbox").fill("row 2")
        until(page, "document.querySelectorAll('tbody .taskcell a').length === 4")


def test_comparison_follows_a_run_that_grows(tmp_path: Path, open_ui: Open) -> None:
    episodes = grouped_run(groups=3)
    save(episodes, tmp_path / "first" / FILE_NAME)
    with TrajectoryWriter(tmp_path / "second") as writer, served(tmp_path) as address:
        writer.write(episodes[0])
        page = open_ui(address, "#/?first=first&second=second")
        until(page, "document.querySelectorAll('tbody .taskcell a').length === 1")
        page.get_by_role("searchbox").fill("row 1")
        for episode in episodes[1:]:
            writer.write(episode)
        until(page, "document.querySelectorAll('tbody .taskcell a').length === 4")
        assert page.get_by_role("searchbox").input_value() == "row 1"
        page.get_by_role("searchbox").fill("")
        until(page, "document.querySelectorAll('tbody .taskcell a').length === 12")


@pytest.mark.usefixtures("slow_reading")
def test_address_of_an_episode_waits_for_it(folder: Path, browser: "Browser") -> None:
    with served(folder, is_read=False) as address:
        page = browser.new_page()  # its console says that there was nothing at first
        page.set_default_timeout(60_000)
        page.add_init_script("""addEventListener("DOMContentLoaded", () => { window.seen = [];
            const note = () => window.seen.push(document.querySelector("main").textContent);
            const options = {childList: true, subtree: true};
            new MutationObserver(note).observe(document.querySelector("main"), options); })""")
        page.goto(f"{address}#/base/e/36")
        page.locator("main.ep").wait_for()
        texts = page.evaluate("window.seen")
        assert any("Waiting for episode 36" in text for text in texts)
        assert not any("Not found" in text for text in texts)  # it is only not read yet
        page.goto(f"{address}#/later/e/1")
        page.get_by_text("There is no run named later here.").wait_for()
        save(grouped_run(groups=1), folder / "later" / FILE_NAME)
        page.locator("main.ep").wait_for()
        page.close()
        shutil.rmtree(folder / "later")


def test_certificates_and_evaluations_are_shown_as_what_they_are(
    folder: Path, open_ui: Open
) -> None:
    with served(folder) as address:
        page = open_ui(address)
        is_read(page, 4)
        certificate = page.locator(".doc").filter(has_text="certificate.json")
        assert "1 line failed or not run" in certificate.inner_text()
        certificate.locator("summary").click()
        certificate.get_by_text("seed 3 leaks its answer").wait_for()
        evaluation = page.locator(".doc").filter(has_text="eval.json")
        evaluation.locator("summary").click()
        evaluation.get_by_text("21% to 93%").first.wait_for()
        assert "pass@4" in evaluation.inner_text()
        evaluation.get_by_role("link", name="base").click()
        page.locator("main.run").wait_for()


def test_episode_of_a_served_run_draws_marks_and_finds_text(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, "#/base/e/6")
        frame = page.locator(".turn .frame").first
        until(page, "document.querySelector('.turn .frame img').naturalWidth === 672")
        box, ring = frame.locator("img").bounding_box(), frame.locator(".ring").bounding_box()
        assert box is not None
        assert ring is not None
        assert ring["x"] + ring["width"] / 2 == pytest.approx(
            box["x"] + CLICK[0] / SIZE[0] * box["width"], abs=1
        )
        go(page, "#/base/episodes")
        page.get_by_role("searchbox").fill("largest VALUE")
        until(page, "document.querySelectorAll('mark').length > 0")
        page.get_by_role("searchbox").fill("i go on")
        until(page, "document.querySelector('.hit mark')?.textContent === 'I go on'")
        assert page.locator(".hit").first.inner_text().startswith("reply 1")


def test_page_follows_a_real_rollout_to_its_end(tmp_path: Path, open_ui: Open) -> None:
    gate = tmp_path / "gate"
    gate.write_text("4")
    with served(tmp_path) as address:
        page = open_ui(address)
        assert page.get_by_text("No runs here yet.").count() == 1
        process = start_envkit("rollout", "canary-v0", "--policy", "oracle", "-n", 24, "--group", 4,
                               "--concurrency", 2, "--out", tmp_path / "new", "--quiet",
                               before=HELD_WRITER.format(gate=str(gate)))  # fmt: skip
        try:
            page.locator(".state.live").wait_for()
            eventually(page.locator(".c-episodes").inner_text, "4 of 24")
            page.get_by_role("link", name="new").click()
            page.locator(".top .live").wait_for()
            count = "Number(/Episodes (\\d+)/.exec(document.querySelector('.tabs').innerText)[1])"
            for allowed in (8, 12):
                gate.write_text(str(allowed))
                until(page, f"allowed => {count} === allowed", allowed)
            go(page, "#/new/episodes?view=list")
            rows = "document.querySelector('table.list').getAttribute('aria-rowcount') - 1"
            assert page.evaluate(rows) == 12  # without the head; not all are drawn
            page.locator("tbody a").first.focus()
            gate.write_text("16")
            until(page, f"{rows} === 16")
            settled(page)
            assert page.evaluate("document.activeElement.closest('tbody') !== null")
            gate.write_text("24")
            until(page, f"{rows} === 24")
            until(page, "!document.querySelector('.top .live')")
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.communicate()
        go(page, "#/")
        until(page, "document.querySelector('.c-episodes')?.innerText === '24'")


def test_press_during_which_news_arrives_is_a_click(tmp_path: Path, open_ui: Open) -> None:
    episodes = grouped_run(groups=1)
    with TrajectoryWriter(tmp_path / "run") as writer, served(tmp_path) as address:
        writer.write(episodes[0])
        page = open_ui(address)
        until(page, "document.querySelector('.c-episodes')?.innerText === '1'")
        page.get_by_role("searchbox").focus()
        page.get_by_role("link", name="run", exact=True).hover()
        page.mouse.down()
        with page.expect_response("**/api/runs?*"):
            for episode in episodes[1:]:
                writer.write(episode)
        settled(page)
        page.mouse.up()
        until(page, "location.hash.startsWith('#/run')")
        until(page, "document.querySelector('.tabs')?.innerText.includes('Episodes 4')")


def test_context_menu_ends_a_press(folder: Path, open_ui: Open) -> None:
    """A menu may take the release, and news must not wait for it."""
    with served(folder) as address:
        page = open_ui(address)
        page.evaluate("addEventListener('released', () => { window.isReleased = true })")
        page.locator(".runs-table").hover()
        page.mouse.down(button="right")
        until(page, "window.isReleased")


def test_page_reloads_a_replaced_run(tmp_path: Path, open_ui: Open) -> None:
    save(grouped_run(groups=4), tmp_path / "run" / FILE_NAME)
    with served(tmp_path) as address:
        page = open_ui(address, "#/run/episodes?view=list")
        until(page, "document.querySelectorAll('tbody tr').length === 16")
        save(grouped_run(groups=2), tmp_path / "run" / FILE_NAME)
        until(page, "document.querySelectorAll('tbody tr').length === 8")


@pytest.mark.parametrize("width", [1400, 390])
def test_hostile_names_are_text(width: int, tmp_path: Path, open_ui: Open) -> None:
    for text in HOSTILE:
        rows = [replace(build([Reply(text=text)], env_id=text), engine=text)]
        save(rows, tmp_path / text / FILE_NAME)
        settings = {"env_id": text, "engine": {"policy": text}, text: {text: text}}
        (tmp_path / text / "run.json").write_text(json.dumps({"settings": settings}))
    save([build([Reply()])], tmp_path / "plain" / FILE_NAME)
    shutil.copytree(tmp_path / "plain", tmp_path / os.fsdecode(b"not\xffutf8"))
    line = dict.fromkeys(("name", "verdict", "detail"), HOSTILE[0])
    document = {"target": HOSTILE[1], "passed": HOSTILE, "is_complete": True,
                "lines": [{**line, "evidence": list(HOSTILE)}]}  # fmt: skip
    (tmp_path / f"{HOSTILE[0]}.json").write_text(json.dumps(document))
    with served(tmp_path) as address:
        page = open_ui(address, width=width)
        is_read(page, len(HOSTILE) + 2)
        page.locator(".doc summary").click()
        for by in ("environment", "policy", "prefix"):
            page.get_by_label("Group by").select_option(by)
            in_address(page, f"by={by}")
            assert overflow(page) == 0
        for box in page.locator("[data-run]").all():
            box.check()
        page.get_by_role("link", name="Compare", exact=True).click()
        page.locator(".plot").first.wait_for()
        settled(page)
        assert page.locator("main").inner_text().startswith(f"{len(HOSTILE) + 2} runs compared")
        assert page.locator(".notice").filter(has_text="Not in this folder").count() == 0
        assert overflow(page) == 0
        page.go_back()
        is_read(page, len(HOSTILE) + 2)
        for number in range(len(HOSTILE) + 2):
            page.locator(".runs-table .taskcell a").nth(number).click()
            page.locator("main.run").wait_for()
            settled(page)
            assert overflow(page) == 0
            page.go_back()
            is_read(page, len(HOSTILE) + 2)
        assert page.evaluate("window.hit") is None
        assert page.locator("main style, main script, main iframe").count() == 0


def test_page_without_the_key_says_what_to_do(
    folder: Path, browser: "Browser", open_ui: Open
) -> None:
    with served(folder) as address:
        page = browser.new_page()
        page.goto(address.split("?")[0])
        assert "the key is missing" in page.inner_text("body")
        page.close()
        shown = open_ui(address)
        is_read(shown, 4)
        shown.reload()  # the cookie has the key now
        settled(shown)
        is_read(shown, 4)


def test_page_says_that_the_server_is_gone(folder: Path, browser: "Browser") -> None:
    page = browser.new_page()
    with served(folder) as address:
        page.goto(address)
        is_read(page, 4)
    go(page, "#/base")
    assert page.get_by_text("is envkit ui still running?").count() == 1
    page.close()


def test_missing_image_says_so(tmp_path: Path, browser: "Browser") -> None:
    save(grouped_run(groups=1), tmp_path / "run" / FILE_NAME)
    shutil.rmtree(tmp_path / "run" / "images")
    with served(tmp_path) as address:
        page = browser.new_page()
        page.goto(f"{address}#/run/e/1")
        settled(page)
        assert page.get_by_text("the file of this image is missing").count() > 0
        page.close()
