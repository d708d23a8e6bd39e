"""Tokens as text in a real browser, from what a run stored: no model is named."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fakes.needs import CHROMIUM
from fakes.served import served
from fakes.trajectories import Context, Reply, build
from fakes.ui_pages import Open, Scheme, eventually, overflow, settled

from envkit.rollout import vocabulary_file
from envkit.rollout.vocabulary_file import VOCABULARY_FILE, VocabularyWriter
from envkit.trajectory import save
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, CHROMIUM.mark]
pytest_plugins = ["fakes.ui_fixtures"]
PROMPT = {11: "<|user|>", 12: "Say", 13: " hello", 14: "\n"}
REPLY = {101: "Hel", 102: "lo", 103: " \\xe2\\x80", 104: "<|end|>"}
SAID = ["Hel", "lo", " \\xe2\\x80", "<|end|>"]
HOSTILE = (
    '<img src=x onerror="window.hit=1">',
    "</script><script>window.hit=2</script>",
    "\u202eesrever\x1b[31m\u200b",
    "W" * 5_000,
)


def run_of(folder: Path, texts: dict[int, str]) -> Path:
    """Write a run whose one reply has the ids 101 to 104, and the texts of its ids."""
    reply = Reply(ids=(101, 102, 103, 104), logprobs=(-0.5, -0.01, -2.25, 0.0))
    trajectory = build([reply], prompt=Context(text_ids=tuple(PROMPT)))
    save(replace(trajectory, env_id="fake-v0"), folder / FILE_NAME)
    writer = VocabularyWriter(folder / VOCABULARY_FILE, is_new=True)
    writer.token_text = texts.__getitem__
    writer.add(sorted(texts))
    writer.write()
    return folder


def replies(page: "Page") -> list[str]:
    return page.get_by_role("listbox").first.get_by_role("option").all_inner_texts()


def chosen(page: "Page") -> str:
    """Walk to the second token by its keys and return what is said of it."""
    page.get_by_role("listbox").first.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    return page.locator(".read").first.inner_text()


@pytest.mark.parametrize("home", ["server", "file"])
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_tokens_show_the_texts_that_the_run_stored(
    open_ui: Open, tmp_path: Path, home: str, width: int, scheme: Scheme
) -> None:
    run = run_of(tmp_path / "run", PROMPT | REPLY)
    if home == "file":
        check(open_ui(f"{file_of(run)}#/run/e/1", width=width, scheme=scheme))
        return
    with served(tmp_path) as address:
        check(open_ui(address, "#/run/e/1", width=width, scheme=scheme))


def file_of(run: Path) -> str:
    return write_report(run, run / "report.html").as_uri()


def check(page: "Page") -> None:
    assert replies(page) == SAID
    assert chosen(page).startswith("“ \\xe2\\x80” · id 103 · log p")
    page.get_by_text("context tokens before the reply").first.click()
    context = page.locator(".inspect .fold .tokens").get_by_role("option")
    eventually(context.all_inner_texts, ["<|user|>", "Say", " hello", "⏎\n"])
    assert page.locator(".tokensec .note").count() == 0
    assert overflow(page) == 0


def test_texts_that_appear_while_the_page_is_open_are_shown_on_the_next_visit(
    open_ui: Open, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", {})
    with served(tmp_path) as address:
        page = open_ui(address, "#/run/e/1")
        assert [text.strip() for text in replies(page)] == ["101", "102", "103", "104"]
        assert page.locator(".tokensec .note").count() == 0
        run_of(run, PROMPT | REPLY)
        page.reload()
        settled(page)
        assert replies(page) == SAID


def test_page_says_why_some_tokens_are_numbers(
    open_ui: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_file, "MAX_IDS", len(PROMPT) + 2)
    page = open_ui(f"{file_of(run_of(tmp_path / 'run', PROMPT | REPLY))}#/run/e/1")
    assert replies(page) == ["Hel", "lo", "#103", "#104"]
    note = page.locator(".tokensec .note").inner_text()
    assert note.startswith("2 tokens of this run have no stored text")


def test_page_says_that_the_texts_are_damaged(open_ui: Open, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", PROMPT | REPLY)
    (run / VOCABULARY_FILE).write_bytes(b"{")
    with served(tmp_path) as address:
        page = open_ui(address, "#/run/e/1")
        assert [text.strip() for text in replies(page)] == ["101", "102", "103", "104"]
        note = page.locator(".tokensec .note").inner_text()
        assert note == "Tokens are shown as ids: vocabulary.json is damaged."


@pytest.mark.parametrize("width", [1400, 390])
def test_hostile_texts_are_only_text(open_ui: Open, tmp_path: Path, width: int) -> None:
    texts = PROMPT | dict(zip(REPLY, HOSTILE, strict=True))
    run = run_of(tmp_path / "run", texts)
    with served(tmp_path) as address:
        for page in (
            open_ui(address, "#/run/e/1", width=width),
            open_ui(f"{file_of(run)}#/run/e/1", width=width),
        ):
            assert replies(page)[0] == HOSTILE[0]
            chosen(page)
            assert page.evaluate("window.hit") is None
            assert page.locator("main img[src=x], main script").count() == 0
            assert overflow(page) == 0
