"""Oracles: input that solves a scenario through the applications on its desktop.

A plan reads what the checks expect and enters it with the keyboard, window by window from the top:
it does what the top window is needed for, closes it, and goes on with the next.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from envkit_actions.action import Action
from envkit_linux_desktop.tasks import reader, words
from envkit_linux_desktop.tasks.browser_oracle import browse, can_browse, page_of, title_of
from envkit_linux_desktop.tasks.checks import Check, Gone, Kept, Listing, Number, Text
from envkit_linux_desktop.tasks.configuring import Channel
from envkit_linux_desktop.tasks.documents import Document, Paragraph
from envkit_linux_desktop.tasks.files_oracle import file_moves
from envkit_linux_desktop.tasks.moves import Moves, key, name_file, text, wait
from envkit_linux_desktop.tasks.scenario import Scenario
from envkit_linux_desktop.tasks.settings_oracle import DIALOGS, change_settings
from envkit_linux_desktop.tasks.sheets import Cell, Workbook, book_of, parts_of
from envkit_linux_desktop.tasks.shell import Archive
from envkit_linux_desktop.tasks.shell_oracle import commands

_SAVED = 1.5
"""Seconds until LibreOffice has written a file."""


_FOLDERS = frozenset({"Documents", "Downloads", *words.FOLDERS})
"""Titles of the file manager."""
_TERMINALS = frozenset({"", "Terminal"})


class View(Protocol):
    """What an oracle may know about the screen."""

    def titles(self) -> tuple[str, ...]:
        """Return the titles of the windows, the active one last."""
        ...


_TRIES = 5


class NoOracleError(Exception):
    """The scenario has a check that no plan satisfies yet."""


def plan(scenario: Scenario, view: View) -> Moves:
    """Yield the input that solves a scenario.

    Raises:
        NoOracleError: A check is beyond this oracle.
    """
    jobs = [check for check in scenario.checks if _is_open(check, scenario)]
    if _is_for_shell(scenario):
        yield from _run_commands(jobs, scenario.files, view)
        return
    if _is_for_files(scenario):
        yield from _reach(view, _FOLDERS)
        yield from file_moves(scenario.files, scenario.solve())
        return
    page = page_of(scenario)
    yield wait(1.0)  # until windows have their final titles
    for check in unsolved(scenario):
        raise NoOracleError(f"no plan for a {type(check).__name__} of {check.paths}")
    while jobs:
        titles = view.titles()
        if not titles:
            raise NoOracleError(f"no window is left for {jobs[0].paths}")
        is_page = bool(page) and titles[-1].startswith(title_of(page))
        for check in list(jobs):
            if can_browse(check, page):
                moves = browse(check, page) if is_page else None
            else:
                is_there = _window(check, titles[-1])
                moves = _moves(check, scenario.files) if is_there else None
            if moves is not None:
                yield from moves
                jobs.remove(check)
        if jobs:
            yield from _close_top(view)


def _closing_key(title: str) -> Action:
    """Return the keys that close a window without closing other documents of LibreOffice."""
    if title == "LibreOffice":  # its start centre, after the last document
        return key("ctrl", "q")
    return key("ctrl", "w") if "LibreOffice" in title else key("alt", "f4")


def _close_top(view: View) -> Moves:
    """Close the active window.

    Raises:
        NoOracleError: The window stays.
    """
    before = view.titles()
    for _ in range(_TRIES):
        yield _closing_key(before[-1])
        yield wait()
        if view.titles() != before:
            return
    raise NoOracleError(f"{before[-1]!r} does not close")


def unsolved(scenario: Scenario) -> Iterator[Check]:
    """Yield the checks that no plan satisfies."""
    for check in scenario.checks:
        if _is_open(check, scenario) and not _is_planned(check, scenario):
            yield check


def _is_planned(check: Check, scenario: Scenario) -> bool:
    """Return whether some window of the scenario serves a check."""
    if can_browse(check, page_of(scenario)) or _is_for_shell(scenario) or _is_for_files(scenario):
        return True
    programs = {command[0] for command in scenario.launch}
    is_text = isinstance(check, Text | Number)
    return bool(_window(check)) and (not is_text or "mousepad" in programs)


def has_oracle(scenario: Scenario) -> bool:
    """Return whether `plan` can solve a scenario."""
    return next(unsolved(scenario), None) is None


def _is_for_shell(scenario: Scenario) -> bool:
    """Return whether commands in an open terminal solve the task."""
    kinds = {type(check) for check in scenario.checks}
    programs = {command[0] for command in scenario.launch}
    return "xterm" in programs and kinds <= {Gone, Kept, Listing, Text, Number, Archive}


def _is_for_files(scenario: Scenario) -> bool:
    """Return whether moving files in the file manager solves the task."""
    kinds = {type(check) for check in scenario.checks}
    programs = {command[0] for command in scenario.launch}
    return "pcmanfm" in programs and not page_of(scenario) and kinds <= {Gone, Kept, Listing}


def _reach(view: View, names: frozenset[str]) -> Moves:
    """Close windows until one of these is on top.

    Raises:
        NoOracleError: There is none.
    """
    while view.titles()[-1:] and view.titles()[-1] not in names:
        yield from _close_top(view)
    if not view.titles():
        raise NoOracleError(f"no window has one of the titles {sorted(names)}")


def _run_commands(jobs: list[Check], files: Mapping[str, bytes], view: View) -> Moves:
    """Type commands into the terminal."""
    yield from _reach(view, _TERMINALS)
    for command in commands(jobs, files):
        yield text(f"{command}\n")
    yield wait()


def _is_open(check: Check, scenario: Scenario) -> bool:
    """Return whether a check still needs input."""
    before = {path: scenario.files[path] for path in check.paths if path in scenario.files}
    after = dict(before)
    check.apply(after)
    return bool(check.paths) and before != after


def _window(check: Check, title: str | None = None) -> bool | None:
    """Return whether a window with this title serves a check; None if no application does."""
    match check:
        case Text() | Number():
            return title is None or title.endswith("Mousepad")
        case Workbook() if _can_edit(check):
            name = check.path.rpartition("/")[2]
            return title is None or title.startswith(name)
        case Channel() if check.name in DIALOGS:
            return title is None or title == DIALOGS[check.name]
        case Document() if _can_write(check):
            name = check.path.rpartition("/")[2]
            return title is None or title.startswith(name)
        case _:
            return None


def _moves(check: Check, files: Mapping[str, bytes]) -> Moves:
    match check:
        case Text():
            yield from _write_text(check.path, check.text, is_new=check.path not in files)
        case Number():
            yield from _write_text(check.path, f"{check.value:.10g}", is_new=True)
        case Workbook():
            yield from _edit_book(check, files)
        case Document():
            yield from _edit_pages(check)
        case Channel():
            yield from change_settings(check, files)
        case _:
            raise NoOracleError(f"no plan for a {type(check).__name__}")


def _write_text(path: str, content: str, *, is_new: bool) -> Moves:
    """Enter the whole text of a file in Mousepad."""
    if is_new:
        yield key("ctrl", "n")
    else:
        yield key("ctrl", "o")
        yield from name_file(path)
    yield wait()
    yield key("ctrl", "a")
    yield key("delete")
    yield text(content.rstrip("\n"))
    yield key("ctrl", "s")
    if is_new:
        yield from name_file(path)
    yield wait()


# ---- Calc


def _can_edit(check: Workbook) -> bool:
    return set(check.looks) <= {"bold", "italic"} and len(check.book) == 1


def _edit_book(check: Workbook, files: Mapping[str, bytes]) -> Moves:
    """Enter the cells of one sheet that differ."""
    model = reader.read("xlsx", files[check.path])["model"]
    before, after = book_of(model)[0], check.book[0]
    yield wait(1.0)
    yield key("escape")
    for reference in sorted({*before.cells, *after.cells}, key=parts_of):
        old, new = before.cells.get(reference), after.cells.get(reference)
        if old != new:
            yield from _go_to(reference)
            yield from _edit_cell(old, new)
    yield from _save_office()


def _go_to(reference: str) -> Moves:
    """Select a cell by its name in the Name Box."""
    yield key("ctrl", "shift", "t")
    yield wait(0.4)
    yield text(f"{reference}\n")
    yield wait(0.4)


def _edit_cell(old: Cell | None, new: Cell | None) -> Moves:
    if new is None:
        yield key("delete")
        return
    if old is None or (old.value, old.formula) != (new.value, new.formula):
        yield text(new.formula or str(new.value))
        yield key("delete")  # what auto-input has added
        yield key("enter")
        return
    if old.bold != new.bold:
        yield key("ctrl", "b")
    if old.italic != new.italic:
        yield key("ctrl", "i")


def _save_office() -> Moves:
    """Save in the format that the file has."""
    yield key("ctrl", "s")
    yield wait(1.0)
    yield key("enter")  # keep the format
    yield wait(_SAVED)


# ---- Writer

_ALIGN = {"center": "e", "right": "r"}
_MARKS = {"bold": "b", "italic": "i", "underline": "u"}


def _can_write(check: Document) -> bool:
    looks = {"bold", "italic", "underline", "style", "align"}
    return set(check.looks) <= looks and not check.pages.tables


def _edit_pages(check: Document) -> Moves:
    """Type the whole document again, then give paragraphs their styles."""
    yield key("escape")
    yield key("ctrl", "a")
    yield key("delete")
    for number, paragraph in enumerate(check.pages.paragraphs):
        if number:
            yield key("enter")
        yield from _write_spans(paragraph)
    for number, paragraph in enumerate(check.pages.paragraphs):
        chords = _paragraph_keys(paragraph)
        if chords:
            yield key("ctrl", "home")
            for _ in range(number):
                yield key("ctrl", "down")
        for chord in chords:
            yield key("ctrl", chord)
            yield wait(0.2)
    yield from _save_office()


def _paragraph_keys(paragraph: Paragraph) -> list[str]:
    """Return the keys that, with Ctrl, set style and alignment."""
    style = [paragraph.style[-1]] if paragraph.style.startswith("Heading") else []
    return style + [_ALIGN[paragraph.align]] * (paragraph.align in _ALIGN)


def _write_spans(paragraph: Paragraph) -> Moves:
    for span in paragraph.spans:
        marks = [letter for look, letter in _MARKS.items() if getattr(span, look)]
        for letter in marks:
            yield key("ctrl", letter)
        yield text(span.text)
        for letter in marks:
            yield key("ctrl", letter)
