"""The widgets in a real JupyterLab: a browser clicks, a kernel answers."""

from collections.abc import Iterator
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from fakes.needs import CHROMIUM
from fakes.ui_pages import axe_faults

if TYPE_CHECKING:
    from fakes.jupyter_lab import Lab
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.slow,
    CHROMIUM.mark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # playwright's own transport
]
HOSTILE = (
    "<script>window.hit = 1</script>"
    '<img src=x onerror="window.hit = 2">'
    '<a href="javascript:window.hit = 3" onmouseover="window.hit = 4">here</a>'
    '<iframe src="data:text/html,<script>parent.hit = 5</script>"></iframe>'
    "<svg onload=window.hit=6></svg>"
)
RECORD = """
    import asyncio, envkit
    from envkit_notebook import branch, play, show
    from envkit.rollout import ScriptedEngine, play as roll
    from envkit.tokens import load_codec
    from envkit_transformers import builtin_model_dir
    codec = load_codec(builtin_model_dir())
    def recorded(env_id, policy=None):
        env = envkit.make(env_id)
        return roll(env, ScriptedEngine(codec, policy or env.oracle()), codec, seed=7)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Lab]":
    from fakes.jupyter_lab import jupyter_lab  # two seconds of imports

    with jupyter_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


def cells(*sources: str) -> list[str]:
    return [dedent(source).strip() for source in sources]


def count(page: "Page", selector: str, number: int) -> None:
    """Wait until so many elements are there."""
    page.wait_for_function(
        "([selector, number]) => document.querySelectorAll(selector).length === number",
        arg=[selector, number],
    )


def test_episode_is_played_by_clicking(lab: "Lab") -> None:
    page = lab.run("play", cells("from envkit_notebook import play\nplay('canary-v0', seed=7)"))
    page.wait_for_selector(".ek-user img[src^='blob:']")
    page.fill(".ek-box", "?")
    page.click(".ek-send:enabled")
    count(page, ".ek-outcome", 1)
    assert "not understood" in page.inner_text(".ek-outcome")
    page.click(".ek-undo:enabled")
    count(page, ".ek-outcome", 0)
    for turn in range(3):
        page.click(".ek-oracle:enabled")
        page.wait_for_function("document.querySelector('.ek-box').value.length === 4")
        page.press(".ek-box", "Control+Enter")
        count(page, ".ek-outcome", turn + 1)
    assert "reward 1" in page.inner_text(".ek-header")
    assert "the episode is over" in page.inner_text(".ek-composer")
    count(page, ".ek-user img[src^='blob:']", 3)
    page.click(".ek-start:enabled")
    count(page, ".ek-outcome", 0)


def test_buttons_stay_where_they_are_while_a_picture_arrives(lab: "Lab") -> None:
    page = lab.run("still", cells("from envkit_notebook import play\nplay('canary-v0', seed=7)"))
    page.wait_for_selector(".ek-user img[src^='blob:']")
    page.evaluate(
        """() => {
            window.pressed = document.querySelector('.ek-undo');
            window.heights = [];
            const talk = document.querySelector('.ek-talk');
            const note = () => heights.push(talk.scrollHeight);
            new MutationObserver(note).observe(talk, { childList: true });
        }"""
    )
    page.fill(".ek-box", "?")
    page.click(".ek-send:enabled")
    count(page, ".ek-outcome", 1)
    page.wait_for_function(
        "[...document.querySelectorAll('.ek-talk img')].every((image) => image.naturalWidth > 0)"
    )
    drawn = page.evaluate("[heights.at(-1), document.querySelector('.ek-talk').scrollHeight]")
    assert drawn[0] == drawn[1]
    assert page.evaluate("pressed === document.querySelector('.ek-undo')")


def test_click_on_a_screenshot_writes_the_action(lab: "Lab") -> None:
    code = "from envkit_notebook import play\nplay('computer-use-v0', seed=3, level=1)"
    page = lab.run("click", cells(code))
    page.wait_for_selector("img.ek-pointable[src^='blob:']")
    page.wait_for_function("document.querySelector('img.ek-pointable').naturalWidth === 672")
    box = page.locator("img.ek-pointable").bounding_box()
    assert box is not None
    x, y = box["width"] / 4, box["height"] / 2
    page.click("img.ek-pointable", position={"x": x, "y": y})
    page.wait_for_function("document.querySelector('.ek-box').value !== ''")
    assert '"action": "click", "x": 16' in page.input_value(".ek-box")
    page.click(".ek-send:enabled")
    count(page, ".ek-outcome", 1)


def test_foreign_text_is_shown_as_text_and_never_runs(lab: "Lab") -> None:
    record = f"trajectory = await recorded('canary-v0', lambda context: {HOSTILE!r})"
    page = lab.run("hostile", cells(RECORD, f"{record}\nshow(trajectory, codec=codec)"))
    page.wait_for_selector(".ek-mode-show .ek-assistant")
    assert page.inner_text(".ek-assistant .ek-text") == HOSTILE
    page.hover(".ek-assistant .ek-text")
    page.wait_for_timeout(300)
    assert page.evaluate("window.hit") is None
    inside = ".ek-root :is(script, iframe, a, svg, [onerror], [onmouseover])"
    assert page.locator(inside).count() == 0


def test_recorded_episode_is_stepped_through_with_its_tokens(lab: "Lab") -> None:
    code = "show(await recorded('canary-v0'), codec=codec)"
    page = lab.run("show", cells(RECORD, code), height=1300)
    page.wait_for_selector(".ek-mode-show .ek-trained")
    assert "turn 1 of 3" in page.inner_text(".ek-mode-show")
    title = page.get_attribute(".ek-segment .ek-trained", "title") or ""
    assert "log-probability 0" in title
    assert "mask 1" in title
    assert "certificate computed now" in page.inner_text(".ek-proof")
    page.click(".ek-next")
    assert "turn 2 of 3" in page.inner_text(".ek-mode-show")
    page.focus(".ek-mode-show")
    page.keyboard.press("ArrowLeft")
    assert "turn 1 of 3" in page.inner_text(".ek-mode-show")
    assert "<|image_pad|> \N{MULTIPLICATION SIGN}21" in page.inner_text(".ek-tokens >> nth=0")


@pytest.mark.parametrize("width", [1280, 900])
def test_output_is_as_wide_as_its_place(width: int, lab: "Lab") -> None:
    summary = """
        from envkit.metrics import summary_table
        trajectory = await recorded('geo3k-v0')
        summary_table([trajectory] * 40)
    """
    cell = "show([trajectory] * 2, codec=codec)"
    page = lab.run(f"wide{width}", cells(RECORD, summary, cell), width=width)
    page.wait_for_selector(".jp-RenderedHTML th")
    page.click(".ek-run summary")
    page.wait_for_selector(".ek-run table")
    wide = page.evaluate(
        """[...document.querySelectorAll(".jp-OutputArea-output, .jp-OutputArea-output *")]
            .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth)
            .map((one) => `${one.tagName} ${one.className} ${one.scrollWidth}`)"""
    )
    assert wide == []
    assert axe_faults(page, ".ek-root") == []


def test_engine_plays_a_branch_of_the_record(lab: "Lab") -> None:
    code = """
        trajectory = await recorded('canary-v0')
        engine = ScriptedEngine(codec, envkit.make('canary-v0').oracle())
        branch(trajectory, 1, 'WRNG', engine=engine, codec=codec)
    """
    page = lab.run("branch", cells(RECORD, code), width=1400)
    page.wait_for_selector(".ek-column:last-child .ek-outcome >> nth=1")
    left, right = (page.inner_text(f".ek-column >> nth={n}") for n in (0, 1))
    assert "reward 1" in left
    assert "reward 0.67" in right
    assert "WRNG" in right
    page.select_option(".ek-choice", "0")
    page.fill(".ek-edit", "XXXX")
    page.click(".ek-branch:enabled")
    page.wait_for_selector("text=XXXX")
    count(page, ".ek-column:last-child .ek-outcome", 3)


def test_person_plays_a_branch(lab: "Lab") -> None:
    code = "branch(await recorded('canary-v0'), 1, 'WRNG')"
    page = lab.run("hand", cells(RECORD, code), width=1400)
    page.wait_for_selector(".ek-column:last-child .ek-oracle:enabled")
    page.click(".ek-oracle:enabled")
    page.wait_for_function("document.querySelector('.ek-composer .ek-box').value.length === 4")
    page.click(".ek-send:enabled")
    page.wait_for_selector("text=the episode is over")
    assert "reward 0.67" in page.inner_text(".ek-column >> nth=1")


def test_cells_run_while_an_environment_takes_its_time(lab: "Lab") -> None:
    code = """
        import threading, envkit
        from envkit_notebook import play
        gate = threading.Event()
        class SlowEnv(envkit.Env):
            def on_reset(self, task):
                return envkit.Turn("wait")
            def on_turn(self, text):
                gate.wait(120)
                return envkit.Turn("", reward=1.0, done=True)
        widget = play(SlowEnv())
        widget
    """
    page = lab.run("slow", cells(code, "print('begun')"))
    page.wait_for_selector(".ek-send:enabled")
    page.fill(".ek-box", "go")
    page.click(".ek-send")
    page.wait_for_selector("text=working …")
    page.locator(".jp-CodeCell .cm-content").last.fill("print('still', widget.game.turn)")
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector("text=still 0")
    page.locator(".jp-CodeCell .cm-content").last.fill("gate.set()")
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector("text=the episode is over")
