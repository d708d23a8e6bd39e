"""The pages over several runs in a real browser: scales, axes, exports, notes, links, pairs."""

import csv
import io
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from fakes.needs import CHROMIUM
from fakes.served import served
from fakes.trajectories import Reply, build
from fakes.ui_pages import Open, Scheme, eventually, go, in_address, overflow, settled, until
from PIL import Image as PilImage

from envkit.trajectory import REWARD_THRESHOLD, save
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer.folder import NOTES_FILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]

HOSTILE = "<img src=x onerror='window.hit=1'>\u202e</textarea><b>"


def play(
    folder: Path,
    rewards: Sequence[float],
    *,
    env_id: str = "unit-v0",
    seeds: Sequence[int] | None = None,
    threshold: float | None = None,
    settings: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
) -> None:
    """Write a run with one episode per reward."""
    metadata = {} if threshold is None else {REWARD_THRESHOLD: threshold}
    rows = [
        build([Reply(reward=reward)], env_id=env_id, metadata=metadata, episode_id=f"e{n}",
              seed=n if seeds is None else seeds[n])
        for n, reward in enumerate(rewards)
    ]  # fmt: skip
    save(rows, folder / FILE_NAME)
    if settings is not None:
        (folder / "run.json").write_text(json.dumps({"settings": settings}))
    if metrics is not None:
        (folder / "metrics.json").write_text(json.dumps(metrics))


def listed(page: "Page") -> list[str]:
    return page.locator(".runs-table .taskcell a").all_inner_texts()


def is_read(page: "Page", count: int) -> None:
    rows = "document.querySelectorAll('[data-run]').length"
    until(page, f"count => {rows} === count && !document.querySelector('.reading')", count)


def row_of(page: "Page", name: str) -> "Locator":
    link = page.get_by_role("link", name=name, exact=True)
    return page.locator(".runs-table tbody tr").filter(has=link)


def saved(page: "Page", name: str) -> Path:
    """Press an export button and return the file."""
    with page.expect_download() as found:
        page.get_by_role("button", name=name, exact=True).click()
    return Path(found.value.path())


def rows_in(file: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(file.read_text("utf-8"))))


def compare(*names: str, more: str = "") -> str:
    joined = ",".join(quote(name, safe="") for name in names)
    return f"#/?compare={quote(joined, safe='')}{more}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two environments with rewards of different sizes, and the steps of a training run."""
    root = tmp_path_factory.mktemp("runs")
    play(root / "pole-a", [100.0, 200.0], env_id="pole-v0", threshold=475.0)
    play(root / "pole-b", [400.0, 300.0], env_id="pole-v0", threshold=475.0)
    for step in range(5):
        reward = (step % 2 + step) / 8
        play(
            root / "train" / f"step-{10 * step}",
            [reward, reward],
            threshold=0.5,
            settings={"config": {"lr": 0.5 * step, "seed": 7}},
            metrics={"step": 10 * step, "loss": 2.0 - step / 4},
        )
    return root


def test_rewards_are_scaled_per_environment(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address)
        is_read(page, 7)
        ends = {name: row_of(page, name).locator(".ends").inner_text().split() for name in
                ("pole-a", "pole-b", "train/step-0", "train/step-40")}  # fmt: skip
        assert ends["pole-a"] == ends["pole-b"] == ["0", "500"]  # the threshold is on it
        assert ends["train/step-0"] == ends["train/step-40"] == ["0", "1"]
        mid = row_of(page, "pole-a").locator(".mid").get_attribute("x1")
        assert mid is not None
        assert float(mid) == pytest.approx(30)


def test_success_has_its_threshold_beside_it(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address)
        is_read(page, 7)
        assert row_of(page, "pole-a").locator(".c-solved").inner_text() == "0%\nreward ≥ 475"
        assert row_of(page, "train/step-40").locator(".c-solved").inner_text() == (
            "100%\nreward ≥ 0.50"
        )


def test_row_opens_on_a_click_and_its_controls_stay_controls(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address)
        is_read(page, 7)
        row = row_of(page, "pole-a")
        row.locator(".pick").click(position={"x": 3, "y": 3})
        settled(page)
        assert page.evaluate("location.hash") in ("", "#/")
        row.get_by_role("checkbox").check()
        in_address(page, "pick=pole-a")
        row.locator(".c-episodes").dblclick(modifiers=["Alt"])
        settled(page)
        in_address(page, "pick=pole-a")
        cell = row.locator(".c-solved div").bounding_box()
        assert cell is not None
        middle = cell["y"] + cell["height"] / 2
        page.mouse.move(cell["x"] + 2, middle)
        page.mouse.down()
        page.mouse.move(cell["x"] + cell["width"] - 2, middle, steps=4)
        page.mouse.up()  # selects text
        until(page, "getSelection().toString().startsWith('reward')")
        settled(page)
        in_address(page, "pick=pole-a")
        for number in range(2):
            with page.context.expect_page() as opened:
                if number:
                    row.locator(".c-turns").click(button="middle")
                else:
                    row.locator(".c-turns").click(modifiers=["ControlOrMeta"])
            opened.value.locator("main.run").wait_for()
            in_address(opened.value, "#/pole-a")
            opened.value.close()
        in_address(page, "pick=pole-a")
        page.mouse.click(5, 5)
        row.locator(".c-turns").click()
        page.locator("main.run").wait_for()
        in_address(page, "#/pole-a")


def test_runs_of_different_environments_never_share_an_axis(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, compare("pole-a", "pole-b", "train/step-0", "train/step-10"))
        assert page.locator(".panel").count() == 2
        shown = {
            one.locator("figcaption .strong").inner_text(): one.locator(".high").inner_text()
            for one in page.locator(".panel").all()
        }
        assert shown == {"pole-v0": "350.00", "unit-v0": "1.00"}
        assert page.locator(".panel").first.locator(".point").count() == 2
        assert page.get_by_text("Each environment has its own axes.").count() == 1
        means = page.get_by_text(re.compile("pole-a 150.00 over 1 run; .*train .* over 2 runs"))
        assert means.count() == 1


def test_any_metric_is_drawn_against_any_other(folder: Path, open_ui: Open) -> None:
    steps = [f"train/step-{10 * n}" for n in range(5)]
    with served(folder) as address:
        page = open_ui(address, compare(*steps))
        assert page.locator(".axis").inner_text() == "step"
        across = page.get_by_label("X axis")
        page.get_by_label("Y axis").select_option("metric loss")
        across.select_option("setting config.lr")
        eventually(page.locator(".axis").inner_text, "config.lr")
        settled(page)
        assert [one.inner_text() for one in page.locator(".ticks span").all()] == [
            "0", "0.5000", "1", "1.5000", "2"]  # fmt: skip
        labels = [one.get_attribute("aria-label") for one in page.locator(".point").all()]
        assert labels == [f"{name}: {value}" for name, value in zip(
            steps, ("2", "1.7500", "1.5000", "1.2500", "1"), strict=True)]  # fmt: skip
        assert page.locator(".trace").count() == 0  # a setting is no order
        assert page.get_by_role("slider", name="Smoothing").is_disabled()
        in_address(page, "config.lr")
        before = page.evaluate("location.href")
        page.reload()
        settled(page)
        assert page.locator(".axis").inner_text() == "config.lr"
        assert page.evaluate("location.href") == before
        across.select_option("run")
        eventually(page.locator(".ticks span").count, 5)
        across.select_option("elapsed")
        page.get_by_text("No run has both values.").wait_for()
        across.select_option("written")
        page.locator(".point").first.wait_for()
        assert overflow(page) == 0


def test_episodes_of_runs_are_points_and_open(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, compare("pole-a", "pole-b"))
        page.get_by_role("combobox", name="Points").select_option("episodes")
        eventually(page.locator(".axis").all_inner_texts, ["episode"])
        eventually(page.locator(".point").count, 4)
        assert page.locator(".trace").count() == 2
        page.get_by_label("X axis").select_option("reward")
        page.get_by_label("Y axis").select_option("turns")
        eventually(page.locator(".axis").inner_text, "reward")
        in_address(page, "of=episodes")
        settled(page)
        point = page.locator(".point").first
        assert point.get_attribute("aria-label") == ("pole-a, episode 1: Turns 1, Reward 100.00")
        point.focus()
        page.keyboard.press("Enter")
        page.locator("main.ep").wait_for()


def test_one_run_has_a_chart_of_its_episodes(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address)
        is_read(page, 7)
        row_of(page, "pole-a").get_by_role("checkbox").check()
        page.get_by_role("link", name="Chart", exact=True).click()
        eventually(page.locator(".point").count, 2)
        assert page.locator("h1").inner_text() == "pole-a"
        assert page.locator(".axis").inner_text() == "episode"


def test_episodes_of_a_long_run_are_found_with_the_pointer(tmp_path: Path, open_ui: Open) -> None:
    play(tmp_path / "long", [n % 7 / 6 for n in range(400)])
    with served(tmp_path) as address:
        page = open_ui(address, compare("long", more="&of=episodes&x=number&y=reward"))
        assert page.locator(".trace").count() == 1
        assert page.locator(".point").count() == 0
        box = page.locator(".field").bounding_box()
        assert box is not None
        at = box["x"] + 0.04 * box["width"], box["y"] + 0.96 * box["height"]
        page.mouse.move(*at)
        page.locator(".readout", has_text="long, episode 1: Reward 0.00").wait_for()
        page.mouse.down()
        page.mouse.up()
        page.locator("main.ep").wait_for()


def test_smoothing_is_an_average_over_a_faint_raw_line(folder: Path, open_ui: Open) -> None:
    steps = [f"train/step-{10 * n}" for n in range(5)]
    with served(folder) as address:
        page = open_ui(address, compare(*steps))
        assert page.locator(".trace").count() == 1
        assert page.locator(".trace.faint").count() == 0
        slider = page.get_by_role("slider", name="Smoothing")
        slider.focus()
        for _ in range(50):
            page.keyboard.press("ArrowRight")
        page.get_by_text("Exponential moving average, factor 0.50").wait_for()
        assert page.locator(".trace").count() == 2
        assert page.locator(".trace.faint").count() == 1
        in_address(page, "smooth=0.5")  # written soon after the last key
        head, *rows = rows_in(saved(page, "CSV"))
        assert head == ["environment", "series", "point", "Step", "Reward", "smoothed 0.5"]
        raw, soft = [float(row[4]) for row in rows], [float(row[5]) for row in rows]
        assert raw == [0.0, 0.25, 0.25, 0.5, 0.5]
        sums, expected = 0.0, []
        for n, value in enumerate(raw, start=1):
            sums = 0.5 * sums + 0.5 * value
            expected.append(sums / (1 - 0.5**n))
        assert soft == pytest.approx(expected)


def test_chart_is_saved_as_an_image_with_the_lines_of_the_page(folder: Path, open_ui: Open) -> None:
    steps = [f"train/step-{10 * n}" for n in range(5)]
    with served(folder) as address:
        page = open_ui(address, compare(*steps, "pole-a"))
        assert page.locator(".panel").count() == 2
        colour = page.evaluate("getComputedStyle(document.querySelector('.point')).color")
        file = saved(page, "PNG")
    with PilImage.open(file) as image:
        assert image.format == "PNG"
        assert image.size == (2000, 2 * (2 * 380 + 60))
        wanted = tuple(int(part) for part in re.findall(r"\d+", colour)[:3])
        found = image.convert("RGB").getcolors(1 << 24)
    assert found is not None
    counts = {value: n for n, value in found}
    assert counts[wanted] > 200
    assert max(counts, key=lambda value: counts[value]) == (255, 255, 255)


def test_table_is_saved_with_the_shown_columns_and_rows(tmp_path: Path, open_ui: Open) -> None:
    play(tmp_path / "=1+1", [0.5, 1.0], threshold=0.75)
    play(tmp_path / 'a,"b"', [-1.0])
    play(tmp_path / "other", [0.0])
    notes = {"schema": 1, "note": "@SUM(A1)\nsecond line", "tags": ["-1", "x"]}
    (tmp_path / "=1+1" / NOTES_FILE).write_text(json.dumps(notes))
    with served(tmp_path) as address:
        page = open_ui(address, "#/?cols=reward,solved,note&sort=name&dir=up")
        is_read(page, 3)
        page.get_by_role("searchbox").fill("oth")
        is_read(page, 1)
        assert len(rows_in(saved(page, "CSV"))) == 2
        page.get_by_role("searchbox").fill("")
        is_read(page, 3)
        head, *rows = rows_in(saved(page, "CSV"))
    assert head == ["run", "tags", "reward", "reward low", "reward high", "solved", "solved by",
                    "note"]  # fmt: skip
    assert {row[0]: row[1:] for row in rows} == {
        "'=1+1": ["'-1; x", "0.75", "", "", "0.5", "reward ≥ 0.75", "'@SUM(A1)\nsecond line"],
        'a,"b"': ["", "-1", "", "", "", "", ""],
        "other": ["", "0", "", "", "", "", ""],
    }


def test_link_to_the_view_is_copied_and_restores_it(folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        is_read(page, 7)
        page.get_by_role("searchbox").fill("train")
        page.get_by_role("button", name="Reward").click()
        page.get_by_role("checkbox", name="Choose all runs that the table lists").check()
        page.get_by_role("button", name="Copy the address of this view").click()
        page.get_by_text("Copied", exact=True).wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert "key=" not in copied
        before = listed(page)
        other = page.context.new_page()
        other.goto(copied)
        settled(other)
        is_read(other, 5)
        assert listed(other) == before
        assert other.get_by_role("searchbox").input_value() == "train"
        assert other.locator(":checked[data-run]").count() == 5
        other.get_by_role("link", name="Compare", exact=True).click()
        until(other, "document.querySelectorAll('.point').length === 5")


@pytest.mark.parametrize(
    "place",
    [
        "#/?sort=__proto__&dir=sideways&by=constructor&cols=__proto__,toString,reward&tag=%E0%A4",
        "#/?compare=train%252Fstep-0,train%252Fstep-10&x=__proto__&y=constructor&smooth=1e9",
        "#/?compare=train%252Fstep-0&x=metric%20none&y=setting%20none&smooth=NaN&of=nothing",
        "#/?compare=train%252Fstep-0&x=run&of=episodes&smooth=-1",
        f"#/?compare={'x' * 3000}&y=<img src=x onerror=window.hit=1>",
        f"#/?q={'x' * 3000}&pick=<script>&tag=__proto__",
    ],
)
def test_hostile_address_is_ignored(place: str, folder: Path, open_ui: Open) -> None:
    with served(folder) as address:
        page = open_ui(address, place)
        assert page.locator("main.runs").count() == 1
        assert overflow(page) == 0
        assert page.evaluate("window.hit") is None
        if "step-0" in place:
            assert page.locator(".point").count() > 0
            assert page.locator(".trace.faint").count() == 0


def test_notes_and_tags_are_written_filtered_and_removed(tmp_path: Path, open_ui: Open) -> None:
    for name in ("one", "two"):
        play(tmp_path / name, [1.0])
    with served(tmp_path, takes_notes=True) as address:
        page = open_ui(address)
        is_read(page, 2)
        page.get_by_role("button", name="Note on one").click()
        page.get_by_role("textbox", name="Note").fill(HOSTILE)
        page.get_by_label("Tags").fill("paper, <b>,  good  run ")
        page.get_by_role("button", name="Save").click()
        eventually(page.locator(".runtag").all_inner_texts, ["<b>", "good run", "paper"])
        until(page, "document.activeElement.dataset.note === 'one'")
        written = json.loads((tmp_path / "one" / NOTES_FILE).read_text())
        assert (written["note"], written["tags"]) == (HOSTILE, ["<b>", "good run", "paper"])
        page.get_by_role("button", name=re.compile("^paper")).click()
        eventually(lambda: listed(page), ["one"])
        in_address(page, "tag=paper")
        page.reload()
        settled(page)
        is_read(page, 1)
        page.get_by_role("button", name=re.compile("^paper")).click()
        is_read(page, 2)
        page.get_by_role("searchbox").fill("onerror")
        eventually(lambda: listed(page), ["one"])
        assert page.evaluate("window.hit") is None
        page.get_by_role("button", name="Note on one").focus()
        page.keyboard.press("Enter")
        page.get_by_role("textbox", name="Note").fill("")
        page.get_by_label("Tags").fill("")
        page.keyboard.press("Enter")
        until(page, "document.querySelectorAll('.runtag').length === 0")
        assert overflow(page) == 0


def test_notes_are_only_shown_unless_the_server_may_write(tmp_path: Path, open_ui: Open) -> None:
    play(tmp_path / "one", [1.0])
    text = json.dumps({"schema": 1, "note": "kept", "tags": ["a"]})
    (tmp_path / "one" / NOTES_FILE).write_text(text)
    with served(tmp_path) as address:
        page = open_ui(address)
        assert page.locator(".runtag").count() == 1
        assert page.get_by_role("button", name="Note on one").count() == 0
        assert "kept" in row_of(page, "one").inner_text()


def test_two_browsers_lose_no_note(tmp_path: Path, browser: "Browser") -> None:
    play(tmp_path / "one", [1.0])
    with served(tmp_path, takes_notes=True) as address:
        pages = [browser.new_context().new_page() for _ in range(2)]
        for number, page in enumerate(pages):
            page.goto(address)
            settled(page)
            page.get_by_role("button", name="Note on one").click()
            page.get_by_role("textbox", name="Note").fill(f"note {number}")
            page.get_by_label("Tags").fill(f"tag {number}")
        pages[0].get_by_role("button", name="Save").click()
        pages[0].locator(".runtag").wait_for()
        pages[1].get_by_role("button", name="Save").click()
        alert = pages[1].get_by_role("alert")
        alert.get_by_text("note 0").wait_for()
        assert pages[1].get_by_role("textbox", name="Note").input_value() == "note 1"
        file = tmp_path / "one" / NOTES_FILE
        assert json.loads(file.read_text())["note"] == "note 0"
        pages[1].get_by_role("button", name="Save").click()
        until(pages[1], "document.querySelectorAll('.runtag').length === 2")
        assert json.loads(file.read_text()) == {"schema": 1, "note": "note 1",
                                                "tags": ["tag 0", "tag 1"]}  # fmt: skip
        until(pages[0], "document.querySelectorAll('.runtag').length === 2")
        for page in pages:
            page.context.close()


def test_pairs_page_counts_wins_and_links_both_episodes(tmp_path: Path, open_ui: Open) -> None:
    play(tmp_path / "first", [0.0, 1.0, 0.5, 0.5, 0.0, 0.25])
    play(tmp_path / "second", [0.75, 0.5, 0.5, 1.0, 0.25], seeds=[4, 1, 2, 3, 5])
    with served(tmp_path) as address:
        page = open_ui(address, "#/?first=first&second=second")
        figure = page.locator(".fig").filter(has_text="wins, losses, ties")
        assert figure.locator(".value").inner_text() == "2 / 1 / 2"
        mean = page.locator(".fig").filter(has_text="mean reward")
        assert mean.locator(".value").inner_text() == "+0.150"
        assert " to " in mean.locator(".note").inner_text()
        changes = page.locator(".changes li")
        assert changes.locator(".flip").all_inner_texts() == ["+0.75", "\u22120.50", "+0.50"]
        links = [a.get_attribute("href") for a in changes.first.locator("a").all()]
        assert links == ["#/first/e/5", "#/second/e/1", "#/first/e/5?vs=1&in=second"]
        page.get_by_role("button", name="Change", exact=True).click()
        changed = ["\u22120.50", "0", "0", "+0.50", "+0.75"]
        eventually(page.locator("td[data-l=change]").all_inner_texts, changed)
        head, *rows = rows_in(saved(page, "CSV"))
        assert [row[head.index("change")] for row in rows] == ["-0.5", "0", "0", "0.5", "0.75"]
        page.locator("td[data-l=tokens]").last.click()  # a row opens
        until(page, "document.querySelectorAll('.lane').length === 2")
        page.go_back()
        page.locator("main.diff").wait_for()
        settled(page)
        changes.first.get_by_role("link", name="after").click()
        page.locator("main.ep").wait_for()
        in_address(page, "#/second/e/1")


def test_runs_without_common_seeds_say_so(tmp_path: Path, browser: "Browser") -> None:
    play(tmp_path / "first", [1.0, 0.0])
    play(tmp_path / "second", [1.0, 0.0], seeds=[8, 9])
    with served(tmp_path) as address:
        page = browser.new_page()  # its console has the refusal
        page.goto(f"{address}#/?first=first&second=second")
        page.get_by_text("play both with the same --seed").wait_for()
        assert "both play unit-v0, with different seeds" in page.locator("main").inner_text()
        page.close()


def test_values_that_are_no_numbers_and_single_points_are_drawn(
    tmp_path: Path, open_ui: Open
) -> None:
    play(tmp_path / "nan", [float("nan")], metrics={"loss": float("nan"), "step": 1})
    play(tmp_path / "huge", [9e99, 8e99], metrics={"loss": 1e308, "step": 2})
    play(tmp_path / "only", [0.5], metrics={"loss": 0.0, "step": 3}, env_id="other-v0")
    with served(tmp_path) as address:
        page = open_ui(address)
        is_read(page, 3)
        go(page, compare("nan", "huge", "only"))
        assert page.locator(".point").count() == 2
        for place, axis in (
            ("&y=metric%20loss&x=episodes", "episodes"),
            ("&of=episodes", "episode"),
            ("&of=episodes&x=reward&smooth=0.9", "reward"),
        ):
            go(page, compare("nan", "huge", "only", more=place))
            assert set(page.locator(".axis").all_inner_texts()) == {axis}
            where = [one.get_attribute("style") for one in page.locator(".point").all()]
            assert where
            assert not [text for text in where if "NaN" in str(text) or "Infinity" in str(text)]
            saved(page, "PNG")
            assert overflow(page) == 0


def test_run_that_disappears_leaves_the_open_pages(tmp_path: Path, open_ui: Open) -> None:
    for name in ("one", "two", "three"):
        play(tmp_path / name, [1.0, 0.0])
    with served(tmp_path, takes_notes=True) as address:
        page = open_ui(address)
        is_read(page, 3)
        shown = page.context.new_page()
        shown.goto(address.split("?")[0] + compare("one", "two"))
        settled(shown)
        assert shown.locator(".point").count() == 2
        page.get_by_role("button", name="Note on one").click()
        page.get_by_role("textbox", name="Note").fill("too late")
        shutil.rmtree(tmp_path / "one")
        is_read(page, 2)
        shown.get_by_text("Not in this folder: one").wait_for()
        until(shown, "document.querySelectorAll('.point').length === 1")
        assert page.get_by_role("textbox", name="Note").input_value() == "too late"
        shown.close()


def test_thousand_runs_are_listed_in_parts_and_compared(tmp_path: Path, open_ui: Open) -> None:
    play(tmp_path / "run-0", [0.5])
    for number in range(1, 1000):
        shutil.copytree(tmp_path / "run-0", tmp_path / f"run-{number}")
    with served(tmp_path) as address:
        page = open_ui(address, "#/?sort=name&dir=up")
        assert page.locator(".tally").inner_text() == "1,000 runs"
        assert page.locator("[data-run]").count() == 200
        page.get_by_role("button", name="Show more of 1,000").click()
        eventually(page.locator("[data-run]").count, 1000)
        page.get_by_role("checkbox", name="Choose all runs that the table lists").check()
        page.get_by_role("link", name="Compare", exact=True).click()
        page.locator(".panel").wait_for()
        settled(page)
        assert page.locator("h1").inner_text() == "1,000 runs compared"
        assert page.get_by_text("The tables show the first 24 of 1,000 runs.").count() == 1
        facts = page.locator("section").filter(has_text="All metrics")
        assert facts.locator("thead th").count() == 25


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_note_dialog_fits(width: int, scheme: Scheme, tmp_path: Path, open_ui: Open) -> None:
    play(tmp_path / ("W" * 150), [1.0])
    notes = {"schema": 1, "note": "W" * 4000, "tags": ["W" * 40, "\u202ereverse"]}
    (tmp_path / ("W" * 150) / NOTES_FILE).write_text(json.dumps(notes))
    with served(tmp_path, takes_notes=True) as address:
        page = open_ui(address, width=width, scheme=scheme)
        assert page.locator(".runtag").count() == 2
        assert overflow(page) == 0
        page.locator("[data-note]").click()
        box = page.locator(".notebox").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        page.keyboard.press("Escape")
        page.locator(".notebox[open]").wait_for(state="detached")
