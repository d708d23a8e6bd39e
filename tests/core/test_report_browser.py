"""The report in a real browser: found, read, walked through by keys, copied, saved, harmless."""

import io
import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fakes.chromium import Watched, needs_chromium, watched_page
from fakes.trajectories import Context, Reply, build, example, picture
from PIL import Image as PilImage

from envkit.errors import FaultKind
from envkit.viewer import write_diff, write_report
from envkit.trajectory import FaultPlace, FaultRecord, StopReason, Trajectory, save

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, needs_chromium]

Open = Callable[..., "Page"]
ATTACKS = (
    "</script><script>window.hit=1</script>",
    "<!--<script>window.hit=2</script>",
    '<img src=x onerror="window.hit=3">',
    '<a href="javascript:window.hit=4">a</a>',
    '<iframe src="data:text/html,<script>parent.hit=5</script>"></iframe>',
    "<svg onload=window.hit=6>",
    '"><style>body{display:none}</style>',
)
ARABIC, EMOJI = "مرحبا بالعالم", "🙂👩‍👩‍👧‍👦 ok"


@pytest.fixture
def watched() -> Generator[Watched]:
    with watched_page(accept_downloads=True) as found:
        yield found
        assert found.console == []
        assert found.foreign_requests == []


@pytest.fixture
def open_report(watched: Watched, tmp_path: Path) -> Open:
    def open_(rows: Any, place: str = "", **options: Any) -> "Page":
        target = write_report(rows, tmp_path / "report.html", **options)
        watched.page.goto(target.as_uri() + place)
        return watched.page

    return open_


def many(count: int) -> list[Trajectory]:
    """Short episodes, every third of which is solved and every fourth ended by a limit."""
    return [
        build(
            [Reply(reward=float(n % 3 == 0), text=f"reply {n}")],
            episode_id=f"id-{n:05}",
            stop_reason=StopReason.MAX_TURNS if n % 4 == 0 else StopReason.TERMINATED,
            duration_seconds=float(n % 7),
        )
        for n in range(1, count + 1)
    ]


def numbers(page: "Page") -> list[int]:
    """The episodes that the list shows."""
    return [int(text) for text in page.locator("#list tbody a").all_inner_texts()]


def test_list_of_ten_thousand_pages_filters_and_sorts(open_report: Open) -> None:
    page = open_report(many(10_000))
    count = page.locator("output[name=count]")
    assert count.inner_text() == "10,000 of 10,000"
    assert numbers(page) == list(range(1, 51))
    page.get_by_label("last page").click()
    assert numbers(page) == list(range(9951, 10_001))
    page.get_by_label("filter by text").fill("ID-0001")
    assert numbers(page) == list(range(10, 20))
    page.get_by_label("stop reason").select_option("max_turns")
    assert numbers(page) == [12, 16]
    page.get_by_label("filter by text").fill("")
    page.get_by_label("reward", exact=True).select_option("solved")
    assert count.inner_text() == "833 of 10,000"
    page.get_by_label("order").select_option("seconds")
    assert numbers(page)[0] == 48
    page.get_by_label("filter by text").fill("no such thing")
    assert "Nothing fits the filter." in page.locator("#list").inner_text()


def test_list_shows_only_marked_episodes(open_report: Open) -> None:
    page = open_report([*many(2), example(0), example(1, stop_reason=StopReason.ENV_FAULT)])
    page.get_by_label(re.compile("only marked")).check()
    assert numbers(page) == [3, 4]
    assert page.locator("#list tbody tr").nth(1).locator(".badge").all_inner_texts() == [
        "env_fault", "fault", "parse error", "retry",
    ]  # fmt: skip


def test_episode_opens_by_click_and_shows_all_of_it(open_report: Open) -> None:
    page = open_report([example(0), example(1)])
    page.locator("#list tbody tr").nth(1).click()
    page.locator("#episode h1").wait_for()
    assert page.url.endswith("#e2")
    assert page.locator("#episode h1").inner_text() == "Episode 2"
    assert page.locator("#episode .message img").count() == 3
    widths = page.eval_on_selector_all(".message img", "nodes => nodes.map((n) => n.naturalWidth)")
    assert widths == [13, 14, 12]
    causes = page.locator(".events tr").all_inner_texts()
    assert [" ".join(text.split()) for text in causes] == [
        "turn 1 not understood no call found", "turn 2 step retried 2 \u00d7 timeout; recovered",
    ]  # fmt: skip
    call = page.locator(".call").first
    assert "calc_score" in call.inner_text()
    assert call.locator("dd").inner_text() == "4"
    page.get_by_role("button", name="← all episodes").click()
    page.locator("#overview").wait_for()


def test_straggler_is_marked_with_what_it_waited_for(open_report: Open) -> None:
    one = example(0)
    turns = list(one.turns)
    turns[1] = replace(turns[1], env_seconds=9.0)
    page = open_report([replace(one, turns=tuple(turns))], "#e1")
    page.locator(".waterfall").wait_for()
    assert page.locator("span.straggler").all_inner_texts() == ["9.31 s straggler: env"]
    assert page.locator("a.straggler").all_inner_texts() == ["turn 1"]


def test_token_tells_itself_on_hover(open_report: Open) -> None:
    def decode(ids: Sequence[int]) -> str:
        return f"<b>{ids[0]}\n"

    page = open_report([example(0)], "#e1", decode=decode)
    page.locator(".token.p0, .token.p1, .token.p2, .token.p3, .token.p4").first.hover()
    said = page.locator(".under").inner_text()
    assert said == 'id 101 "<b>101\\n", mask 1, log-probability -0.5, p 0.607'
    assert page.locator(".token.image").first.inner_text() == "<b>9000⏎ \u00d74"
    assert page.locator("[class*='token p']").count() == 9


def test_tokens_of_a_fault_train_nothing(open_report: Open) -> None:
    page = open_report([example(0, stop_reason=StopReason.ENV_FAULT)], "#e1")
    page.locator(".ledger").wait_for()
    assert page.locator("[class*='token p']").count() == 0
    assert "Faulted: nothing here is trained." in page.locator(".ledger").inner_text()
    assert "no answer in 5 s" in page.locator(".fault").first.inner_text()


def test_link_leads_to_an_episode_a_turn_and_a_filter(open_report: Open) -> None:
    page = open_report([*many(3), example(0)], "#e4t2?outcome=solved&sort=turns")
    page.locator(".message.target").wait_for()
    assert page.locator(".message.target header").inner_text().startswith("turn 2")
    assert page.locator(".message.target").evaluate("node => node === document.activeElement")
    page.keyboard.press("Escape")
    page.locator("#overview").wait_for()
    assert numbers(page) == [4, 3]
    assert page.url.endswith("#?outcome=solved&sort=turns")
    page.goto(page.url.split("#")[0] + "#e99")
    assert page.locator("#overview").is_visible()
    assert page.locator("#toast").inner_text() == "this file has no episode 99"


def test_keys_walk_the_list_and_the_episodes(open_report: Open) -> None:
    page = open_report([*many(52), example(0)])
    page.keyboard.press("/")
    page.keyboard.type("id-")
    assert page.locator("output[name=count]").inner_text() == "52 of 53"
    assert page.url.endswith("#?text=id-")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    title = page.locator("#episode h1")
    title.wait_for()
    assert title.inner_text() == "Episode 2"
    for key, number in (("j", 3), ("ArrowRight", 4), ("k", 3), ("ArrowLeft", 2)):
        page.keyboard.press(key)
        page.get_by_role("heading", name=f"Episode {number}", exact=True).wait_for()
    page.keyboard.press("n")
    page.locator(".message.target").wait_for()
    assert page.url.endswith("#e2t0?text=id-")
    page.keyboard.press("Escape")
    page.locator("#overview").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "2"
    for _ in range(49):
        page.keyboard.press("j")
    assert numbers(page) == [51, 52]
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog#keys").is_visible()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Episode 51", exact=True).wait_for()
    page.keyboard.press("/")
    page.locator("#overview").wait_for()
    page.wait_for_function("document.activeElement.name === 'text'")


def test_episode_is_copied_as_json(open_report: Open) -> None:
    page = open_report([example(0)], "#e1")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy as JSON").click()
    page.locator("#toast").wait_for()
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied["episode_id"] == "episode-0"
    assert copied["messages"][1]["parts"] == [{"text": "a reply"}]


def test_episode_is_shown_to_copy_where_the_clipboard_is_closed(open_report: Open) -> None:
    page = open_report([example(0)], "#e1")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
    page.locator("#episode h1").wait_for()
    page.keyboard.press("c")
    area = page.locator("dialog#copy textarea")
    area.wait_for()
    selected = area.evaluate("node => node.value.slice(node.selectionStart, node.selectionEnd)")
    assert json.loads(selected)["episode_id"] == "episode-0"


def test_episode_is_saved_as_a_picture(open_report: Open) -> None:
    red = build([Reply(text="the reply")], prompt=Context(images=(_red(),)), episode_id="red")
    page = open_report([red], "#e1")
    page.locator("#episode h1").wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="save as picture").click()
    assert saved.value.suggested_filename == "episode-1.png"
    drawn = PilImage.open(io.BytesIO(Path(saved.value.path()).read_bytes())).convert("RGB")
    assert drawn.width == 1800
    colours = {colour: n for n, colour in drawn.getcolors(1 << 24) or []}
    assert colours[(255, 0, 0)] > 200 * 200  # the picture of the prompt
    assert colours[(255, 255, 255)] > 100_000  # the cards
    assert colours[(27, 35, 48)] > 500  # text


def _red() -> Any:
    from envkit.images import Image

    return Image.from_pil(PilImage.new("RGB", (120, 120), (255, 0, 0)))


def test_diff_is_walked_and_shows_both_sides(watched: Watched, tmp_path: Path) -> None:
    failing = build([Reply(reward=0.0, text="no idea")], seed=0, episode_id="failing")
    before = [example(0, seed=0), example(1, seed=1)]
    target = write_diff(before, [example(1, seed=1), failing], tmp_path / "diff.html")
    page = watched.page
    page.goto(target.as_uri())
    page.get_by_label("what changed", exact=True).select_option("now failed")
    assert numbers(page) == [1]
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator(".columns").first.wait_for()
    assert page.url.endswith("#p1?flip=now+failed")
    left, right = (page.locator(f".columns > div:nth-child({n})") for n in (1, 2))
    assert "reward 1" in left.first.inner_text()
    assert "failing" in right.first.inner_text()
    assert "no idea" in "".join(right.all_inner_texts())
    assert "no idea" not in "".join(left.all_inner_texts())
    assert "B has ended" in "".join(right.all_inner_texts())
    assert page.locator(".ledger").count() == 2
    page.goto(target.as_uri() + "#p2t1")
    page.locator(".message.target").first.wait_for()
    assert page.locator(".message.target").count() == 2
    assert page.locator(".differs").count() == 0


def test_attacks_in_content_are_text(watched: Watched, tmp_path: Path) -> None:
    rows = [
        build(
            [
                Reply(text=text, observation=Context(), observation_text=text, parse_error=text),
                Reply(tool_call={text: text}),
            ],
            episode_id=text,
            group_id=text,
            task={text: text},
            env_id=text,
            metadata={"role": text},
        )
        for text in ATTACKS
    ]
    page = watched.page
    for target in (
        write_report(rows, tmp_path / "a.html", title=ATTACKS[0], decode=lambda ids: ATTACKS[0]),
        write_diff(rows, rows, tmp_path / "b.html", title=ATTACKS[0]),
    ):
        page.goto(target.as_uri())
        for number, text in enumerate(ATTACKS, start=1):
            page.goto(f"{target.as_uri()}#{'e' if target.name == 'a.html' else 'p'}{number}")
            page.get_by_role("heading", name=re.compile(f"^(Episode|Pair) {number}$")).wait_for()
            assert text in page.locator(".message .text").all_inner_texts()
        assert page.evaluate("window.hit") is None
        assert (
            page.locator("iframe, main svg, main style").count()
            == page.locator("figure svg").count()
        )
        assert page.locator("body").is_visible()


def test_other_scripts_and_emoji_are_shown_in_their_direction(open_report: Open) -> None:
    one = build([Reply(text=ARABIC), Reply(text=EMOJI)], task={"q": ARABIC})
    page = open_report([one], "#e1")
    said = page.locator(".message.assistant .text")
    said.first.wait_for()
    assert said.all_inner_texts() == [ARABIC, EMOJI]
    directions = said.evaluate_all("nodes => nodes.map((n) => getComputedStyle(n).direction)")
    assert directions == ["rtl", "ltr"]
    with page.expect_download() as saved:
        page.keyboard.press("s")
    assert Path(saved.value.path()).stat().st_size > 1000


def test_episode_of_two_hundred_turns_opens_fast(open_report: Open) -> None:
    turns = [
        Reply(
            ids=tuple(range(100, 160)),
            logprobs=(-0.1,) * 60,
            observation=Context(),
            text=f"say {n}",
        )
        for n in range(199)
    ]
    page = open_report([build([*turns, Reply(text="the last")])], "#e1t150")
    page.locator(".message.target").wait_for()
    assert "say 150" in page.locator(".message.target").inner_text()
    assert page.locator(".message.assistant").count() == 200
    assert page.locator(".message.target").evaluate(
        "n => Math.abs(n.getBoundingClientRect().top) < 60"
    )
    shown = page.locator(".segment").count()
    assert shown < 400
    page.get_by_role("button", name=re.compile("more segments")).click()
    assert page.locator(".segment").count() > shown
    with page.expect_download() as saved:
        page.keyboard.press("s")
    with PilImage.open(saved.value.path()) as drawn:
        assert drawn.height <= 16_000


def test_run_without_pictures_and_an_episode_without_anything(open_report: Open) -> None:
    fault = FaultRecord(
        where=FaultPlace.RESET, kind=FaultKind.CRASHED, message="it would not start"
    )
    faulted = build([], stop_reason=StopReason.ENV_FAULT, fault=fault)
    empty = replace(faulted, segments=(), messages=())
    page = open_report([build([Reply()]), empty])
    page.goto(page.url + "#e2")
    page.get_by_role("heading", name="Episode 2", exact=True).wait_for()
    text = page.locator("#episode").inner_text()
    assert "it would not start" in text
    assert "No message was recorded." in text
    assert "No tokens were recorded." in text
    assert page.locator("img").count() == 0
    with page.expect_download():
        page.keyboard.press("s")


def test_damaged_and_newer_files_show_what_is_readable(watched: Watched, tmp_path: Path) -> None:
    file = tmp_path / "trajectories.jsonl"
    save([example(n) for n in range(4)], file)
    lines = file.read_text().splitlines()
    lines[1] = lines[1].replace('{"schema":1', '{"schema":99')
    lines[2] = '{"schema": \x00 broken'
    file.write_text("\n".join([*lines[:3], lines[3][:-50]]))
    (tmp_path / "images" / f"{picture(1).sha256}.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    watched.page.goto(write_report(file, tmp_path / "report.html").as_uri())
    said = "\n".join(watched.page.locator(".note").all_inner_texts())
    assert re.search("line 2: the record has schema 99, this envkit reads up to 1", said)
    assert re.search("line 3 is not valid JSON", said)
    assert re.search("line 4 is cut off", said)
    assert "A picture is missing" in said
    assert str(tmp_path) not in said
    assert numbers(watched.page) == [1]
    watched.page.keyboard.press("j")
    watched.page.keyboard.press("Enter")
    watched.page.get_by_text("picture not in this file").first.wait_for()
    assert watched.page.locator(".message img").count() == 2
