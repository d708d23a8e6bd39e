"""Oracles: input that solves a scenario through the applications on its desktop.

A plan reads what the checks expect and enters it with the keyboard, window by window from the top:
it does the top window's part of the task, closes it, and continues with the next.
"""

import base64
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from envkit_actions.action import Action
from envkit_linux_desktop.tasks import browser_oracle, dialogs_oracle, moves, office_oracle, words
from envkit_linux_desktop.tasks.browsing import Bookmarks
from envkit_linux_desktop.tasks.checks import Check, Gone, Kept, Listing, Number, Text
from envkit_linux_desktop.tasks.configuring import Channel, Keyfile
from envkit_linux_desktop.tasks.documents import Document
from envkit_linux_desktop.tasks.files_oracle import file_moves
from envkit_linux_desktop.tasks.moves import Moves, View, key, text, wait
from envkit_linux_desktop.tasks.office_oracle import write_pages
from envkit_linux_desktop.tasks.scenario import TERMINAL, Scenario
from envkit_linux_desktop.tasks.sheets import Workbook
from envkit_linux_desktop.tasks.shell import Archive

_FOLDERS = frozenset({"Documents", "Downloads", *words.FOLDERS})
"""Titles of the file manager."""
_TERMINALS = ("", "Terminal")
_START = "LibreOffice"
"""Title of its start centre, which is what remains after the last document."""
_TRIES = 3
_LOOKS = 8
"""Looks at the windows until the key that closes one is pressed again."""
_OFFICE = (".xlsx", ".docx")


@dataclass(frozen=True, kw_only=True)
class Work:
    """Input for one window."""

    fits: Callable[[str], bool]
    """Whether a window with this title takes the input."""
    moves: Callable[[View], Moves]


def plan(scenario: Scenario, view: View) -> Moves:
    """Yield the input that solves a scenario.

    Raises:
        NoOracleError: A check is beyond this oracle, or no window serves it.
    """
    works = works_of(scenario)
    yield wait(1.0)  # until windows have their final titles
    while works:
        titles = view.titles()
        if not titles:
            raise moves.NoOracleError(f"no window takes the input for {scenario.goal!r}")
        for work in [work for work in works if work.fits(titles[-1])]:
            yield from work.moves(view)
            works.remove(work)
        if works:
            yield from _close_top(view)


def works_of(scenario: Scenario) -> list[Work]:
    """Return the input that a scenario needs, window by window.

    Raises:
        NoOracleError: No application serves a check.
    """
    checks = [check for check in scenario.checks if _is_open(check, scenario)]
    kinds = {type(check) for check in scenario.checks}
    if TERMINAL in scenario.launch and kinds <= {Gone, Kept, Listing, Text, Number, Archive}:
        return [
            Work(
                fits=_TERMINALS.__contains__, moves=lambda _: _run_commands(checks, scenario.files)
            )
        ]
    works: list[Work] = []
    if any(_is_file_move(check, scenario) for check in checks):
        checks = [check for check in checks if not _is_file_move(check, scenario)]
        works = [Work(fits=_FOLDERS.__contains__, moves=lambda _: _move_files(scenario))]
    return works + [_work(check, scenario) for check in checks]


def _work(check: Check, scenario: Scenario) -> Work:
    """Return the input for one check.

    Raises:
        NoOracleError: No application serves it.
    """
    files, page = scenario.files, browser_oracle.page_of(scenario)
    name, document = check.paths[0].rpartition("/")[2], _exported_document(scenario)
    match check:
        case Text() if document:
            return Work(fits=_begins(document), moves=partial(_export, check))
        case Text() | Kept() | Bookmarks() if browser_oracle.can_browse(check, page):
            title = browser_oracle.title_of(page)
            return Work(fits=_begins(title), moves=lambda _: browser_oracle.browse(check, page))
        case Text() if _has_editor(scenario):
            write = partial(_write_text, check.path, check.text, check.path not in files)
            return Work(fits=_is_editor, moves=write)
        case Number() if _has_editor(scenario):
            write = partial(_write_text, check.path, f"{check.value:.10g}", True)
            return Work(fits=_is_editor, moves=write)
        case Workbook() if office_oracle.can_edit(check):
            return Work(fits=_begins(name), moves=partial(office_oracle.edit_book, check, files))
        case Document():
            return Work(fits=_begins(name), moves=partial(write_pages, check))
        case Channel() if title := dialogs_oracle.DIALOGS.get(check.name):
            return Work(
                fits=title.__eq__, moves=lambda _: dialogs_oracle.change_settings(check, files)
            )
        case Channel():
            edit = partial(dialogs_oracle.edit_channel, check, files)
            return Work(fits=dialogs_oracle.EDITOR.__eq__, moves=edit)
        case Keyfile():
            is_of_files = dialogs_oracle.is_of_files(check)
            change = partial(dialogs_oracle.change_preferences, check, files)
            return Work(fits=_FOLDERS.__contains__ if is_of_files else _is_editor, moves=change)
        case _:
            raise moves.NoOracleError(f"no plan for a {type(check).__name__} of {check.paths}")


def _begins(name: str) -> Callable[[str], bool]:
    return lambda title: title.startswith(name)


def _is_editor(title: str) -> bool:
    return title.endswith("Mousepad")


def _has_editor(scenario: Scenario) -> bool:
    return any(command[0] == "mousepad" for command in scenario.launch)


def _exported_document(scenario: Scenario) -> str:
    """Return the name of the office document that becomes a text file, or ""."""
    if _has_editor(scenario):
        return ""
    names = [command[-1] for command in scenario.launch if command[-1].endswith(_OFFICE)]
    return next((n.removeprefix("Documents/") for n in names if n.startswith("Documents/")), "")


def _export(check: Text, view: View) -> Moves:
    """Save the document in the top window as a text file, after typing it again in Writer."""
    yield from moves.enter_office(view)
    if check.path.endswith(".txt"):
        yield from moves.press(view, "ctrl", "a")
        yield from moves.press(view, "delete")
        yield text(check.text.rstrip("\n"))
        yield wait()
    yield from moves.await_window("Save", view, "ctrl", "shift", "s")
    yield from moves.name_file(check.path)
    for _ in range(2):  # keep the format; accept its options
        yield wait(moves.OFFICE_SAVED)
        yield key("enter")
    yield wait(moves.OFFICE_SAVED)


def _move_files(scenario: Scenario) -> Moves:
    after = dict(scenario.files)
    for check in scenario.checks:
        if _is_file_move(check, scenario):
            check.apply(after)
    yield from file_moves(scenario.files, after)


def _run_commands(checks: list[Check], files: Mapping[str, bytes]) -> Moves:
    """Type commands into the terminal."""
    for command in _commands(checks, files):
        yield text(f"{command}\n")
    yield wait()


def _is_file_move(check: Check, scenario: Scenario) -> bool:
    """Return whether the file manager satisfies a check."""
    programs = {command[0] for command in scenario.launch}
    is_possible = "pcmanfm" in programs and not browser_oracle.page_of(scenario)
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
    raise moves.NoOracleError(f"{before[-1]!r} does not close")


def _is_open(check: Check, scenario: Scenario) -> bool:
    """Return whether a check still needs input."""
    before = {path: scenario.files[path] for path in check.paths if path in scenario.files}
    after = dict(before)
    check.apply(after)
    return bool(check.paths) and before != after


def _write_text(path: str, content: str, is_new: bool, view: View) -> Moves:
    """Enter the whole text of a file in Mousepad, whose title has a star until it is saved."""
    if is_new:
        yield from moves.await_window("Untitled", view, "ctrl", "n")
    else:
        yield from moves.await_window("Open File", view, "ctrl", "o")
        yield from moves.name_file(path)
        yield from moves.await_window(f"~/{path}", view)
    yield key("ctrl", "a")
    yield key("delete")
    yield text(content.rstrip("\n"))
    if is_new:
        yield from moves.await_window("Save As", view, "ctrl", "s")
        yield from moves.name_file(path)
    else:
        yield key("ctrl", "s")
    yield from moves.await_window(f"~/{path}", view)


def _commands(checks: Sequence[Check], files: Mapping[str, bytes]) -> list[str]:
    """Return commands that satisfy checks of files, run in the home folder.

    New contents are put aside first, since a file may have to take the place of another.
    """
    first, then, last = list[str](), list[str](), list[str]()
    for number, check in enumerate(checks):
        aside = f"/tmp/{number}"
        match check:
            case Gone():
                last.append(f"rm -r {shlex.quote(check.path)}")
            case Kept() | Text() | Number() | Archive():
                first.append(f"{_source(check, files)} > {aside}")
                folder = check.path.rpartition("/")[0]
                then.append(f"mkdir -p {shlex.quote(folder)}")
                then.append(f"cp {aside} {shlex.quote(check.path)}")
            case _:
                pass
    return [*first, *then, *last]


def _source(check: Kept | Text | Number | Archive, files: Mapping[str, bytes]) -> str:
    """Return a command that prints the final bytes of a file."""
    if isinstance(check, Archive):
        places = [path for path, data in files.items() if data in check.files.values()]
        return "tar cz " + " ".join(map(shlex.quote, places))
    after: dict[str, bytes] = {}
    check.apply(after)
    data = after[check.path]
    for path, content in files.items():
        if content == data:
            return f"cat {shlex.quote(path)}"
    return f"echo {base64.b64encode(data).decode()} | base64 -d"
