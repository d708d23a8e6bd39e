"""Oracles: input that solves a scenario through the applications on its desktop.

A plan reads what the checks expect and enters it with the keyboard, window by window from the top:
it does the top window's part of the task, closes it, and continues with the next.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from envkit_actions.action import Action
from envkit_linux_desktop.tasks import words
from envkit_linux_desktop.tasks.browser_oracle import browse, can_browse, page_of, title_of
from envkit_linux_desktop.tasks.calc_oracle import can_edit, edit_book
from envkit_linux_desktop.tasks.checks import Check, Gone, Kept, Listing, Number, Text
from envkit_linux_desktop.tasks.configuring import Channel, Keyfile
from envkit_linux_desktop.tasks.documents import Document
from envkit_linux_desktop.tasks.files_oracle import file_moves
from envkit_linux_desktop.tasks.moves import (
    OFFICE_SAVED,
    Moves,
    NoOracleError,
    View,
    await_window,
    enter_office,
    key,
    name_file,
    press,
    text,
    wait,
)
from envkit_linux_desktop.tasks.preferences_oracle import change_preferences, is_of_files
from envkit_linux_desktop.tasks.properties_oracle import EDITOR, edit_channel
from envkit_linux_desktop.tasks.scenario import TERMINAL, Scenario
from envkit_linux_desktop.tasks.settings_oracle import DIALOGS, change_settings
from envkit_linux_desktop.tasks.sheets import Workbook
from envkit_linux_desktop.tasks.shell import Archive
from envkit_linux_desktop.tasks.shell_oracle import commands
from envkit_linux_desktop.tasks.writer_oracle import write_pages

_FOLDERS = frozenset({"Documents", "Downloads", *words.FOLDERS})
"""Titles of the file manager."""
_TERMINALS = frozenset({"", "Terminal"})


_START = "LibreOffice"
"""Title of its start centre, which is what remains after the last document."""
_TRIES = 3
_LOOKS = 8
"""Looks at the windows until the key that closes one is pressed again."""


_OFFICE = (".xlsx", ".docx")


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Input for one window."""

    fits: Callable[[str], bool]
    """Whether a window with this title takes the input."""
    moves: Callable[[], Moves]


def plan(scenario: Scenario, view: View) -> Moves:
    """Yield the input that solves a scenario.

    Raises:
        NoOracleError: A check is beyond this oracle, or no window serves it.
    """
    for check in unsolved(scenario):
        raise NoOracleError(f"no plan for a {type(check).__name__} of {check.paths}")
    yield wait(1.0)  # until windows have their final titles
    works = _works(scenario, view)
    while works:
        titles = view.titles()
        if not titles:
            raise NoOracleError(f"no window takes the input for {scenario.goal!r}")
        for work in [work for work in works if work.fits(titles[-1])]:
            yield from work.moves()
            works.remove(work)
        if works:
            yield from _close_top(view)


def _works(scenario: Scenario, view: View) -> list[_Work]:
    """Return the input that a scenario needs, window by window."""
    jobs = [check for check in scenario.checks if _is_open(check, scenario)]
    files, page = scenario.files, page_of(scenario)
    if _is_for_shell(scenario):
        return [_Work(fits=_TERMINALS.__contains__, moves=lambda: _run_commands(jobs, files))]
    works: list[_Work] = []
    if any(_is_file_move(check, scenario) for check in jobs):
        jobs = [check for check in jobs if not _is_file_move(check, scenario)]
        works = [_Work(fits=_FOLDERS.__contains__, moves=lambda: _move_files(scenario))]
    return works + [_work(check, scenario, page, view) for check in jobs]


def _work(check: Check, scenario: Scenario, page: str, view: View) -> _Work:
    """Return the input for one check."""
    files, opened = scenario.files, _exported(check, scenario)
    if isinstance(check, Text) and opened:
        return _Work(fits=lambda name: name.startswith(opened), moves=lambda: _export(check, view))
    if can_browse(check, page):
        title = title_of(page)
        return _Work(fits=lambda name: name.startswith(title), moves=lambda: browse(check, page))
    return _Work(
        fits=lambda name: bool(_window(check, name)), moves=lambda: _moves(check, files, view)
    )


def _exported(check: Check, scenario: Scenario) -> str:
    """Return the name of the office document that becomes a text file, or ""."""
    programs = {command[0] for command in scenario.launch}
    if not isinstance(check, Text) or "mousepad" in programs:
        return ""
    names = [command[-1] for command in scenario.launch if command[-1].endswith(_OFFICE)]
    return next((n.removeprefix("Documents/") for n in names if n.startswith("Documents/")), "")


def _export(check: Text, view: View) -> Moves:
    """Save the document in the top window as a text file, after typing it again in Writer."""
    yield from enter_office(view)
    if check.path.endswith(".txt"):
        yield from press(view, "ctrl", "a")
        yield from press(view, "delete")
        yield text(check.text.rstrip("\n"))
        yield wait()
    yield from await_window("Save", view, "ctrl", "shift", "s")
    yield from name_file(check.path)
    for _ in range(2):  # keep the format; accept its options
        yield wait(OFFICE_SAVED)
        yield key("enter")
    yield wait(OFFICE_SAVED)


def _move_files(scenario: Scenario) -> Moves:
    after = dict(scenario.files)
    for check in scenario.checks:
        if _is_file_move(check, scenario):
            check.apply(after)
    yield from file_moves(scenario.files, after)


def _run_commands(jobs: list[Check], files: Mapping[str, bytes]) -> Moves:
    """Type commands into the terminal."""
    for command in commands(jobs, files):
        yield text(f"{command}\n")
    yield wait()


def _is_for_shell(scenario: Scenario) -> bool:
    """Return whether commands in an open terminal solve the task."""
    kinds = {type(check) for check in scenario.checks}
    return TERMINAL in scenario.launch and kinds <= {Gone, Kept, Listing, Text, Number, Archive}


def _is_file_move(check: Check, scenario: Scenario) -> bool:
    """Return whether the file manager satisfies a check."""
    programs = {command[0] for command in scenario.launch}
    is_possible = "pcmanfm" in programs and not page_of(scenario)
    return is_possible and isinstance(check, Gone | Kept)


def _closing_key(title: str) -> Action:
    """Return the keys that close a window without closing other documents of LibreOffice."""
    if title == _START:
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
        for _ in range(_LOOKS):
            yield wait()
            titles = view.titles()
            if len(titles) != len(before) or titles[-1] == _START != before[-1]:
                return  # a mere new title may come from a page that has been loaded
    raise NoOracleError(f"{before[-1]!r} does not close")


def unsolved(scenario: Scenario) -> Iterator[Check]:
    """Yield the checks that no plan satisfies."""
    for check in scenario.checks:
        if _is_open(check, scenario) and not _is_planned(check, scenario):
            yield check


def _is_planned(check: Check, scenario: Scenario) -> bool:
    """Return whether some window of the scenario serves a check."""
    is_done_elsewhere = _is_for_shell(scenario) or _is_file_move(check, scenario)
    if is_done_elsewhere or can_browse(check, page_of(scenario)):
        return True
    programs = {command[0] for command in scenario.launch}
    if isinstance(check, Text | Number) and "mousepad" not in programs:
        return bool(_exported(check, scenario))
    return bool(_window(check))


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
        case Workbook() if can_edit(check):
            name = check.path.rpartition("/")[2]
            return title is None or title.startswith(name)
        case Channel():
            return title is None or title == DIALOGS.get(check.name, EDITOR)
        case Keyfile() if is_of_files(check):
            return title is None or title in _FOLDERS
        case Keyfile():
            return title is None or title.endswith("Mousepad")
        case Document():
            name = check.path.rpartition("/")[2]
            return title is None or title.startswith(name)
        case _:
            return None


def _moves(check: Check, files: Mapping[str, bytes], view: View) -> Moves:
    match check:
        case Text():
            yield from _write_text(check.path, check.text, view, is_new=check.path not in files)
        case Number():
            yield from _write_text(check.path, f"{check.value:.10g}", view, is_new=True)
        case Workbook():
            yield from edit_book(check, files, view)
        case Document():
            yield from write_pages(check, view)
        case Channel() if check.name in DIALOGS:
            yield from change_settings(check, files)
        case Channel():
            yield from edit_channel(check, files, view)
        case Keyfile():
            yield from change_preferences(check, files, view)
        case _:
            raise NoOracleError(f"no plan for a {type(check).__name__}")


def _write_text(path: str, content: str, view: View, *, is_new: bool) -> Moves:
    """Enter the whole text of a file in Mousepad, whose title has a star until it is saved."""
    if is_new:
        yield from await_window("Untitled", view, "ctrl", "n")
    else:
        yield from await_window("Open File", view, "ctrl", "o")
        yield from name_file(path)
        yield from await_window(f"~/{path}", view)
    yield key("ctrl", "a")
    yield key("delete")
    yield text(content.rstrip("\n"))
    if is_new:
        yield from await_window("Save As", view, "ctrl", "s")
        yield from name_file(path)
    else:
        yield key("ctrl", "s")
    yield from await_window(f"~/{path}", view)
