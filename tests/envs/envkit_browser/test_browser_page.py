"""A page of a real browser: input of every kind, screenshots, its clock and its seeds."""

import io
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fakes.browsers import open_page, running_pool
from fakes.needs import BROWSER
from fakes.processes import run_python
from PIL import Image as PilImage

from envkit.errors import RefusedError
from envkit_actions import Action, ActionKind, Button
from envkit_browser.driver import BrowserPool, Page, PageEvent, PageInput
from envkit_browser.driver import browser as browser_module
from envkit_browser.driver.process import BrowserProcess

pytestmark = [BROWSER.mark, pytest.mark.asyncio(loop_scope="module")]

LOGGER = """<body style="margin:0;width:400px;height:900px">
<textarea id="t" style="position:absolute;left:0;top:0;width:200px;height:60px;margin:0"></textarea>
<div id="a" draggable="true" style="position:absolute;left:10px;top:100px;width:40px;height:40px;
background:red"></div>
<div id="b" style="position:absolute;left:200px;top:100px;width:80px;height:80px;background:blue">
</div>
<select id="s" style="position:absolute;left:10px;top:200px"><option>one<option>two<option>three
</select>
<script>
log = [];
held = (e) => ["ctrl", "shift", "alt"].filter((k) => e[k + "Key"]).map((k) => k + "+").join("");
for (const type of ["click", "dblclick", "auxclick", "contextmenu", "mousedown", "mouseup"])
  addEventListener(type, (e) =>
    log.push(`${held(e)}${type} ${e.button} ${e.clientX},${e.clientY}`));
addEventListener("keydown", (e) => log.push(`${held(e)}${e.key}${e.repeat ? " again" : ""}`));
addEventListener("wheel", (e) => log.push(`wheel ${e.deltaX},${e.deltaY}`));
moves = 0; addEventListener("mousemove", (e) => moves += 1);
addEventListener("dragstart", (e) => e.dataTransfer.setData("text/plain", "cargo"));
addEventListener("dragover", (e) => e.preventDefault());
addEventListener("drop", (e) =>
  log.push(`drop ${e.dataTransfer.getData("text/plain")} on ${e.target.id}`));
</script>"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with running_pool(recycle_pages=1000, pages_per_browser=100) as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def page(pool: BrowserPool) -> AsyncIterator[Page]:
    page = await open_page(pool, LOGGER)
    yield page
    await page.aclose()


async def did(page: Page, *actions: Action) -> list[str]:
    """What the page saw of actions."""
    page_input = PageInput(page)
    for action in actions:
        await page_input.perform(action)
    return await page.evaluate("log.splice(0)")


def key(*keys: str) -> Action:
    return Action(kind=ActionKind.KEY, keys=keys)


@pytest.mark.parametrize(
    ("action", "seen"),
    [
        (
            Action(kind=ActionKind.CLICK, x=300, y=20),
            ["mousedown 0 300,20", "mouseup 0 300,20", "click 0 300,20"],
        ),
        (
            Action(kind=ActionKind.CLICK, x=300, y=20, button=Button.RIGHT),
            ["mousedown 2 300,20", "contextmenu 2 300,20", "mouseup 2 300,20", "auxclick 2 300,20"],
        ),
        (
            Action(kind=ActionKind.CLICK, x=300, y=20, button=Button.MIDDLE),
            ["mousedown 1 300,20", "mouseup 1 300,20", "auxclick 1 300,20"],
        ),
        (
            Action(kind=ActionKind.CLICK, x=300, y=20, keys=("ctrl", "shift")),
            [
                "ctrl+Control",
                "ctrl+shift+Shift",
                "ctrl+shift+mousedown 0 300,20",
                "ctrl+shift+mouseup 0 300,20",
                "ctrl+shift+click 0 300,20",
            ],
        ),
        (Action(kind=ActionKind.SCROLL, x=300, y=20, dx=0, dy=240), ["wheel 0,240"]),
        (key("alt", "f4"), ["alt+Alt", "alt+F4"]),
        (key("shift", "a"), ["shift+Shift", "shift+A"]),
        (Action(kind=ActionKind.HOLD_KEY, keys=("x",), seconds=0.3), ["x"] + ["x again"] * 3),
        (Action(kind=ActionKind.SCREENSHOT), []),
    ],
    ids=lambda value: value.kind.value if isinstance(value, Action) else "",
)
async def test_page_sees_the_action(page: Page, action: Action, seen: list[str]) -> None:
    assert await did(page, action) == seen


async def test_double_and_triple_clicks_count_up(page: Page) -> None:
    seen = await did(page, Action(kind=ActionKind.DOUBLE_CLICK, x=300, y=20))
    assert [event.split()[0] for event in seen].count("dblclick") == 1
    seen = await did(page, Action(kind=ActionKind.TRIPLE_CLICK, x=300, y=20))
    assert [event.split()[0] for event in seen].count("click") == 3


async def test_relative_places_count_from_the_pointer(page: Page) -> None:
    start = Action(kind=ActionKind.MOVE, x=300, y=20)
    there = Action(kind=ActionKind.DRAG, path=((20, 15),), is_relative=True)

    relative = await did(page, start, there)

    absolute = Action(kind=ActionKind.DRAG, path=((320, 35),))
    assert relative == await did(page, start, absolute)
    assert relative


async def test_triple_click_selects_a_line(page: Page) -> None:
    await page.evaluate("t.value = 'first line\\nsecond'")
    await did(page, Action(kind=ActionKind.TRIPLE_CLICK, x=20, y=10), key("delete"))
    assert (await page.evaluate("t.value")).strip() == "second"


PICKERS = """<body style="margin:0">
<select style="position:absolute;left:0;top:0;width:200px;height:30px">
<option>one<option>two<option>three</select>
<input type="date" value="2020-02-03" style="position:absolute;left:0;top:50px;width:200px">
<input type="color" style="position:absolute;left:0;top:100px;width:200px;height:30px">
<input type="time" value="10:20" style="position:absolute;left:0;top:150px;width:200px">"""


@pytest.mark.parametrize("y", [15, 60, 115, 160])
@pytest.mark.slow
async def test_control_with_a_native_popup_opens_none_and_stays_usable(
    pool: BrowserPool, y: int
) -> None:
    page = await open_page(pool, PICKERS)
    page_input = PageInput(page)
    for x in (20, 190):  # where a picker's sign is, too
        await page_input.perform(Action(kind=ActionKind.CLICK, x=x, y=y))
        for keys in (("space",), ("enter",), ("alt", "down"), ("f4",)):
            await page_input.perform(key(*keys))
        await page_input.perform(Action(kind=ActionKind.DOUBLE_CLICK, x=x, y=y))
        assert await page.screenshot()
    await page.aclose()


async def test_select_takes_the_focus_and_is_changed_by_keys(pool: BrowserPool) -> None:
    page = await open_page(pool, PICKERS)
    page_input = PageInput(page)
    await page_input.perform(Action(kind=ActionKind.CLICK, x=50, y=15))
    before = await page.screenshot()
    await page_input.perform(key("down"))
    await page_input.perform(key("down"))
    assert await page.evaluate("document.querySelector('select').value") == "three"
    assert await page.screenshot() != before
    await page.aclose()


async def test_button_that_is_held_moves_and_lets_go(page: Page) -> None:
    down = Action(kind=ActionKind.MOUSE_DOWN, x=300, y=20)
    seen = await did(
        page, down, Action(kind=ActionKind.MOVE, x=310, y=30), Action(kind=ActionKind.MOUSE_UP)
    )
    assert seen == ["mousedown 0 300,20", "mouseup 0 310,30", "click 0 310,30"]


async def test_drag_follows_its_path(page: Page) -> None:
    path = ((320, 40), (340, 20))
    seen = await did(page, Action(kind=ActionKind.DRAG, x=300, y=20, path=path))
    assert seen == ["mousedown 0 300,20", "mouseup 0 340,20", "click 0 340,20"]
    assert await page.evaluate("moves") >= 10


async def test_native_drag_and_drop_carries_its_data(page: Page) -> None:
    seen = await did(page, Action(kind=ActionKind.DRAG, x=30, y=120, path=((240, 140),)))
    assert "drop cargo on b" in seen


async def test_scroll_moves_the_page(page: Page) -> None:
    await did(page, Action(kind=ActionKind.SCROLL, x=300, y=20, dy=240))
    assert await page.evaluate("scrollY") == 240


async def test_text_is_typed_key_by_key(page: Page) -> None:
    text = "Hello, Wörld! 1+1=2\tx\nünïcode 漢字 🙂"
    await page.evaluate("t.addEventListener('keydown', e => e.key === 'Tab' && e.preventDefault())")
    await did(page, Action(kind=ActionKind.CLICK, x=20, y=20))
    seen = await did(page, Action(kind=ActionKind.TYPE, text=text))
    assert await page.evaluate("t.value") == text.replace("\t", "")
    assert seen[:7] == ["shift+H", "e", "l", "l", "o", ",", " "]


async def test_long_text_is_put_in_at_once(page: Page) -> None:
    text = "0123456789" * 1000
    await did(page, Action(kind=ActionKind.CLICK, x=20, y=20))
    await did(page, Action(kind=ActionKind.TYPE, text=text))
    assert await page.evaluate("t.value") == text


async def test_editing_commands_work(page: Page) -> None:
    await did(page, Action(kind=ActionKind.CLICK, x=20, y=20))
    await did(page, Action(kind=ActionKind.TYPE, text="one two"))
    await did(page, key("ctrl", "a"), key("ctrl", "c"), key("end"), key("ctrl", "v"))
    assert await page.evaluate("t.value") == "one twoone two"
    await did(page, key("shift", "home"), key("ctrl", "x"))
    assert await page.evaluate("t.value") == ""
    await did(page, key("ctrl", "v"), key("ctrl", "z"))
    assert await page.evaluate("t.value") == ""
    await did(page, key("ctrl", "shift", "z"), key("ctrl", "left"), key("backspace"))
    assert await page.evaluate("t.value") == "one twoonetwo"


async def test_clipboard_of_scripts_is_that_of_the_keys(page: Page) -> None:
    await page.evaluate("void navigator.clipboard.writeText('by script')")
    await did(page, Action(kind=ActionKind.CLICK, x=20, y=20), key("ctrl", "v"))
    assert await page.evaluate("t.value") == "by script"
    await page.evaluate("addEventListener('paste', e => e.preventDefault())")
    await did(page, key("ctrl", "v"))
    assert await page.evaluate("t.value") == "by script"


async def test_list_box_is_chosen_by_keys(page: Page) -> None:
    await did(page, Action(kind=ActionKind.CLICK, x=20, y=208), key("down"), key("enter"))
    assert await page.evaluate("s.value") == "two"


async def test_point_outside_is_the_nearest_pixel(page: Page) -> None:
    seen = await did(page, Action(kind=ActionKind.CLICK, x=9999, y=-5))
    assert seen[0] == "mousedown 0 399,0"


async def test_screenshot_has_the_size_and_shows_changes(page: Page) -> None:
    before = await page.screenshot()
    assert PilImage.open(io.BytesIO(before)).size == (400, 300)
    assert await page.screenshot() == before
    await page.evaluate("b.style.background = 'green'")
    changed = PilImage.open(io.BytesIO(await page.screenshot())).convert("RGB")
    assert changed.getpixel((240, 140)) == (0, 128, 0)


async def test_time_stands_still_until_it_passes(pool: BrowserPool) -> None:
    page = await open_page(
        pool, "<script>setTimeout(() => { window.rang = Date.now() }, 5000)</script>"
    )
    begin = await page.evaluate("Date.now()")
    assert await page.evaluate("Date.now()") == begin
    await page.advance(4000)
    assert await page.evaluate("window.rang ?? null") is None
    await PageInput(page).perform(Action(kind=ActionKind.WAIT, seconds=2))
    assert await page.evaluate("rang") - begin == pytest.approx(5000, abs=40)


async def test_chance_follows_the_seed(pool: BrowserPool) -> None:
    draws = "JSON.stringify([Math.random(), Math.random(), crypto.randomUUID()])"
    seen = []
    for seed in (1, 1, 2):
        page = await open_page(pool, "<p>", seed=seed)
        seen.append(await page.evaluate(draws))
    assert seen[0] == seen[1] != seen[2]
    page = await open_page(pool, "<p>", seed=3)
    numbers = await page.evaluate("Array.from({length: 4000}, Math.random)")
    assert 0 <= min(numbers) < 0.01 < 0.99 < max(numbers) < 1
    assert sum(numbers) / 4000 == pytest.approx(0.5, abs=0.02)


async def test_errors_of_a_page_are_counted(pool: BrowserPool) -> None:
    page = await open_page(pool, "<script>console.error(1); console.log(2); nothing.at()</script>")
    counts = page.take_events().counts
    assert counts == {PageEvent.CONSOLE_ERROR: 1, PageEvent.EXCEPTION: 1}


PLAYED = """
import asyncio, hashlib, sys
sys.path[:0] = ["tests"]
from envkit_actions import Action, ActionKind as K
from envkit_browser.driver import PageInput
from fakes.browsers import open_page, running_pool
HTML = '''<body style="margin:0"><style>@keyframes k { to { margin-left: 200px } }
#m { width: 20px; height: 20px; background: teal; animation: k 3s linear infinite }</style>
<input id="i"><button onclick="o.textContent = Math.random() + ' ' + Date.now()">go</button>
<p id="o">0</p><div id="m"></div><p id="r"></p><script>n = 0;
(function tick(t) { r.textContent = ++n + ' ' + t; requestAnimationFrame(tick) })();
setInterval(() => { document.title = performance.now() }, 30)</script>'''
async def main():
    async with running_pool() as pool:
        page = await open_page(pool, HTML, seed=4)
        page_input, digest = PageInput(page), hashlib.sha256()
        for action in (Action(kind=K.CLICK, x=60, y=10), Action(kind=K.TYPE, text="determined"),
                       Action(kind=K.CLICK, x=190, y=12), Action(kind=K.WAIT, seconds=1.5),
                       Action(kind=K.DRAG, x=20, y=10, path=((90, 12),)),
                       Action(kind=K.CLICK, x=190, y=12)):
            await page_input.perform(action)
            digest.update(await page.screenshot())
        print(digest.hexdigest())
asyncio.run(main())
"""


@pytest.mark.slow
async def test_same_seed_and_actions_give_the_same_pixels_in_another_process() -> None:
    runs = [run_python("-c", PLAYED) for _ in range(3)]
    assert len(runs[0]) == 65
    assert runs[0] == runs[1] == runs[2]


async def test_build_that_draws_no_frames_on_request_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = {"--deterministic-mode", "--run-all-compositor-stages-before-draw"}
    kept = tuple(flag for flag in browser_module._FLAGS if flag not in needed)
    assert len(kept) == len(browser_module._FLAGS) - len(needed)
    monkeypatch.setattr(browser_module, "_FLAGS", kept)
    monkeypatch.setattr(BrowserProcess, "has_answered", False)
    async with running_pool() as pool:
        with pytest.raises(RefusedError, match=r"draws no frames .* Install it with:"):
            await open_page(pool, "<p>hello")
