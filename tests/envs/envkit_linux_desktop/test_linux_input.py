"""What a person expects of keys, windows and files on the desktop."""

import time
from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pytest
from docx import Document
from fakes.needs import DESKTOP
from openpyxl import Workbook

from envkit_actions import Action, ActionKind
from envkit_linux_desktop.performing import Performer
from envkit_linux_desktop.session import Session, start_session
from envkit_linux_desktop.tasks.moves import key
from envkit_linux_desktop.tasks.moves import text as type_text

pytestmark = [DESKTOP.mark, pytest.mark.slow]


@pytest.fixture
def session() -> Iterator[Session]:
    with start_session(1280, 800) as session:
        yield session


def perform(session: Session, *actions: Action) -> None:
    performer = Performer(session.screen)
    for action in actions:
        assert performer.perform(action) is None
        session.screen.settle(quiet=0.3, limit=3.0)


def document(name: str) -> bytes:
    file = BytesIO()
    if name.endswith("xlsx"):
        Workbook().save(file)
    elif name.endswith("docx"):
        Document().save(file)
    else:
        file.write(b"<title>page.html</title>")
    return file.getvalue()


def await_title(session: Session, part: str, seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not (found := any(part in title for title in session.titles())):
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return found


def test_a_calculator_receives_each_digit_of_typed_text(session: Session) -> None:
    session.put({"sum.txt": b""})
    session.open(("galculator",))
    perform(session, type_text("5358+6849+1100="), key("ctrl", "c"))
    session.open(("mousepad", "sum.txt"))
    perform(session, key("ctrl", "v"), key("ctrl", "s"))
    assert (session.home.read("sum.txt") or b"").strip() == b"13307"


def test_a_calculator_receives_a_key_that_is_pressed_twice(session: Session) -> None:
    session.put({"sum.txt": b""})
    session.open(("galculator",))
    performer = Performer(session.screen)
    for name in "755":
        performer.perform(key(name))
    perform(session, key("ctrl", "c"))
    session.open(("mousepad", "sum.txt"))
    perform(session, key("ctrl", "v"), key("ctrl", "s"))
    assert (session.home.read("sum.txt") or b"").strip() == b"755"


def test_the_first_key_of_a_session_does_not_change_the_layout(session: Session) -> None:
    from Xlib import XK, X
    from Xlib.ext import xtest

    x = session.screen.x  # openbox loses chords while it reads a changed layout
    session.screen.settle()  # which reads the events so far
    for kind in (X.KeyPress, X.KeyRelease):
        xtest.fake_input(x, kind, x.keysym_to_keycode(XK.XK_Shift_L))
    x.sync()
    time.sleep(0.3)
    events = [x.next_event().type for _ in range(x.pending_events())]
    assert X.MappingNotify not in events


def test_alt_tab_brings_the_other_window_to_the_front(session: Session) -> None:
    session.put({"a.txt": b"", "b.txt": b""})
    session.open(("mousepad", "a.txt"))
    session.open(("mousepad", "b.txt"))
    for name in ("a.txt", "b.txt", "a.txt"):
        perform(session, key("alt", "tab"))
        assert name in session.titles()[-1]
    perform(session, type_text("here"), key("ctrl", "s"))
    assert (session.home.read("a.txt") or b"").strip() == b"here"


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.csv", "a.xlsx", "a.docx", "page.html"])
def test_a_double_click_opens_a_file(session: Session, name: str) -> None:
    session.put({f"Files/{name}": document(name)})
    session.open(("pcmanfm", "Files"))
    perform(session, Action(kind=ActionKind.DOUBLE_CLICK, x=525, y=265))  # its icon
    assert await_title(session, name)


@pytest.mark.parametrize(
    ("program", "name"), [("localc", "a.xlsx"), ("lowriter", "a.docx"), ("chromium", "page.html")]
)
def test_an_opened_document_is_drawn(session: Session, program: str, name: str) -> None:
    session.put({name: document(name)})
    session.open((program, name))
    first = np.asarray(session.shot())
    time.sleep(3.0)
    assert np.mean(np.any(first != np.asarray(session.shot()), axis=-1)) < 0.001
