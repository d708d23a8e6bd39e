"""Pages at the edge of what they can show, in a real browser: numbers, texts, lengths, keys."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.marked_runs import grouped_run, marked
from fakes.needs import CHROMIUM
from fakes.served import served
from fakes.trajectories import Context, Reply, build
from fakes.ui_pages import Open, eventually, go, in_address, overflow, until

from envkit.trajectory import Trajectory, save
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer import write_diff

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]

HOME = "#/trajectories%20in%20memory"
PRINT = """() => { window.print = () => {
  window.printed = [...document.querySelectorAll(".conv .lane h2 .n")].map(one => one.textContent);
  dispatchEvent(new Event("afterprint"));
} }"""


def scored(*rewards: float) -> list[Trajectory]:
    return [
        build([Reply(reward=reward)], episode_id=f"e{n}", seed=n, group_id=f"g{n % 2}")
        for n, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize("width", [1400, 390])
def test_rewards_of_any_size_are_shown(width: int, open_file: Open) -> None:
    rewards = (1e308, -1e308, 1.7e308, 1e16, float("nan"), float("inf"))
    page = open_file(scored(*rewards), HOME, width=width)
    assert "The figures leave out 5 rewards" in page.locator(".notes").inner_text()
    for place in ("/episodes", "/episodes?view=list&sort=reward", "/e/1", "/e/5"):
        go(page, HOME + place)
        page.locator("main.ep, main.eps").wait_for()
        assert overflow(page) == 0, place
        assert "NaN" not in page.locator("main").inner_text()
    go(page, f"{HOME}/e/1")
    assert page.locator(".ephead .chip").first.inner_text() == "1.00e+308"


def test_chart_draws_only_values_that_fit_an_axis(tmp_path: Path, open_ui: Open) -> None:
    save(scored(1e308, -1e308, 1.0, 0.0), tmp_path / "run" / FILE_NAME)
    with served(tmp_path) as address:
        page = open_ui(address, "#/?compare=run&of=episodes")
        assert page.locator(".plot").count() == 1
        assert page.locator(".point").count() == 2


def test_text_before_a_letter_that_grows_in_lower_case_is_found(open_file: Open) -> None:
    page = open_file([build([Reply(text="\u0130\u0130 has a needle")])], f"{HOME}/e/1?q=needle")
    assert page.locator(".said mark").all_inner_texts() == ["needle"]
    assert page.locator(".find .count").inner_text() == "1 hit"


def test_address_follows_a_key_that_is_held(open_file: Open) -> None:
    replies = [Reply(observation=Context()) for _ in range(260)]
    page = open_file([build([*replies, Reply()])], f"{HOME}/e/1")
    page.evaluate("""() => { for (let n = 0; n < 250; n += 1)
        dispatchEvent(new KeyboardEvent("keydown", { key: "j" })) }""")
    until(page, "location.hash.endsWith('t=251')")
    page.evaluate("""() => { for (let n = 0; n < 30; n += 1)
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "k", bubbles: true })) }""")
    page.get_by_role("button", name="JSON").click()  # a click has the address of what is shown
    in_address(page, "t=221")


def test_page_that_is_left_keeps_the_new_address(open_file: Open) -> None:
    replies = [Reply(observation=Context()) for _ in range(3)]
    page = open_file([build([*replies, Reply()])], f"{HOME}/e/1")
    page.evaluate(
        """place => {
        location.hash = place;  // the page hears of it in a later task
        dispatchEvent(new KeyboardEvent("keydown", { key: "j" }));
    }""",
        f"{HOME}/episodes",
    )
    until(page, "document.querySelector('main').className === 'eps'")
    assert page.evaluate("location.hash") == f"{HOME}/episodes"


def test_group_with_a_broken_name_opens(open_file: Open) -> None:
    rows = [replace(one, group_id=f"\ud800{one.group_id}") for one in grouped_run(groups=2)]
    page = open_file(rows, HOME)
    page.locator(".strip a").first.click()
    until(page, "document.querySelectorAll('tbody .member').length === 4")


def test_kind_of_a_mark_cannot_name_a_property(open_file: Open) -> None:
    marks = [[{"kind": kind, "x": 9, "y": 9} for kind in ("constructor", "__proto__", "toString")]]
    page = open_file([marked(marks, rewards=[1.0])], f"{HOME}/e/1")
    paths = page.locator(".turn .acts path").evaluate_all("all => all.map(one => one.outerHTML)")
    assert len(set(paths)) == 1


def test_tokens_of_a_long_turn_are_shown_in_parts(open_file: Open) -> None:
    ids = tuple(range(1, 12_001))
    page = open_file([build([Reply(ids=ids, logprobs=(-0.5,) * len(ids))])], f"{HOME}/e/1")
    page.get_by_role("button", name="Show 10,000 of 10,800 more tokens").click()
    page.get_by_role("button", name="Show 800 more tokens").click()
    eventually(page.locator(".tokens span").count, 12_000)
    assert page.get_by_role("button", name="more tokens").count() == 0


def test_digest_takes_one_line(open_file: Open) -> None:
    digest = "ab" * 32
    one = build([Reply(info={"state_hash": digest, "score": 1})])
    page = open_file([one], f"{HOME}/e/1")
    shown = page.locator(".side .digest")
    assert (shown.inner_text(), shown.get_attribute("title")) == (digest, digest)
    box = shown.bounding_box()
    assert box is not None
    assert box["height"] < 24


def test_reason_of_an_end_takes_one_line_in_a_comparison(open_file: Open, tmp_path: Path) -> None:
    rows = grouped_run(groups=2)
    page = open_file(write_diff(rows, rows[::-1], tmp_path / "diff.html"))
    heights = page.locator(".ended").evaluate_all(
        "all => all.map(one => one.firstElementChild.getBoundingClientRect().height)"
    )
    assert heights
    assert max(heights) < 28


def walked(tmp_path: Path, count: int) -> Path:
    for run in "ab":
        rows = [
            build([Reply(reward=float(n % 3))], episode_id=f"{run}{n}", seed=n)
            for n in range(count)
        ]
        save(rows, tmp_path / run / FILE_NAME)
    return tmp_path


def test_points_of_a_dense_chart_are_walked_by_keys(tmp_path: Path, open_ui: Open) -> None:
    with served(walked(tmp_path, 100)) as address:
        page = open_ui(address, "#/?compare=a%2Cb&of=episodes&x=number")
        field = page.locator(".field[role=slider]")
        field.focus()
        for key, point in (
            ("ArrowRight", "a, episode 1"), ("ArrowRight", "a, episode 2"),
            ("End", "a, episode 100"), ("ArrowDown", "b, episode 100"),
            ("PageUp", "b, episode 90"), ("Home", "b, episode 1"), ("ArrowUp", "a, episode 1"),
        ):  # fmt: skip
            page.keyboard.press(key)
            read = page.locator(".readout", has_text=f"{point}:")
            read.wait_for()
            assert field.get_attribute("aria-valuetext") == read.inner_text()
        assert page.locator(".spot").is_visible()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        until(page, "location.hash === '#/a/e/2'")


def test_two_episodes_are_searched_saved_and_printed_together(open_file: Open) -> None:
    first, second = (
        build(
            [
                *[Reply(text=f"{name} {n}", observation=Context()) for n in range(3)],
                Reply(text=last),
            ],
            group_id="g", episode_id=name, metadata={"member": n},
        )
        for n, (name, last) in enumerate((("one", "a needle"), ("two", "the Needle")))
    )  # fmt: skip
    page = open_file([first, second], f"{HOME}/e/1?vs=2")
    page.get_by_role("searchbox").fill("needle")
    until(page, "document.querySelector('.find .count')?.textContent === '2 hits'")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.lane mark').length === 2")
    in_address(page, "t=4")
    in_address(page, "q=needle")
    page.reload()
    until(page, "document.querySelectorAll('.lane mark').length === 2")
    with page.expect_download() as found:
        page.get_by_role("button", name="Download").click()
    lines = Path(found.value.path()).read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["one", "two"]
    page.get_by_role("button", name="JSON").click()
    until(page, "document.querySelectorAll('.record').length === 2")
    page.reload()
    until(page, "document.querySelectorAll('.record').length === 2")
    page.get_by_role("button", name="Turns", exact=True).click()
    page.evaluate(PRINT)
    page.get_by_role("button", name="Print").click()
    until(page, "window.printed")
    assert page.evaluate("window.printed") == [*"11223344", "", ""]
    until(page, "document.querySelectorAll('.lane').length === 2")  # and then as before
