"""Unusual and hostile input to a real desktop: a note at most, never an exception."""

import json
import os
import signal
import threading
import time
import urllib.parse
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fakes.desktop_runs import row
from fakes.needs import DESKTOP

from envkit.errors import EnvFault, FaultKind
from envkit_actions import Action, ActionKind
from envkit_linux_desktop import Limits, LinuxDesktopEnv, env, performing
from envkit_linux_desktop.performing import Performer
from envkit_linux_desktop.session import DesktopSession, start_session
from envkit_linux_desktop.tasks.moves import key, wait
from envkit_linux_desktop.tasks.moves import text as type_text
from envkit_sandbox.bubblewrap import first_process
from envkit_sandbox.watchdog import processes

PAGE = b"""<meta charset=utf-8><script>
onhashchange = onload = () => document.title = location.hash || "empty";
</script>"""
DRAW_ON_PIXMAPS = """
import socket, struct, time
x = socket.socket(socket.AF_UNIX)
x.connect("/tmp/.X11-unix/X0")
x.sendall(struct.pack("<BxHHHHxx", 0x6C, 11, 0, 0, 0))
setup = x.recv(8)
while len(setup) < 8 + 4 * struct.unpack("<H", setup[6:8])[0]:
    setup += x.recv(1 << 16)
first, = struct.unpack("<I", setup[12:16])
vendor, = struct.unpack("<H", setup[24:26])
root, = struct.unpack("<I", setup[40 + (vendor + 3 & ~3) + 8 * setup[29] :][:4])
x.sendall(struct.pack("<BxHIII", 55, 4, first, root, 0))
for pixmap in range(first + 1, first + 40):
    x.sendall(struct.pack("<BBHIIHH", 53, 24, 4, pixmap, root, 4096, 4096))
    x.sendall(struct.pack("<BxHIIHHHH", 70, 5, pixmap, first, 0, 0, 4096, 4096))
    time.sleep(0.2)
time.sleep(60)
"""
"""Make the display hold one image of 64 MiB after the other."""
SYMBOLS = "".join(map(chr, range(0xA1, 0x100))) + "‘’“”–—…€™≈≠≤≥→←∞√日本語🙂"  # noqa: RUF001
EFFECTS = {
    "alt f4": ["alt", "f4"],
    "alt f2": ["alt", "f2"],
    "terminal": ["ctrl", "alt", "t"],
    "menu": ["meta"],
    "end the server": ["ctrl", "alt", "backspace"],
    "console": ["ctrl", "alt", "f1"],
    "help": ["f1"],
    "full screen": ["f11"],
    "emoji": ["🙂"],
}


@pytest.fixture
def playing() -> Iterator[LinuxDesktopEnv]:
    desktop = LinuxDesktopEnv(ready=0)
    desktop.reset(seed=0, options={"task": row("write_note")})
    yield desktop
    desktop.close()


def act(session: DesktopSession, *actions: Action) -> list[str | None]:
    performer = Performer(session.screen)
    notes: list[str | None] = []
    for action in actions:
        notes.append(performer.perform(action))
        session.screen.settle()
    return notes


@contextmanager
def stopped(session: DesktopSession, program: str) -> Generator[None]:
    """Keep an application from reading keys."""
    assert session.desk is not None
    inside = processes(first_process(session.desk.sandbox))
    (one,) = (pid for pid in inside if Path(f"/proc/{pid}/comm").read_text().strip() == program)
    os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(one, signal.SIGCONT)


def saved(session: DesktopSession) -> str:
    """Save Mousepad's file and return its text."""
    before = session.home.read("typed.txt")
    act(session, key("ctrl", "s"))
    until = time.monotonic() + 120
    while (data := session.home.read("typed.txt")) == before and time.monotonic() < until:
        time.sleep(0.05)
    return (data or b"").decode().rstrip("\n")


@DESKTOP.mark
@pytest.mark.slow
def test_an_application_that_reads_keys_late_gets_every_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(performing, "_TYPE_SECONDS", 120.0)
    with start_session(800, 600) as session, ExitStack() as late:
        session.put({"typed.txt": b""})
        session.open(("mousepad", "/home/user/typed.txt"))
        late.enter_context(stopped(session, "mousepad"))
        reader = threading.Timer(3.0, late.close)
        reader.start()
        Performer(session.screen).perform(type_text(SYMBOLS))
        reader.join()
        assert saved(session) == SYMBOLS


@DESKTOP.mark
@pytest.mark.slow
def test_text_for_an_application_that_reads_no_keys_is_cut_and_the_note_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(performing, "_TYPE_SECONDS", 3.0)
    with start_session(800, 600) as session:
        session.put({"typed.txt": b""})
        session.open(("mousepad", "/home/user/typed.txt"))
        with stopped(session, "mousepad"):
            note = Performer(session.screen).perform(type_text(SYMBOLS))
        assert note is not None
        count = int(note.split("only the first ")[1].split()[0])
        assert count < len(SYMBOLS)
        assert saved(session) == SYMBOLS[:count]


@DESKTOP.mark
@pytest.mark.slow
def test_a_browser_gets_every_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performing, "_TYPE_SECONDS", 120.0)
    with start_session(1280, 800) as session:
        session.put({"p.html": PAGE})
        session.open(("chromium", "/home/user/p.html"))
        act(
            session,
            wait(1.5),
            key("ctrl", "l"),
            type_text(f"file:///home/user/p.html#{SYMBOLS}\n"),
        )
        until = time.monotonic() + 120
        while not (title := session.titles()[-1]).startswith("#") and time.monotonic() < until:
            time.sleep(0.1)
    assert urllib.parse.unquote(title.rpartition(" - ")[0][1:]) == SYMBOLS


@DESKTOP.mark
@pytest.mark.slow
def test_text_that_takes_too_long_is_cut_and_the_note_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(performing, "_TYPE_SECONDS", 0.2)
    text = "012345678\n" * 500  # a terminal takes at most 4095 characters a line
    with start_session(800, 600) as session:
        session.open(("xterm", "-e", "sh", "-c", "cat > typed.txt"))
        (note,) = act(session, type_text(text))
        assert note is not None
        count = int(note.split("only the first ")[1].split()[0])
        assert 0 < count < 5000
        act(session, key("enter"), key("ctrl", "d"))
        until = time.monotonic() + 120
        while not (data := session.home.read("typed.txt")) and time.monotonic() < until:
            time.sleep(0.1)
    assert data == text[:count].encode() + b"\n"


@DESKTOP.mark
@pytest.mark.slow
def test_amounts_beyond_a_limit_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performing, "LONGEST_WAIT", 0.1)
    with start_session(800, 600) as session:
        notes = act(
            session,
            Action(kind=ActionKind.SCROLL, dy=100_000),
            wait(600),
            Action(kind=ActionKind.HOLD_KEY, keys=("a",), seconds=600),
            Action(kind=ActionKind.DRAG, x=5, y=5, path=((10**6, -(10**6)),)),
        )
        assert session.screen.pointer == (799, 0)
    assert notes == [
        "the wheel turned by 50 clicks, the most at once",
        "it took 0.1 seconds, the most at once",
        "it took 0.1 seconds, the most at once",
        None,
    ]


@DESKTOP.mark
@pytest.mark.slow
def test_a_reply_has_a_limit_of_time(
    monkeypatch: pytest.MonkeyPatch, playing: LinuxDesktopEnv
) -> None:
    monkeypatch.setattr(env, "_REPLY_SECONDS", 0.2)
    waits = [{"action": "wait", "seconds": 0.3}] * 3
    observation, _, terminated, _, info = playing.step(
        json.dumps([*waits, {"action": "terminate", "status": "success"}])
    )
    assert not terminated
    assert info["notes"] == ["actions left out at the end of 0.2 seconds: 3"]
    assert "left out" in observation["text"]


@DESKTOP.mark
@pytest.mark.slow
@pytest.mark.parametrize("name", EFFECTS)
def test_any_chord_leaves_a_session_that_is_graded(name: str, playing: LinuxDesktopEnv) -> None:
    chord = {"action": "key", "keys": EFFECTS[name]}
    for _ in range(3):
        _, _, _, _, info = playing.step(json.dumps([chord]))
        assert info["notes"] == []
    _, reward, terminated, _, _ = playing.step('{"action": "terminate", "status": "success"}')
    assert (reward, terminated) == (0.0, True)


@DESKTOP.mark
@pytest.mark.slow
def test_an_episode_may_end_with_keys_and_buttons_held(playing: LinuxDesktopEnv) -> None:
    playing.step('[{"action": "mouse_down", "x": 300, "y": 300}]')
    playing.session.screen.x.sync()
    playing.reset(seed=0, options={"task": row("write_note")})
    mask = playing.session.screen.x.screen().root.query_pointer().mask
    assert mask == 0


@DESKTOP.mark
@pytest.mark.slow
def test_slow_repeats_in_the_calculator_are_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performing, "_TYPE_SECONDS", 1.0)
    with start_session(800, 600) as session:
        session.open(("galculator",))
        (note,) = act(session, type_text("1" * 90))
        assert note is not None
        assert "of 90 characters" in note


@DESKTOP.mark
@pytest.mark.slow
def test_images_that_fill_the_display_are_a_fault_and_not_the_end_of_the_machine() -> None:
    with start_session(800, 600, limits=Limits(display_mib=200)) as session:
        session.put({"draw.py": DRAW_ON_PIXMAPS.encode()})
        assert session.desk is not None
        session.desk.launch(("python3", "draw.py"))
        until = time.monotonic() + 120
        while session.screen.is_alive and time.monotonic() < until:
            time.sleep(0.1)
        with pytest.raises(EnvFault, match="display") as caught:
            session.check()
    assert caught.value.kind is FaultKind.CRASHED
