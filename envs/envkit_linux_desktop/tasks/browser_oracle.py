"""The part of the oracle that works on pages with Chromium's keys."""

import re
from collections.abc import Mapping

from envkit_linux_desktop.tasks.browsing import Bookmarks
from envkit_linux_desktop.tasks.checks import Check, Kept, Text
from envkit_linux_desktop.tasks.moves import Moves, key, text, wait
from envkit_linux_desktop.tasks.scenario import Scenario

Fields = Mapping[str, list[str]]
"""Label -> the options of a group of radio buttons, or one value of any other field."""


def page_of(scenario: Scenario) -> str:
    """Return the page that the task is about, or "" if the browser shows none."""
    for command in scenario.launch:
        if command[0] == "chromium" and command[-1].startswith("Documents/"):
            return scenario.files[command[-1]].decode()
    return ""


def title_of(page: str) -> str:
    """Return the title of a page."""
    found = re.search("<title>(.*?)</title>", page)
    return found[1] if found else ""


def can_browse(check: Check, page: str) -> bool:
    """Return whether input on the page satisfies a check."""
    match check:
        case Text():
            return 'id="send"' in page and check.path.startswith("Downloads/")
        case Kept():
            return check.path.startswith("Downloads/") and _name(check.path) in page
        case Bookmarks():
            return all(_name(path) in page for path, _ in check.expected)
        case _:
            return False


def browse(check: Check, page: str) -> Moves:
    """Yield the input on the page that satisfies a check."""
    match check:
        case Text():
            yield from _fill(page, dict(line.split(": ", 1) for line in check.text.splitlines()))
        case Kept():
            yield from _follow(page, check.path)
        case Bookmarks():
            for path, name in check.expected:
                yield from _follow(page, path)
                yield from _bookmark(name)
                yield key("alt", "left")
                yield wait(1.0)
        case _:
            return
    yield wait(1.0)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _enter_page() -> Moves:
    """Put the focus before the first element of the page, by loading it again."""
    yield key("f5")
    yield wait(1.0)


def _follow(page: str, path: str) -> Moves:
    links = re.findall(r'<a href="([^"]*)"', page)
    at = next(n for n, link in enumerate(links) if _name(link) == _name(path))
    yield from _enter_page()
    for _ in range(at + 1):
        yield key("tab")
    yield key("enter")
    yield wait(1.5)


def _bookmark(name: str) -> Moves:
    yield key("ctrl", "d")
    yield wait(1.0)
    yield key("ctrl", "a")
    yield text(name)
    yield key("enter")
    yield wait()


def _fields(page: str) -> Fields:
    fields: dict[str, list[str]] = {}
    for label, value in re.findall(r'data-label="([^"]*)" value="([^"]*)"', page):
        fields.setdefault(label, []).append(value)
    return fields


def _fill(page: str, wanted: Mapping[str, str]) -> Moves:
    """Go through the fields with Tab and press the button after the last."""
    yield from _enter_page()
    for label, options in _fields(page).items():
        yield key("tab")
        if label in wanted and len(options) > 1:
            yield key("space")
            for _ in range(options.index(wanted[label])):
                yield key("down")
        elif label in wanted:
            yield text(wanted[label])
    yield key("tab")
    yield key("enter")
