"""The part of the oracle that writes documents with Writer's keys."""

from typing import Final

from envkit_linux_desktop.tasks import moves
from envkit_linux_desktop.tasks.documents import Document, Pages, Paragraph
from envkit_linux_desktop.tasks.moves import Moves, View, key, press, text, wait

_ALIGN: Final = {"center": "e", "right": "r"}
_MARKS: Final = {"bold": "b", "italic": "i", "underline": "u"}
_CHARACTER: Final = 5
"""Place of "Character" in the menu "Format"."""


def write_pages(check: Document, view: View) -> Moves:
    """Type the whole document again, then give paragraphs and pages their looks."""
    yield from moves.enter_office(view)
    yield from press(view, "ctrl", "a")
    yield from press(view, "delete")
    for number, paragraph in enumerate(check.pages.paragraphs):
        if number:
            yield key("enter")
        yield from _write_spans(paragraph, view)
    for number, paragraph in enumerate(check.pages.paragraphs):
        yield from _style(number, paragraph, view)
    yield from _set_page(check.pages, view)
    for table in check.pages.tables:
        yield from _insert_table(table, view)
    yield from moves.save_office(view)


def _style(number: int, paragraph: Paragraph, view: View) -> Moves:
    """Give a paragraph its style, alignment and size."""
    chords, size = _paragraph_keys(paragraph), paragraph.spans[0].size
    if chords or size:
        yield key("ctrl", "home")
        for _ in range(number):
            yield key("ctrl", "down")
    for chord in chords:
        yield key("ctrl", chord)
        yield wait(0.2)
    if size:
        yield key("shift", "end")
        yield from moves.choose("o", _CHARACTER, view)
        yield from moves.await_window("Character", view)
        yield key("alt", "z")
        yield key("ctrl", "a")
        yield text(f"{size:g}")
        yield wait(0.5)
        yield key("alt", "o")
        yield wait(1.0)


def _paragraph_keys(paragraph: Paragraph) -> list[str]:
    """Return the keys that, with Ctrl, set style and alignment."""
    style = [paragraph.style[-1]] if paragraph.style.startswith("Heading") else []
    return style + ([_ALIGN[paragraph.align]] if paragraph.align in _ALIGN else [])


def _set_page(pages: Pages, view: View) -> Moves:
    """Turn the page and write into its header and footer."""
    if pages.landscape:
        yield from moves.await_window("Page Style", view, "alt", "shift", "p")
        yield key("ctrl", "pagedown")
        yield wait(0.5)
        yield key("alt", "a")  # landscape
        yield key("enter")
        yield wait(1.0)
    for end in ("header", "footer"):
        content = getattr(pages, end)
        if content:
            yield from _open_end(end, view)
            yield text(content)
            yield wait()


def _open_end(end: str, view: View) -> Moves:
    """Turn on the header or the footer, which puts the cursor there."""
    yield from press(view, "alt", "i")
    yield from press(view, "a")  # Insert > Header and Footer
    if end == "footer":
        yield from press(view, "down")
    for _ in range(2):
        yield from press(view, "enter")


def _insert_table(table: tuple[tuple[str, ...], ...], view: View) -> Moves:
    """Insert a table below the text and fill it."""
    yield key("ctrl", "end")
    yield key("enter")
    yield wait()
    yield from moves.await_window("Insert Table", view, "ctrl", "f12")
    for letter, count in (("c", len(table[0])), ("r", len(table))):
        yield key("alt", letter)
        yield key("ctrl", "a")
        yield text(str(count))
    yield key("enter")
    yield wait(1.0)
    cells = [cell for row in table for cell in row]
    for number, cell in enumerate(cells):
        if number:
            yield key("tab")
        yield text(cell)


def _write_spans(paragraph: Paragraph, view: View) -> Moves:
    for span in paragraph.spans:
        marks = [letter for look, letter in _MARKS.items() if getattr(span, look)]
        yield from _toggle(marks, view)
        yield text(span.text)
        yield from _toggle(marks, view)


def _toggle(marks: list[str], view: View) -> Moves:
    """Turn looks on or off; Writer carries such keys out after text that comes at once."""
    for letter in marks:
        yield wait(0.3)
        yield from press(view, "ctrl", letter)
