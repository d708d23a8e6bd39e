"""The page of one episode in a real browser: places, cuts, checks, JSON, copies, search, print."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fakes.marked_runs import CLICK, click, grouped_run, marked
from fakes.needs import CHROMIUM
from fakes.served import served
from fakes.trajectories import Context, Reply, build, with_sanity
from fakes.ui_pages import Open, eventually, in_address, overflow, settled, until

from envkit.tokens.sanity import SanityStatus
from envkit.trajectory import REWARD_THRESHOLD, StopReason, Trajectory, save
from envkit.trajectory.storage import FILE_NAME

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]
HOME = "#/trajectories%20in%20memory"

CLIPBOARD = """() => {
  const writeText = async text => { window.copied = text; };
  Object.defineProperty(navigator, "clipboard", { value: { writeText } });
}"""
IN_SIGHT = """(() => {
  const { top, bottom } = document.querySelector("mark.now").getBoundingClientRect();
  return top > 0 && bottom < innerHeight;
})()"""
PRINT = """() => {
  window.print = () => {
    const images = [...document.querySelectorAll(".conv img")];
    window.printed = images.map(one => one.complete && one.naturalWidth);
  };
}"""
WIDTH_OF = "n => document.querySelectorAll('.turn')[n].querySelector('img').naturalWidth"
PLATES = "nodes => nodes.map(node => node.textContent)"


def at(place: str) -> str:
    return f"{HOME}/e/{place}"


def long_episode() -> Trajectory:
    """Return an episode whose texts a page shortens, with an action in its second reply."""
    filler = "nothing of interest here " * 120
    turns = [
        Reply(text=f"{filler} needle one", observation=Context(), observation_text="A Needle seen"),
        Reply(text="I look for needles", observation=Context(), observation_text=filler),
        *[Reply(text=f"say {n}", observation=Context()) for n in range(40)],
        Reply(text="the last NEEDLE"),
    ]
    return build(turns)


@pytest.mark.parametrize("width", [1400, 390])
def test_image_shows_places_only_and_the_list_shows_every_word(width: int, open_file: Open) -> None:
    text = "a long text to type " * 12
    marks = [
        [{"kind": "answer", "text": "B7K4"}],
        [click(*CLICK), {"kind": "type", "text": text}, {"kind": "key", "keys": ["ctrl", "s"]}],
    ]
    page = open_file([marked(marks, rewards=[0.0, 1.0])], at("1"), width=width)
    turns = page.locator(".turn")
    assert turns.nth(0).locator(".marks").inner_text() == ""
    assert turns.nth(0).locator(".marks > :not(svg)").count() == 0
    assert turns.nth(0).locator(".acts li").inner_text() == "answer “B7K4”"
    assert turns.nth(1).locator(".marks > :not(svg)").count() == 1
    assert turns.nth(1).locator(".marks").inner_text() == ""
    turns.nth(1).get_by_text("all 240 characters").click()
    eventually(turns.nth(1).locator(".acts pre").inner_text, text)
    turns.nth(1).locator(".frame").click()
    listed = page.locator("#light .foot .acts > li")
    eventually(listed.count, 3)
    assert listed.nth(2).inner_text() == "press ctrl + s"
    stage, foot = (page.locator(f"#light {name}").bounding_box() for name in (".frame", ".foot"))
    assert stage is not None
    assert foot is not None
    assert stage["y"] + stage["height"] <= foot["y"] + 1


def test_numbers_on_the_image_are_those_of_the_list(open_file: Open) -> None:
    wheel = {"kind": "scroll", "x": 500, "y": 100, "dx": 0, "dy": 3}
    close = [click(101, 92), {"kind": "type", "text": "x"}, click(104, 90)]
    page = open_file([marked([[*close, wheel, click(660, 5)]], rewards=[1.0])], at("1"))
    frame = page.locator(".turn .frame").first
    assert frame.locator(".step").evaluate_all(PLATES) == ["1 3", "4", "5"]
    numbers = page.locator(".acts > li").evaluate_all(
        "nodes => nodes.map(node => getComputedStyle(node, '::before').content)"
    )
    assert len(numbers) == 5
    assert all("counter" in one or one.strip('"').isdigit() for one in numbers)
    shown, corner = frame.bounding_box(), frame.locator(".step").last.bounding_box()
    assert shown is not None
    assert corner is not None
    assert corner["x"] + corner["width"] <= shown["x"] + shown["width"]
    assert corner["y"] >= shown["y"]


def test_numbers_go_on_over_the_images_of_a_turn(open_file: Open) -> None:
    zoom = {"kind": "box", "box": [60, 60, 200, 160], "label": "zoom", "image": 0}
    marks = [[click(5, 5)], [zoom, {"kind": "wait", "seconds": 1}, click(90, 90)]]
    page = open_file([marked(marks, rewards=[0.0, 0.0])], at("1"))
    frames = page.locator(".turn").nth(1).locator(".frame")
    assert [frames.nth(n).locator(".step").all_inner_texts() for n in range(2)] == [["1"], ["3"]]
    assert page.locator(".turn").first.locator(".step").count() == 0


def test_kind_of_a_mark_cannot_name_a_style(open_file: Open) -> None:
    marks = [[{"kind": kind, "x": 90, "y": 90} for kind in ("film", "vh", "cut", "card")]]
    page = open_file([marked(marks, rewards=[1.0])], at("1"))
    rings = page.locator(".turn .frame .ring")
    assert rings.count() == 4
    assert {rings.nth(n).get_attribute("class") for n in range(4)} == {"ring"}


def test_cut_replies_are_marked_where_they_end_and_in_the_list(open_file: Open) -> None:
    turns = [
        Reply(text="cut one " * 300, finish_reason="length", reward=0.0, observation=Context()),
        Reply(text="a whole reply", reward=0.0, observation=Context()),
        Reply(text="cut by the limit", finish_reason="length", reward=None),
    ]
    row = build(turns, stop_reason=StopReason.RESPONSE_TOKENS)
    page = open_file([row], at("1"))
    replies = page.locator(".turn .reply")
    assert replies.nth(0).inner_text().endswith("✂ Cut here: max_new_tokens was reached")
    assert "Cut here" not in replies.nth(1).inner_text()
    assert replies.nth(2).inner_text().endswith("✂ Cut here: max_response_tokens was used up")
    items = page.locator(".turns li").all_inner_texts()
    assert ["cut" in one.splitlines()[-1] for one in items[:3]] == [True, False, True]


def test_success_stands_beside_its_threshold(open_file: Open) -> None:
    rows = [
        build([Reply(reward=reward)], metadata=metadata, episode_id=str(n))
        for n, (reward, metadata) in enumerate(
            [(0.75, {REWARD_THRESHOLD: 0.5}), (0.25, {REWARD_THRESHOLD: 0.5}), (1.0, {})]
        )
    ]
    words = [
        "solved: return 0.75 ≥ threshold 0.50",
        "not solved: return 0.25 < threshold 0.50",
        "success is not defined: no reward threshold is declared",
    ]
    for number, said in enumerate(words, start=1):
        page = open_file(rows, at(str(number)))
        assert page.locator(".ephead .flip").inner_text() == said


def test_observations_say_how_their_tokens_compare(open_file: Open) -> None:
    row = build([Reply(observation=Context()) for _ in range(4)] + [Reply()])
    states = (SanityStatus.EQUAL, SanityStatus.DIFFERENT, SanityStatus.UNCHECKED)
    page = open_file([with_sanity(row, *states)], at("1"))
    head = page.locator(".ephead").inner_text()
    assert "observations: 2 checked, 1 of them different, 1 unchecked, 1 not drawn" in head
    cards = page.locator(".turn").all_inner_texts()
    assert "Tokens of the observation" not in cards[1]
    assert "Tokens of the observation: checked, different from the full render" in cards[2]
    assert "Tokens of the observation: unchecked, no comparison was possible" in cards[3]


def test_search_marks_hits_and_enter_walks_through_them(open_file: Open) -> None:
    page = open_file([long_episode()], at("1"))
    page.keyboard.press("/")
    until(page, "document.activeElement.type === 'search'")
    page.keyboard.type("needle")
    count = page.locator(".find output")
    eventually(count.inner_text, "4 hits")
    assert page.locator("main mark").count() == 4
    assert page.locator(".turns [aria-current=step] .n").inner_text() == "1"
    now, current = page.locator("mark.now"), page.locator(".turns [aria-current=step] .n")
    for key, words, turn, hit in (
        ("Enter", "1 of 4", "1", "needle"),
        ("Enter", "2 of 4", "2", "Needle"),
        ("Enter", "3 of 4", "2", "needle"),
        ("Enter", "4 of 4", "43", "NEEDLE"),
        ("Enter", "1 of 4", "1", "needle"),
        ("Shift+Enter", "4 of 4", "43", "NEEDLE"),
    ):
        page.keyboard.press(key)
        eventually(count.inner_text, words)
        assert (current.inner_text(), now.inner_text()) == (turn, hit)
        until(page, IN_SIGHT)
        assert page.locator(".find input").evaluate("one => one.getBoundingClientRect().top") > 0
    page.get_by_role("button", name="Next hit").click()
    eventually(count.inner_text, "1 of 4")
    in_address(page, "q=needle")
    page.reload()
    settled(page)
    assert page.locator("main mark").count() == 4
    before = page.locator(".turn").nth(1).inner_text()
    page.get_by_label("Find in this episode").fill("no such text")
    until(page, "document.querySelector('.find output').textContent === 'no hits'")
    assert page.locator("main mark").count() == 0
    assert page.locator(".turn").nth(1).inner_text() == before


def test_search_opens_the_raw_reply_only_where_nothing_else_has_the_text(open_file: Open) -> None:
    page = open_file([marked([[click(*CLICK)]], rewards=[1.0])], at("1"))
    field = page.get_by_label("Find in this episode")
    field.fill("I go on")
    until(page, "document.querySelectorAll('main mark').length === 1")
    field.fill('"action"')
    until(page, "document.querySelector('.raw mark') !== null")
    field.press("Enter")
    page.locator(".raw mark.now").wait_for()


def test_search_marks_a_bounded_number_of_hits(open_file: Open) -> None:
    page = open_file([build([Reply(text="xy" * 300_000)])], at("1?q=xy"))
    assert page.locator("main mark").count() == 1000
    assert page.locator(".find output").inner_text() == "1,000+ hits"
    page.get_by_label("Find in this episode").fill("")
    until(page, "document.querySelectorAll('main mark').length === 0")
    assert page.locator(".said").evaluate("one => one.childNodes.length") == 1


def test_copy_buttons_give_the_exact_texts(open_file: Open) -> None:
    text = "a reply\r\n\twith \u202econtrols\u202c"
    page = open_file([build([Reply(text=text)])], at("1"))
    page.evaluate(CLIPBOARD)
    page.get_by_role("button", name="Copy reply").click()
    eventually(lambda: page.evaluate("window.copied"), text)
    page.get_by_role("button", name="Copy the address of this view").click()
    until(page, "window.copied === location.href")
    page.get_by_role("button", name="JSON", exact=True).click()
    page.get_by_role("button", name="Copy JSON").click()
    until(page, "window.copied.startsWith('{')")
    assert json.loads(page.evaluate("window.copied"))["sequences"][0]["turns"][0]["reply"] == text


def test_copy_works_where_the_browser_refuses_its_clipboard(open_file: Open) -> None:
    page = open_file([build([Reply(text="a reply")])], at("1"))
    page.evaluate("""() => {
      Object.defineProperty(navigator, "clipboard", { value: undefined });
      document.addEventListener("copy", () => { window.copied = document.activeElement.value; });
    }""")
    page.get_by_role("button", name="Copy reply").click()
    until(page, "window.copied === 'a reply'")


def record_of(page: "Page", press: Callable[[], object], target: Path) -> dict[str, Any]:
    """Return the JSON that a press downloads."""
    with page.expect_download() as found:
        press()
    found.value.save_as(target)
    return json.loads(target.read_text(encoding="utf-8"))


def test_served_record_is_the_line_of_the_file(open_ui: Open, tmp_path: Path) -> None:
    seed = 2**63 + 1
    rows = [replace(one, seed=seed) for one in grouped_run(groups=1)]
    save(rows, tmp_path / "run" / FILE_NAME)
    line = (tmp_path / "run" / FILE_NAME).read_text(encoding="utf-8").splitlines()[1]
    with served(tmp_path) as address:
        page = open_ui(address, "#/run/e/2")
        download = page.get_by_role("button", name="Download")
        assert record_of(page, download.click, tmp_path / "down.json") == json.loads(line)
        page.get_by_role("button", name="JSON", exact=True).click()
        tree = page.locator(".record")
        tree.get_by_text(f'"seed": {seed}').wait_for()
        assert "Line 2 of the run's trajectories.jsonl." in tree.inner_text()
        in_address(page, "view=json")
        assert page.locator(".layout").is_hidden()
        page.keyboard.press("j")  # turns are not shown
        page.keyboard.press("Escape")
        page.locator(".layout").wait_for()
        assert page.locator(".turns [aria-current=step] .n").inner_text() == "1"


def test_large_record_is_folded_and_drawn_in_parts(open_file: Open, tmp_path: Path) -> None:
    ids = tuple(range(40_000))
    row = build([Reply(ids=ids, logprobs=(-0.5,) * len(ids), text="x" * 5000)])
    page = open_file([row], at("1?view=json"))
    tree = page.locator(".record")
    assert tree.locator("li").count() < 60
    fold = tree.locator(":scope > ul > li > details")
    for name in ('"sequences"', "0", '"turns"', "0", '"tokens"', '"ids"'):
        wanted = page.get_by_text(f"{name}:", exact=True)
        fold = fold.locator(":scope > ul > li > details").filter(has=wanted)
        fold.locator("summary").click()
    assert fold.locator("summary").inner_text() == '"ids": [ 40,000 numbers ]'
    eventually(fold.locator("ul > li").count, 101)
    fold.get_by_role("button", name="Show more: 2,400 left").click()
    eventually(fold.locator("ul > li").count, 201)
    whole = tree.get_by_role("button", name="Show all 5,002 characters")
    texts = whole.count()
    whole.first.click()
    eventually(whole.count, texts - 1)
    assert overflow(page) == 0
    press = page.get_by_role("button", name="Download").click
    found = record_of(page, press, tmp_path / "down.json")
    assert len(found["sequences"][0]["turns"][0]["tokens"]["ids"]) == 40_000


def test_print_has_all_turns_with_their_images_and_no_controls(open_file: Open) -> None:
    marks = [[click(9 * n, 90)] for n in range(36)]
    page = open_file([marked(marks, rewards=[0.0] * 36)], at("1"))
    page.evaluate(PRINT)
    page.get_by_role("button", name="Print").click()
    until(page, "window.printed !== undefined")
    assert page.evaluate("window.printed") == [672] * 37
    page.emulate_media(media="print")
    for control in (".top", ".film", ".rail", ".side", ".eptools", ".copy"):
        page.locator(control).first.wait_for(state="hidden")
    assert page.locator(".turn").last.evaluate("one => one.getBoundingClientRect().height") > 300
    styles = page.locator(".shot").evaluate_all(
        "nodes => nodes.map(one => getComputedStyle(one).breakInside)"
    )
    assert set(styles) == {"avoid"}
    assert page.pdf().count(b"/Type /Page\n") >= 18


def test_print_has_long_texts_in_full(open_file: Open) -> None:
    page = open_file([long_episode()], at("1"))
    assert "needle one" not in page.locator(".conv").inner_text()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert "needle one" in page.locator(".conv").inner_text()


def test_every_image_of_a_long_episode_is_shown(open_file: Open) -> None:
    count = 420
    page = open_file([marked([[click(9, 90)]] * count, rewards=[0.0] * count)], at("1"))
    for turn in (20, count):
        image = page.locator(".turn").nth(turn - 1).locator("img")
        image.scroll_into_view_if_needed()
        until(page, f"{WIDTH_OF} === 672", turn - 1)
