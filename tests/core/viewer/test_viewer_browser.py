"""The viewer's single file in a real browser: found, read, walked by keys, drawn, harmless."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fakes.marked_runs import CLICK, EVERY_MARK, SIZE, click, grouped_run, marked
from fakes.needs import CHROMIUM
from fakes.trajectories import Context, Reply, build, example
from fakes.ui_pages import Open, Scheme, eventually, go, in_address, overflow, settled, until

from envkit.errors import FaultKind
from envkit.trajectory import REWARD_THRESHOLD, FaultPlace, FaultRecord, StopReason
from envkit.viewer import write_diff, write_report
from envkit.viewer.wording import NOTHING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]

NAME = "trajectories in memory"
HOME = f"#/{NAME}".replace(" ", "%20")
ATTACKS = (
    "</script><script>window.hit=1</script>",
    "<!--<script>window.hit=2</script>",
    '<img src=x onerror="window.hit=3">',
    '<a href="javascript:window.hit=4">a</a>',
    '<iframe src="data:text/html,<script>parent.hit=5</script>"></iframe>',
    "<svg onload=window.hit=6>",
    '"><style>body{display:none}</style>',
    "\u202eesrever\u202c \x00\x1b[31m \u200bzero" + "W" * 400,
    "__proto__",
)


def centre(node: "Locator") -> tuple[float, float]:
    box = node.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def expected(frame: "Locator", x: float, y: float) -> tuple[float, float]:
    """Where a pixel of the image is on the screen."""
    box = frame.locator("img").bounding_box()
    assert box is not None
    return box["x"] + x / SIZE[0] * box["width"], box["y"] + y / SIZE[1] * box["height"]


def tasks(page: "Page") -> list[str]:
    return page.locator("tbody .taskcell .tasktext").all_inner_texts()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 390])
def test_pages_fit_every_width_in_both_schemes(
    width: int, scheme: Scheme, open_file: Open, tmp_path: Path
) -> None:
    rows = [*grouped_run(), marked([EVERY_MARK], rewards=[1.0], group_id="all", seed=9)]
    page = open_file(rows, width=width, scheme=scheme)
    assert overflow(page) == 0
    for place in ("/episodes", "/episodes?view=list", "/e/13", "/e/6?vs=7&t=2"):
        go(page, HOME + place)
        page.locator("main.ep, main.eps").wait_for()
        assert overflow(page) == 0, place
    other = write_diff(rows, grouped_run(groups=2), tmp_path / "diff.html")
    assert overflow(open_file(other, width=width, scheme=scheme)) == 0


def test_episode_shows_task_image_action_and_tokens_without_scrolling(open_file: Open) -> None:
    page = open_file(grouped_run(), f"{HOME}/e/6")
    for selector in ("h1", ".turn.on .frame", ".turn.on .ring", ".side .tokens"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None
        assert box["y"] >= 48
        assert box["y"] + box["height"] <= 900 - 52, selector
    frame = page.locator(".turn.on .frame").bounding_box()
    assert frame is not None
    assert (round(frame["width"]), round(frame["height"])) == SIZE


@pytest.mark.parametrize("width", [1400, 390])
def test_ring_is_drawn_on_the_clicked_pixel(width: int, open_file: Open) -> None:
    page = open_file(grouped_run(), f"{HOME}/e/6", width=width)
    frame = page.locator(".turn .frame").first
    assert centre(frame.locator(".ring")) == pytest.approx(expected(frame, *CLICK), abs=1)
    frame.click()
    light = page.locator("#light .frame")
    for zoom in ("fit", "one", "two"):
        page.locator(f"#light[data-zoom={zoom}]").wait_for()
        found = centre(light.locator(".ring"))
        assert found == pytest.approx(expected(light, *CLICK), abs=1)
        light.evaluate("node => node.click()")
    page.keyboard.press("Escape")
    page.locator("#light[open]").wait_for(state="detached")


def test_marks_of_every_kind_are_drawn_and_said(open_file: Open) -> None:
    page = open_file([marked([EVERY_MARK], rewards=[1.0])], f"{HOME}/e/1")
    frame = page.locator(".turn .frame").first
    assert frame.locator(".ring").count() == 8
    assert frame.locator("path.pen").count() == 1
    assert frame.locator("rect.pen").count() == 1
    assert frame.locator(".ring[data-kind=scroll]").inner_text() == "↓"
    assert frame.locator(".ring.failed").count() == 1
    said = page.locator(".acts li").all_inner_texts()
    assert len(said) == len(EVERY_MARK)
    assert said[0] == "click 40, 30"
    assert said[6] == "type “Quarterly⏎report”"
    assert said[9].endswith("(outside the screen)")
    assert "somersault" in said[-1]
    assert "The model did: click 40, 30" in (frame.get_attribute("aria-label") or "")


def test_mark_on_an_earlier_image_is_drawn_there(open_file: Open) -> None:
    zoom = {"kind": "box", "box": [60, 60, 200, 160], "label": "zoom", "image": 0}
    page = open_file([marked([[click(5, 5)], [zoom]], rewards=[0.0, 0.0])], f"{HOME}/e/1")
    frames = page.locator(".turn").nth(1).locator(".frame")
    assert [frames.nth(n).locator("rect.pen").count() for n in range(2)] == [1, 0]


def test_headers_sort_and_the_address_restores_the_view(open_file: Open) -> None:
    page = open_file(grouped_run(), f"{HOME}/episodes?view=list")
    page.get_by_role("button", name="Turns").click()
    page.get_by_role("button", name="Turns").click()
    page.locator("th[aria-sort=descending]", has_text="Turns").wait_for()
    column = page.locator("td[data-l=turns]")
    turns = [int(text) for text in column.all_inner_texts()]
    assert turns == sorted(turns, reverse=True)
    page.get_by_role("button", name=re.compile("^Not solved")).click()
    page.get_by_role("searchbox").fill("row 1")
    in_address(page, "q=row")
    until(page, "document.querySelectorAll('mark').length > 0")
    settled(page)
    before, address = tasks(page), page.evaluate("location.href")
    page.reload()
    settled(page)
    assert page.locator("mark").count() > 0
    assert tasks(page) == before
    assert page.evaluate("location.href") == address
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    assert page.get_by_role("searchbox").input_value() == "row 1"


def test_search_finds_words_of_replies_and_results_and_says_where(open_file: Open) -> None:
    replies = [
        Reply(text="first", observation=Context(), observation_text="the tool says Oslo"),
        Reply(text="I answer Bergen"),
    ]
    page = open_file([build(replies), *(example(n) for n in range(3))], f"{HOME}/episodes")
    box = page.get_by_role("searchbox")
    for word, where in (("oslo", "seen, turn 2"), ("BERGEN", "reply 2")):
        box.fill(word)
        shown = "document.querySelector('.hit mark')?.textContent.toLowerCase()"
        until(page, f"word => {shown} === word", word.lower())
        eventually(page.locator("tbody tr").count, 1)
        assert page.locator(".hit").inner_text().startswith(where)
    box.fill("nowhere at all")
    page.get_by_text("Nothing matches.").wait_for()


def test_groups_appear_side_by_side_with_their_advantages(open_file: Open) -> None:
    page = open_file(grouped_run(), f"{HOME}/episodes")
    rows = page.locator("tbody tr")
    assert rows.count() == 3
    assert rows.nth(0).locator(".badge").inner_text() == "equal rewards · no gradient"
    assert rows.nth(0).locator(".adv").all_inner_texts() == ["", "", "", ""]
    # Rewards 0, 0, 1, 0: mean 0.25, sample deviation 0.5.
    assert rows.nth(1).locator(".adv").all_inner_texts() == [
        "adv −0.50", "adv −0.50", "adv +1.50", "adv −0.50",  # noqa: RUF001  # a minus sign
    ]  # fmt: skip
    until(page, "[...document.images].every(one => one.naturalWidth === 672)")
    box = page.locator("table").bounding_box()
    assert box is not None
    assert box["y"] - 48 <= 110


def test_ten_thousand_episodes_are_drawn_as_they_are_scrolled_to(open_file: Open) -> None:
    rows = [
        build([Reply(reward=float(n % 3 == 0), text=f"reply {n}")], episode_id=f"id-{n:05}")
        for n in range(1, 10_001)
    ]
    page = open_file(rows, f"{HOME}/episodes")
    rows_of = page.locator("[aria-rowindex] .taskcell")
    rows_of.first.wait_for()
    for key, last in (("End", 10_000), ("Home", 1), ("End", 10_000)):
        page.keyboard.press(key)
        page.locator(f"tbody [aria-rowindex='{last + 1}']").wait_for()
        settled(page)
        assert rows_of.count() < 120
    page.mouse.move(700, 500)
    for _ in range(40):
        page.mouse.wheel(0, -700)
        settled(page)
        assert rows_of.count() < 120
    until(page, f"9000 < {_TOP_ROW} && {_TOP_ROW} < 9990")
    page.get_by_role("searchbox").fill("id-0420")
    until(page, "document.querySelectorAll('tbody tr').length === 10")
    until(page, "document.querySelector('.tally').innerText.includes('10 episodes')")


_TOP_ROW = """Number([...document.querySelectorAll("tr[aria-rowindex]")]
    .find(row => row.getBoundingClientRect().top > 60)?.ariaRowIndex)"""
_DRAWN = """() => {
    const drawn = window.drawn = [0];
    // Counted, not told apart by their times: a browser that is late gives two frames one time.
    requestAnimationFrame(function next() { drawn.push(0); requestAnimationFrame(next); });
    new MutationObserver(changes => {
        drawn[drawn.length - 1] += changes.flatMap(one => [...one.addedNodes])
            .reduce((sum, node) => sum + node.querySelectorAll("[aria-rowindex]").length, 0);
    }).observe(document.querySelector("table.episodes"), { childList: true });
}"""
_FILLED = """() => {
    const top = document.querySelector("thead").getBoundingClientRect().bottom;
    for (let y = Math.max(top, 60) + 5; y < innerHeight - 60; y += 20)
        if (!document.elementFromPoint(700, y)?.closest("tr[aria-rowindex]")) return false;
    return true;
}"""


def test_each_frame_draws_a_few_rows_until_the_screen_is_full(open_file: Open) -> None:
    rows = [build([Reply(text=f"reply {n}")], episode_id=f"id-{n:04}") for n in range(1_000)]
    page = open_file(rows, f"{HOME}/episodes")
    page.locator("tbody [aria-rowindex='2']").wait_for()
    page.evaluate(_DRAWN)
    for y in (9_000, 2_000, 0, 20_000):
        page.evaluate("y => scrollTo(0, y)", y)
        until(page, f"() => scrollY > {y} - 400 && ({_FILLED})()")
    drawn = page.evaluate("drawn")
    assert sum(drawn) >= 40
    assert max(drawn) <= 8


def test_everything_works_by_keyboard(open_file: Open) -> None:
    page = open_file(grouped_run(), HOME)
    page.keyboard.press("/")
    until(page, "document.activeElement?.type === 'search'")
    page.keyboard.type("row 1")
    page.locator(".member").first.wait_for()
    until(page, "document.querySelectorAll('tbody tr').length === 1")
    page.locator(".member").nth(1).focus()
    page.keyboard.press("Enter")
    page.locator("main.ep").wait_for()
    current = page.locator(".turns [aria-current=step] .n")
    for key, turn in (("j", "2"), ("ArrowDown", "3"), ("k", "2"), ("Home", "1"), ("l", "1")):
        page.keyboard.press(key)
        eventually(current.inner_text, turn)
    assert page.locator("#say").inner_text() != ""
    page.keyboard.press("End")
    eventually(page.locator(".film .at").inner_text, "end")
    page.keyboard.press("]")
    page.locator(".switch [aria-current=page]", has_text="3").wait_for()
    page.keyboard.press("c")
    until(page, "document.querySelectorAll('.lane').length === 2")
    assert page.locator(".fork").count() > 0
    page.keyboard.press("c")
    until(page, "document.querySelectorAll('.lane').length === 0")
    page.keyboard.press("z")
    page.locator("#light[open]").wait_for()
    page.keyboard.press("j")
    eventually(page.locator("#light .bar b").inner_text, "Turn 2 of 2")
    page.keyboard.press("Escape")
    page.locator("#light[open]").wait_for(state="detached")
    page.keyboard.press("?")
    page.locator("#help[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("#help[open]").wait_for(state="detached")
    page.keyboard.press("n")
    page.locator(".switch [aria-current=page]", has_text="4").wait_for()
    page.keyboard.press("Escape")
    page.locator("main.eps").wait_for()
    in_address(page, "q=row+1")


def test_tokens_are_a_list_that_arrow_keys_walk(open_file: Open) -> None:
    page = open_file([example(0)], f"{HOME}/e/1", token_text="<b>{}".format)
    box = page.get_by_role("listbox").first
    box.focus()
    page.keyboard.press("ArrowRight")
    chosen = page.locator("[role=option][aria-selected=true]")
    eventually(chosen.inner_text, "<b>102")
    assert page.locator(".read").first.inner_text() == "“<b>102” · id 102 · log p −0.010 · p 0.990"  # noqa: RUF001
    assert page.locator(".turns [aria-current=step] .n").inner_text() == "1"
    page.get_by_text("context tokens before the reply").first.click()
    page.locator(".inspect .fold .tokens span", has_text="\u00d74").first.wait_for()


def test_film_slides_and_plays(open_file: Open) -> None:
    page = open_file(grouped_run(), f"{HOME}/e/6")
    slider = page.get_by_role("slider", name="Turn")
    slider.fill("3")
    eventually(page.locator(".film .at").inner_text, "3 / 4")
    assert (slider.get_attribute("aria-valuetext") or "").startswith("turn 3: click")
    in_address(page, "t=3")
    page.get_by_role("button", name="Play").click()
    until(page, "document.querySelector('.film .at').textContent === 'end'")


def test_faulted_and_broken_episodes_say_so(open_file: Open) -> None:
    fault = FaultRecord(
        where=FaultPlace.RESET, kind=FaultKind.CRASHED, message="it would not start"
    )
    faulted = build([], stop_reason=StopReason.ENV_FAULT, fault=fault)
    empty = replace(faulted, segments=(), messages=())
    page = open_file([build([Reply()]), empty], f"{HOME}/e/2")
    text = page.locator("main").inner_text()
    assert "Fault in reset (crashed): it would not start" in text
    assert "environment fault" in text
    assert page.locator("img").count() == 0


def test_unknown_places_lead_back(open_file: Open) -> None:
    page = open_file([example(0)], "#/nowhere/e/1")
    assert "There is no run named nowhere here." in page.locator("main").inner_text()
    page = open_file([example(0)], f"{HOME}/e/77")
    assert "has no episode 77" in page.locator("main").inner_text()
    page = open_file([example(0)], "#/%E0%A4%A")
    assert "There is no run" in page.locator("main").inner_text()


def test_run_without_a_threshold_shows_no_share_solved(open_file: Open) -> None:
    rows = [replace(one, metadata={"member": one.metadata["member"]}) for one in grouped_run()]
    page = open_file(rows, HOME)
    page.locator(".strip").wait_for()
    assert "no reward threshold is declared" in page.locator("main").inner_text()
    assert page.locator(".strip .col b").all_inner_texts() == [NOTHING] * 3


def test_diff_lists_pairs_and_shows_both_sides(open_file: Open, tmp_path: Path) -> None:
    known: dict[str, Any] = {"metadata": {REWARD_THRESHOLD: 1.0}}
    failing = build([Reply(reward=0.0, text="no idea")], seed=0, episode_id="failing", **known)
    before = [example(0, seed=0, **known), example(1, seed=1, **known)]
    after = [example(1, seed=1, **known), failing]
    page = open_file(write_diff(before, after, tmp_path / "diff.html"))
    page.get_by_role("button", name=re.compile("^now failed")).click()
    eventually(page.locator("tbody tr .taskcell").count, 1)
    page.locator("tbody .taskcell a").click()
    page.locator(".lane").nth(1).wait_for()
    settled(page)
    left, right = page.locator(".lane").all()
    assert "a reply" in left.inner_text()
    assert "no idea" in right.inner_text()
    assert page.locator(".turns .fork").count() == 3
    page.go_back()
    page.locator("main.diff").wait_for()
    settled(page)
    chosen = page.get_by_role("button", name=re.compile("^now failed"))
    assert chosen.get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("width", [1400, 390])
def test_attacks_in_content_are_text(width: int, open_file: Open, tmp_path: Path) -> None:
    rows = [
        replace(
            build(
                [
                    Reply(
                        text=text,
                        observation=Context(),
                        observation_text=text,
                        parse_error=text,
                        tool_call={text: text},
                    ),
                    Reply(tool_call={"name": text, "arguments": {text: text}}),
                ],
                episode_id=text,
                group_id=text,
                task={text: text, "family": text},
                env_id=text,
                metadata={"role": text},
            ),
            engine=text,
        )
        for text in ATTACKS
    ]
    marks = [{"kind": text, "x": 5, "y": 5, "label": text, "text": text} for text in ATTACKS]
    rows.append(marked([marks], rewards=[0.5], task=ATTACKS[0]))
    for target in (
        write_report(rows, tmp_path / "a.html", title=ATTACKS[0], token_text=lambda _: ATTACKS[0]),
        write_diff(rows, rows, tmp_path / "b.html", title=ATTACKS[0]),
    ):
        page = open_file(target, width=width)
        name = page.evaluate(
            "JSON.parse(document.getElementById('index').textContent).runs[0].name"
        )
        for place in ("", "/episodes", "/episodes?q=script", "/e/1?view=json",
                      "/e/2?q=script", *(f"/e/{n}" for n in range(1, 11))):  # fmt: skip
            go(page, f"#/{name}{place}")
            assert page.locator("main.lost").count() == 0, place
            assert overflow(page) == 0, place
        assert page.evaluate("window.hit") is None
        assert page.locator("iframe, main style, main script").count() == 0
        assert page.locator("body").is_visible()


def test_other_scripts_and_emoji_keep_their_direction(open_file: Open) -> None:
    arabic, emoji = "مرحبا بالعالم", "🙂👩‍👩‍👧‍👦 ok"
    page = open_file([build([Reply(text=arabic), Reply(text=emoji)])], f"{HOME}/e/1")
    said = page.locator(".reply .said")
    assert said.all_inner_texts() == [arabic, emoji]
    directions = said.evaluate_all("nodes => nodes.map(n => getComputedStyle(n).direction)")
    assert directions == ["rtl", "ltr"]


def test_long_episode_opens_at_its_turn(open_file: Open) -> None:
    turns = [Reply(observation=Context(), text=f"say {n}") for n in range(199)]
    page = open_file([build([*turns, Reply(text="the last")])], f"{HOME}/e/1?t=150")
    chosen = page.locator(".turn.on")
    assert "say 149" in chosen.inner_text()
    place = "document.querySelector('.turn.on').getBoundingClientRect().top"
    until(page, f"Math.abs({place} - 60) < 40")  # below the bar
