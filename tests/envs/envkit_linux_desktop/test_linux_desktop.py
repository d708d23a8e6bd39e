"""The environment `computer-use-linux-v0` on real sessions: keys, windows and files."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from docx import Document
from fakes.containers import NO_PTRACE, python_inside, small_memory
from fakes.desktop_runs import children, folders, row
from fakes.needs import DESKTOP
from fakes.oracles import steps_of
from fakes.processes import wait_until_gone
from openpyxl import Workbook

import envkit
from envkit import errors
from envkit_actions import FAMILIES as DIALECTS
from envkit_actions import Action, ActionKind
from envkit_linux_desktop import LinuxDesktopEnv, LinuxDesktopTasks
from envkit_linux_desktop.desk import Limits
from envkit_linux_desktop.keyboard import UntypableError, symbol_of
from envkit_linux_desktop.performing import Performer
from envkit_linux_desktop.policies import nothing, oracle
from envkit_linux_desktop.requirements import INSTALL_LINE, check_programs
from envkit_linux_desktop.session import DesktopSession, Pool, start_session
from envkit_linux_desktop.tasks.checks import FilesHome, Home
from envkit_linux_desktop.tasks.moves import key, wait
from envkit_linux_desktop.tasks.moves import text as type_text
from envkit_linux_desktop.tasks.scenario import Scenario
from envkit_sandbox.bubblewrap import first_process
from envkit_sandbox.watchdog import processes

EXACT = 'Käse – 3 €, naïve 日本語 "x" {y} ~^`´ ßøÅ <>|\\ \'#* ΑΒΓ ж ½ …\tend\n'  # noqa: RUF001


@pytest.fixture
def session() -> Iterator[DesktopSession]:
    with start_session(1280, 800) as session:
        yield session


def shell(session: DesktopSession, command: str, seconds: float = 120.0) -> str:
    assert session.desk is not None
    done = session.desk.run(["sh", "-c", f"({command}) 2>&1"], seconds=seconds)
    return done.output.decode("utf-8", "replace")


def await_file(session: DesktopSession, path: str, seconds: float = 120.0) -> bytes | None:
    until = time.monotonic() + seconds
    while (data := session.home.read(path)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return data


def test_tasks_are_the_same_for_the_same_index_and_split_by_seed() -> None:
    train, test = LinuxDesktopTasks(), LinuxDesktopTasks(split="test")
    assert train.task(5) == LinuxDesktopTasks().task(5)
    assert {train.task(n)["draw"] for n in range(50)}.isdisjoint(
        test.task(n)["draw"] for n in range(50)
    )


def test_wrong_arguments_are_refused_before_anything_starts() -> None:
    with pytest.raises(errors.ConfigurationError, match="width must be 800"):
        LinuxDesktopEnv(width=100)
    with pytest.raises(errors.ConfigurationError, match="ready"):
        LinuxDesktopEnv(ready=-1)
    with pytest.raises(errors.UnknownNameError, match="Did you mean"):
        LinuxDesktopEnv(families=["make_foldr"])
    with pytest.raises(errors.ConfigurationError, match="level"):
        LinuxDesktopTasks(level=9)


def test_a_task_without_a_scenario_is_refused() -> None:
    env = LinuxDesktopEnv(ready=0)
    with pytest.raises(errors.DatasetError, match="family of FAMILIES"):
        env.reset(options={"task": {"id": "x", "family": "none", "level": 1, "draw": 1}})


def test_the_page_has_the_line_that_installs_everything() -> None:
    page = Path(__file__).parents[3] / "docs/environments/linux-desktop.md"
    assert INSTALL_LINE in page.read_text().splitlines()


def test_missing_programs_name_the_line_that_installs_them() -> None:
    with pytest.raises(errors.MissingDependencyError, match=r"no-such-program.*apt-get install"):
        check_programs(["no-such-program"])


def test_a_character_without_a_key_is_named() -> None:
    with pytest.raises(UntypableError, match=r"U\+0007"):
        symbol_of("\a")


_SMALL_SESSION = """
import json
from envkit_linux_desktop.session import start_session
from envkit_sandbox.watchdog import proportional_mib, processes
from envkit_sandbox.bubblewrap import first_process
with start_session(1280, 800) as session:
    session.put({"a/b.txt": b"here"})
    inside = processes(first_process(session.desk.sandbox))
    sizes = [proportional_mib(one) for one in inside]
    print(json.dumps([session.home.read("a/b.txt").decode(), min(sizes) > 0]))
"""


@DESKTOP.mark
@pytest.mark.parametrize("prefix", [NO_PTRACE if os.geteuid() == 0 else (), small_memory(3)])
def test_a_session_needs_neither_rights_over_processes_nor_shared_memory(
    prefix: tuple[str, ...],
) -> None:
    done = python_inside(prefix, _SMALL_SESSION)
    assert (done.stdout, done.stderr) == ('["here", true]\n', "")


@DESKTOP.mark
def test_a_start_removes_what_a_driver_killed_during_a_start_left() -> None:
    stale = Path(tempfile.mkdtemp(prefix="envkit-desk-", dir="/dev/shm"))
    (stale / "fb").mkdir()
    os.utime(stale, (0, 0))
    with start_session(800, 600):
        assert not stale.exists()


@DESKTOP.mark
def test_an_episode_shows_screens_and_grades_files() -> None:
    before = children()
    env = LinuxDesktopEnv(ready=0)
    task = row("make_folder")
    observation, _ = env.reset(seed=0, options={"task": task})
    image = observation["images"][0]
    assert image.size == (1280, 800)
    assert image.encoded() is image.encoded()
    colours = image.pil().resize((64, 40)).getcolors(5000)
    assert colours is not None
    assert len(colours) > 8  # not an empty screen
    _, reward, terminated, _, info = env.step(env.dialect.write([wait(0.0)]))
    assert (reward, terminated, info["settled"]) == (0.0, False, True)
    asked = '[{"action": "move", "x": 12, "y": 34}, {"action": "cursor_position"}]'
    assert env.step(asked)[0]["text"].startswith("X=12,Y=34")
    done = '{"action": "terminate", "status": "success"}'
    _, reward, terminated, _, info = env.step(done)
    assert (reward, terminated) == (0.0, True)
    env.close()
    assert children() <= before
    assert folders() == []


@DESKTOP.mark
@pytest.mark.slow
def test_every_dialect_clicks_on_the_same_place() -> None:
    for name in sorted(DIALECTS):
        env = LinuxDesktopEnv(ready=0, action=name, families=["make_folder"])
        env.reset(seed=1)
        env.step(env.write_click(400, 300))
        at = env.session.screen.pointer
        env.close()
        assert abs(at[0] - 400) <= 1, name
        assert abs(at[1] - 300) <= 1, name


@DESKTOP.mark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "draw"),
    [
        ("make_folder", 0),
        ("convert_base", 0),
        ("gather_type", 0),
        ("rename_sheet", 0),
        ("page_header", 0),
        ("editor_preferences", 9),  # has brackets highlighted, which needs a color scheme
        ("file_manager_options", 0),
        ("remove_properties", 0),
    ],
)
def test_the_oracle_solves_and_doing_nothing_does_not(family: str, draw: int) -> None:
    env = LinuxDesktopEnv(ready=0)
    assert steps_of(env, nothing(), task=row(family, draw=draw))[-1].reward == 0.0
    assert steps_of(env, oracle(), task=row(family, draw=draw))[-1].reward == 1.0
    env.close()


@DESKTOP.mark
@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["openai", "ui-tars-1.5"])
def test_the_oracle_waits_as_its_dialect_can(dialect: str) -> None:
    env = LinuxDesktopEnv(ready=0, action=dialect)
    assert steps_of(env, oracle(), task=row("make_folder", draw=0))[-1].reward == 1.0
    env.close()


def saved(session: DesktopSession, *actions: Action) -> str:
    """Give Mousepad input, and return the text that it saves."""
    session.open(("mousepad",))
    performer = Performer(session.screen)
    path = (wait(0.3), key("ctrl", "s"), wait(0.8), key("ctrl", "a"), type_text("~/saved.txt"))
    for action in (*actions, *path, wait(0.5), key("enter")):
        assert performer.perform(action) is None
    data = await_file(session, "saved.txt")
    assert data is not None
    return data.decode()


@DESKTOP.mark
@pytest.mark.slow
def test_typed_text_arrives_exactly(session: DesktopSession) -> None:
    assert saved(session, type_text(EXACT)) == EXACT


@DESKTOP.mark
@pytest.mark.slow
def test_a_key_on_the_second_level_is_pressed_with_shift(session: DesktopSession) -> None:
    assert saved(session, key("?"), key("a"), key("shift", "b")).rstrip("\n") == "?aB"


@DESKTOP.mark
@pytest.mark.slow
def test_more_characters_than_spare_keys_arrive_exactly(session: DesktopSession) -> None:
    text = "".join(map(chr, range(0x3B1, 0x3C9))) + "".join(map(chr, range(0x4E00, 0x4F00))) + "αω"
    assert saved(session, type_text(text)).rstrip("\n") == text


@DESKTOP.mark
@pytest.mark.slow
def test_the_tree_names_what_is_on_the_screen(session: DesktopSession) -> None:
    session.open(("mousepad",))
    assert "menu 'File'" in session.tree()


@DESKTOP.mark
@pytest.mark.slow
def test_the_desk_reaches_nothing_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    (tmp_path / "mine").touch()
    with start_session(800, 600) as session:
        assert "hunter2" not in shell(session, "cat /proc/*/environ")
        assert shell(session, f"ls {tmp_path} /root /work /var /etc/shadow").count("No such") == 5
        assert shell(session, "touch /x /usr/x /etc/x /dev/x").count("Read-only") == 4
        assert "eth" not in shell(session, "cat /proc/net/dev")
        assert shell(session, "id -u") == "1000\n"
        assert len(shell(session, "ls -d /proc/[0-9]*").split()) < 30
        assert shell(session, "cat /proc/kcore 2> /dev/null | wc -c") == "0\n"
        connect = "import socket; socket.create_connection(('1.1.1.1', 80), 2)"
        assert "unreachable" in shell(session, f'python3 -c "{connect}"')
        abstract = "import socket; s = socket.socket(1); s.connect(chr(0) + '/tmp/.X11-unix/X0')"
        assert "refused" in shell(session, f'python3 -c "{abstract}"')
        for command in ("unshare -U true", "su -c true", "mount -t tmpfs x /tmp", "dmesg"):
            assert shell(session, f"{command} < /dev/null && echo fine").find("fine") < 0, command


@DESKTOP.mark
@pytest.mark.slow
def test_nothing_on_the_desk_ends_or_reads_its_first_process(session: DesktopSession) -> None:
    out = shell(session, "kill -9 1; echo x > /proc/1/mem; cat /proc/1/maps; echo still here")
    assert "still here" in out
    assert out.count("Permission denied") >= 2
    session.check()


@DESKTOP.mark
@pytest.mark.slow
def test_full_folders_and_many_processes_stop_at_their_limits() -> None:
    limits = Limits(home_mib=16, processes=60)
    with start_session(800, 600, limits=limits) as session:
        out = shell(session, "for at in ~ /tmp /dev/shm /run; do cat /dev/zero > $at/full; done")
        assert out.count("No space left") == 4
        quiet = "os.close(1); os.close(2); time.sleep(9)"
        forks = f"import os, time\nfor n in range(500):\n  if not os.fork(): {quiet}"
        assert "temporarily unavailable" in shell(session, f'python3 -c "{forks}"')
        assert session.desk is not None
        assert len(processes(first_process(session.desk.sandbox))) <= 70
        session.check()


@DESKTOP.mark
@pytest.mark.slow
@pytest.mark.parametrize("part", ["display", "desk"])
@pytest.mark.parametrize("target", ["bubblewrap", "first"])
def test_a_killed_part_is_a_fault_and_leaves_nothing(part: str, target: str) -> None:
    before = children()
    env = LinuxDesktopEnv(ready=0)
    env.reset(seed=0, options={"task": row("make_folder")})
    session = env.session
    holder = session.display if part == "display" else session.desk
    sandbox = holder.sandbox  # type: ignore[union-attr]
    assert sandbox is not None
    os.kill(sandbox.pid if target == "bubblewrap" else first_process(sandbox), signal.SIGKILL)
    sandbox.wait(120)
    with pytest.raises(errors.EnvFault) as caught:
        env.step('{"action": "terminate", "status": "success"}')
    assert caught.value.kind is errors.FaultKind.CRASHED
    inside = children() - before
    env.close()
    assert wait_until_gone([*inside]) == []
    assert folders() == []


@DESKTOP.mark
@pytest.mark.slow
def test_a_display_that_hangs_is_a_fault(session: DesktopSession) -> None:
    assert session.display is not None
    sandbox = session.display.sandbox
    assert sandbox is not None
    server = processes(first_process(sandbox))[-1]
    os.kill(server, signal.SIGSTOP)
    with pytest.raises(errors.EnvFault), session.deadline(0.5):
        session.titles()


@DESKTOP.mark
@pytest.mark.slow
def test_a_killed_driver_takes_all_its_sessions_along(tmp_path: Path) -> None:
    script = (
        "import time\n"
        "from envkit_linux_desktop.session import start_session\n"
        "a, b = start_session(800, 600), start_session(800, 600)\n"
        "a.open(('mousepad',))\n"
        "print('up', flush=True)\n"
        "time.sleep(100)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"up\n"
    inside = processes(driver.pid)
    assert len(inside) > 10
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert wait_until_gone(inside) == []
    assert folders(driver.pid) == []


@DESKTOP.mark
@pytest.mark.slow
def test_a_file_is_put_in_the_place_of_a_link_or_a_pipe(session: DesktopSession) -> None:
    shell(session, "mkfifo pipe; ln -s /tmp/other link; echo x > kept; ln kept hard")
    session.put({"pipe": b"1", "link": b"2", "hard": b"3", "new/file": b"4"})
    found = [session.home.read(path) for path in ("pipe", "link", "hard", "kept", "new/file")]
    assert found == [b"1", b"2", b"3", b"x\n", b"4"]
    assert "No such file" in shell(session, "cat /tmp/other")


@DESKTOP.mark
@pytest.mark.slow
def test_a_grader_that_fails_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    env = LinuxDesktopEnv(ready=0)
    env.reset(seed=0, options={"task": row("make_folder")})

    def fail(*_: object) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr(type(env.scenario), "grade", fail)
    with pytest.raises(errors.EnvFault) as caught:
        env.step('{"action": "terminate", "status": "success"}')
    assert caught.value.kind is errors.FaultKind.GRADER
    env.close()


@DESKTOP.mark
@pytest.mark.slow
def test_a_grader_that_only_the_final_files_break_scores_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = LinuxDesktopEnv(ready=0)
    env.reset(seed=0, options={"task": {**row("make_folder"), "name": "broken by the policy"}})
    grade = type(env.scenario).grade

    def fail(scenario: Scenario, home: Home) -> float:
        if isinstance(home, FilesHome):
            return grade(scenario, home)
        raise RecursionError

    monkeypatch.setattr(type(env.scenario), "grade", fail)
    step = env.step('{"action": "terminate", "status": "success"}')
    assert (step.reward, step.terminated) == (0.0, True)
    assert "RecursionError" in step.info["ungraded"]
    env.close()


@DESKTOP.mark
@pytest.mark.slow
def test_a_pool_replaces_a_session_that_died_and_leaves_none() -> None:
    before = children()
    with Pool(800, 600, size=2, limits=Limits()) as pool, pool.take():
        ready = pool._coming[0].result()
        assert ready.display is not None
        assert ready.display.sandbox is not None
        ready.display.kill()
        ready.display.sandbox.wait(timeout=120)  # a killed process lives until the kernel ends it
        with pool.take() as second:
            second.check()
    assert wait_until_gone([*(children() - before)]) == []


@DESKTOP.mark
def test_the_environment_is_made_by_its_id() -> None:
    env = envkit.make("computer-use-linux-v0", ready=0)
    assert not env.capabilities.replay_safe
    env.close()


@DESKTOP.mark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "first", "second"),
    [
        ("mousepad", "a.txt", "b.txt"),
        ("pcmanfm", "Documents", "Downloads"),
        ("chromium", "a.html", "b.html"),
    ],
)
def test_each_file_of_a_task_has_a_window(program: str, first: str, second: str) -> None:
    with start_session(800, 600) as session:
        session.put({name: b"a\n" for name in (first, second) if "." in name})
        session.open((program, first))
        session.open((program, second))
        assert len(session.titles()) == 2


def perform(session: DesktopSession, *actions: Action) -> None:
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


def await_title(session: DesktopSession, part: str, seconds: float = 120.0) -> bool:
    until = time.monotonic() + seconds
    while not (found := any(part in title for title in session.titles())):
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return found


@DESKTOP.mark
@pytest.mark.slow
def test_a_calculator_receives_each_digit_of_typed_text(session: DesktopSession) -> None:
    session.put({"sum.txt": b""})
    session.open(("galculator",))
    perform(session, type_text("5358+6849+1100="), key("ctrl", "c"))
    session.open(("mousepad", "sum.txt"))
    perform(session, key("ctrl", "v"), key("ctrl", "s"))
    assert (session.home.read("sum.txt") or b"").strip() == b"13307"


@DESKTOP.mark
@pytest.mark.slow
def test_a_calculator_receives_a_key_that_is_pressed_twice(session: DesktopSession) -> None:
    session.put({"sum.txt": b""})
    session.open(("galculator",))
    performer = Performer(session.screen)
    for name in "755":
        performer.perform(key(name))
    perform(session, key("ctrl", "c"))
    session.open(("mousepad", "sum.txt"))
    perform(session, key("ctrl", "v"), key("ctrl", "s"))
    assert (session.home.read("sum.txt") or b"").strip() == b"755"


@DESKTOP.mark
@pytest.mark.slow
def test_the_first_key_of_a_session_does_not_change_the_layout(session: DesktopSession) -> None:
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


@DESKTOP.mark
@pytest.mark.slow
def test_alt_tab_brings_the_other_window_to_the_front(session: DesktopSession) -> None:
    session.put({"a.txt": b"", "b.txt": b""})
    session.open(("mousepad", "a.txt"))
    session.open(("mousepad", "b.txt"))
    for name in ("a.txt", "b.txt", "a.txt"):
        perform(session, key("alt", "tab"))
        assert name in session.titles()[-1]
    perform(session, type_text("here"), key("ctrl", "s"))
    assert (session.home.read("a.txt") or b"").strip() == b"here"


@DESKTOP.mark
@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.csv", "a.xlsx", "a.docx", "page.html"])
def test_a_double_click_opens_a_file(session: DesktopSession, name: str) -> None:
    session.put({f"Files/{name}": document(name)})
    session.open(("pcmanfm", "Files"))
    perform(session, Action(kind=ActionKind.DOUBLE_CLICK, x=525, y=265))  # its icon
    assert await_title(session, name)


@DESKTOP.mark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "name"), [("localc", "a.xlsx"), ("lowriter", "a.docx"), ("chromium", "page.html")]
)
def test_an_opened_document_is_drawn(session: DesktopSession, program: str, name: str) -> None:
    session.put({name: document(name)})
    session.open((program, name))
    first = np.asarray(session.shot())
    time.sleep(3.0)
    assert np.mean(np.any(first != np.asarray(session.shot()), axis=-1)) < 0.001
