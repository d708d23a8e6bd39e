"""Whole plays of OSWorld tasks, in a home folder under bubblewrap and on a real desktop."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.needs import BUBBLEWRAP, DESKTOP
from fakes.osworld import FILES, SAME_DATA, compared, opened, recorded, saved, step, workbook
from pptx import Presentation

from envkit.errors import DatasetError, EnvFault, FaultKind
from envkit.grading import UngradedError
from envkit_actions.action import Action, ActionKind, Status
from envkit_linux_desktop.osworld import FileFolder, Finished, Play, read_task
from envkit_linux_desktop.osworld.env import OsworldEnv

GOLD_ADDRESS = f"{FILES}/gold.xlsx"


class FolderDesk:
    """A home folder on disk; commands run in a bubblewrap where it is /home/user."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.inputs = folder, list[str]()

    def put(self, path: str, data: bytes) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(data)

    def read(self, path: str, *, limit: int) -> bytes | None:
        place = self.folder / path
        return place.read_bytes()[:limit] if place.is_file() else None

    def names(self, folder: str = "") -> tuple[str, ...]:
        place = self.folder / folder
        return tuple(sorted(path.name for path in place.iterdir())) if place.is_dir() else ()

    def run(self, command: Sequence[str], *, seconds: float) -> Finished:
        options = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--unshare-all"]
        options += ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
        options += ["--proc", "/proc", "--dev", "/dev", "--bind", str(self.folder), "/home/user"]
        options += ["--clearenv", "--setenv", "HOME", "/home/user", "--setenv", "PATH", "/usr/bin"]
        done = subprocess.run(
            ["bwrap", *options, "--chdir", "/home/user", "--", *command],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return Finished(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def launch(self, command: Sequence[str]) -> None:
        self.inputs.append(f"launch {command[0]}")

    def act(self, action: Action) -> None:
        self.inputs.append("+".join(action.keys) or action.text or action.kind)

    def activate(self, title: str, *, strict: bool) -> None:
        self.inputs.append(f"activate {title}")

    def close_window(self, title: str, *, strict: bool) -> None:
        self.inputs.append(f"close {title}")


def play(tmp_path: Path, evaluator: dict[str, Any], config: Sequence[Any] = ()) -> Play:
    home, files = tmp_path / "home", tmp_path / "files"
    home.mkdir()
    files.mkdir()
    store = FileFolder(files)
    store.add(GOLD_ADDRESS, workbook(("salt", 1)))
    task = read_task(
        {"id": "t", "instruction": "Do it.", "config": list(config), "evaluator": evaluator}
    )
    return Play(task=task, desk=FolderDesk(home), files=store)


WANTED: dict[str, Any] = {
    "postconfig": [recorded("pyautogui.hotkey('ctrl', 's')")],
    **compared("compare_table", "own.xlsx", GOLD_ADDRESS, rules=[SAME_DATA]),
}


def test_workbook_task_scores_the_final_file(tmp_path: Path) -> None:
    played = play(tmp_path, WANTED)
    played.prepare()
    assert played.grade(gave_up=False) == 0.0
    played.desk.put("own.xlsx", workbook(("salt", 1)))
    assert played.grade(gave_up=False) == 1.0
    assert isinstance(played.desk, FolderDesk)
    assert played.desk.inputs == ["ctrl+s"] * 2
    assert played.grade(gave_up=True) == 0.0


def test_infeasible_task_is_solved_by_giving_up(tmp_path: Path) -> None:
    played = play(tmp_path, {"func": "infeasible"})
    assert played.grade(gave_up=True) == 1.0
    assert played.grade(gave_up=False) == 0.0


@BUBBLEWRAP.mark
@pytest.mark.slow
def test_commands_of_a_task_run_and_are_graded(tmp_path: Path) -> None:
    config = [
        {
            "type": "execute",
            "parameters": {"command": "mkdir -p ~/photos; echo made", "shell": True, "stdout": "o"},
        }
    ]
    evaluator = {
        "func": ["exact_match", "check_list", "check_moved_jpgs"],
        "result": [
            {"type": "vm_command_line", "command": "ls ~/photos | wc -l", "shell": True},
            {"type": "cache_file", "path": "o"},
            {"type": "list_directory", "path": "/home/user/photos"},
        ],
        "expected": [
            {"type": "rule", "rules": {"expected": "1\n"}},
            {"type": "rule", "rules": {"expect": ["made"]}},
            {"type": "rule", "rules": {"expected": ["a.jpg"]}},
        ],
    }
    played = play(tmp_path, evaluator, config)
    played.prepare()
    assert played.grade(gave_up=False) == 0.0
    played.desk.put("photos/a.jpg", b"1")
    assert played.grade(gave_up=False) == 1.0


def test_one_of_several_checks_is_enough_with_or(tmp_path: Path) -> None:
    rule = {"type": "rule", "rules": {"include": ["yes"]}}
    files = [{"type": "vm_file", "path": f"/home/user/{name}", "dest": name} for name in ("a", "b")]
    evaluator = {
        "func": ["check_include_exclude"] * 2,
        "conj": "or",
        "result": files,
        "expected": [rule, rule],
    }
    played = play(tmp_path, evaluator)
    assert played.grade(gave_up=False) == 0.0
    played.desk.put("b", b"yes")
    assert played.grade(gave_up=False) == 1.0


@BUBBLEWRAP.mark
def test_step_before_grading_that_the_policy_broke_gives_no_reward(tmp_path: Path) -> None:
    step = {"type": "execute", "parameters": {"command": "sh tool && ./tool", "shell": True}}
    played = play(tmp_path, {**WANTED, "postconfig": [step]})
    played.desk.put("tool", b"chmod +x tool\n")
    played.desk.put("own.xlsx", workbook(("salt", 1)))
    played.prepare()
    assert played.grade(gave_up=False) == 1.0
    played.desk.put("tool", b"exit 127\n")
    with pytest.raises(UngradedError, match="not installed"):
        played.grade(gave_up=False)


@BUBBLEWRAP.mark
def test_program_that_is_not_installed_is_a_fault(tmp_path: Path) -> None:
    config = [
        {"type": "execute", "parameters": {"command": "no-such-program", "shell": True}},
    ]
    with pytest.raises(EnvFault, match="no-such-program"):
        play(tmp_path, WANTED, config).prepare()


START, GOLD = f"{FILES}/start.xlsx", f"{FILES}/gold.xlsx"
SAVE = recorded("pyautogui.hotkey('ctrl', 's'); time.sleep(0.5);")
TASK: dict[str, Any] = {
    "id": "salt",
    "instruction": "Add the row salt, 1 below the others.",
    "related_apps": ["libreoffice_calc"],
    "config": opened(START, "prices.xlsx"),
    "evaluator": {
        "postconfig": [
            step("activate_window", window_name="prices.xlsx - LibreOffice Calc", strict=True),
            SAVE,
            recorded("pyautogui.press('enter'); time.sleep(1);"),
        ],
        **compared("compare_table", "prices.xlsx", GOLD, rules=[SAME_DATA]),
    },
}
DECK, GOLD_DECK = f"{FILES}/start.pptx", f"{FILES}/gold.pptx"
TEXT_ONLY = dict.fromkeys(
    (
        f"examine_{name}"
        for name in (
            "shape",
            "font_name",
            "font_size",
            "color_rgb",
            "bullets",
            "alignment",
            "background_color",
        )
    ),
    False,
)

TALK: dict[str, Any] = {
    "id": "talk",
    "instruction": "Change the title to News.",
    "related_apps": ["libreoffice_impress"],
    "config": opened(DECK, "Desktop/talk.pptx"),
    "evaluator": {
        "postconfig": [
            step("activate_window", window_name="talk.pptx - LibreOffice Impress", strict=True),
            SAVE,
            step("sleep", seconds=2),
        ],
        **compared("compare_pptx_files", "Desktop/talk.pptx", GOLD_DECK, **TEXT_ONLY),
    },
}
IMPOSSIBLE: dict[str, Any] = {
    "id": "fly",
    "instruction": "Make the computer fly.",
    "related_apps": ["os"],
    "config": [],
    "evaluator": {"func": "infeasible"},
}


def deck(title: str) -> bytes:
    made: Any = Presentation()
    made.slides.add_slide(made.slide_layouts[5]).shapes.title.text = title
    return saved(made)


def tool_task(*, writes: str) -> dict[str, Any]:
    """Return a task whose last step before grading runs a program in the home folder."""
    setup = step("execute", command=f"echo {writes} > tool", shell=True)
    run = step("execute", command="sh tool", shell=True)
    return {
        "id": f"tool {writes}",
        "instruction": "Leave the tool alone.",
        "related_apps": ["libreoffice_calc"],
        "config": [setup],
        "evaluator": {**TASK["evaluator"], "postconfig": [run]},
    }


@pytest.fixture
def env(tmp_path: Path) -> Iterator[OsworldEnv]:
    DESKTOP.require()
    tasks, files = tmp_path / "tasks", tmp_path / "files"
    tasks.mkdir()
    files.mkdir()
    tools = tool_task(writes="true"), tool_task(writes="no-such-program")
    for task in (TASK, TALK, IMPOSSIBLE, *tools, {**TASK, "id": "film", "related_apps": ["vlc"]}):
        (tasks / f"{task['id']}.json").write_text(json.dumps(task))
    store = FileFolder(files)
    store.add(START, workbook())
    store.add(GOLD, workbook(("salt", 1)))
    store.add(DECK, deck("Old"))
    store.add(GOLD_DECK, deck("News"))
    made = OsworldEnv(folder=tasks, files=files, ready=0)
    yield made
    made.close()


def reply(env: OsworldEnv, *actions: Action) -> str:
    return env.dialect.write(actions)


@pytest.mark.slow
@pytest.mark.parametrize("plays", [False, True])
def test_spreadsheet_task_is_graded_on_the_saved_file(env: OsworldEnv, plays: bool) -> None:
    start = env.reset(seed=1, options={"task": {"id": "salt"}})
    assert start.observation["text"] == "Task: Add the row salt, 1 below the others."
    if plays:
        keys = [Action(kind=ActionKind.KEY, keys=keys) for keys in (("ctrl", "home"), ("down",))]
        for action in (*keys, keys[1], Action(kind=ActionKind.TYPE, text="salt\t1\n")):
            env.step(reply(env, action))
    step = env.step(reply(env, Action(kind=ActionKind.TERMINATE, status=Status.SUCCESS)))
    assert step.reward == float(plays)
    assert step.terminated


@pytest.mark.slow
def test_step_before_grading_that_fails_is_tried_in_a_new_session(env: OsworldEnv) -> None:
    end = reply(env, Action(kind=ActionKind.TERMINATE, status=Status.SUCCESS))
    env.reset(seed=1, options={"task": {"id": "tool true"}})
    assert env.session.desk is not None
    env.session.desk.run(["sh", "-c", "echo exit 127 > tool"], seconds=5.0)
    step = env.step(end)
    assert (step.reward, step.terminated) == (0.0, True)
    assert "not installed" in step.info["ungraded"]
    env.reset(seed=1, options={"task": {"id": "tool no-such-program"}})
    with pytest.raises(EnvFault, match="untouched") as caught:
        env.step(end)
    assert caught.value.kind is FaultKind.GRADER


@pytest.mark.slow
@pytest.mark.parametrize("plays", [False, True])
def test_presentation_task_is_graded_on_the_saved_file(env: OsworldEnv, plays: bool) -> None:
    env.reset(seed=1, options={"task": {"id": "talk"}})
    if plays:
        for keys in (("escape",), ("tab",), ("f2",), ("ctrl", "a")):
            env.step(reply(env, Action(kind=ActionKind.KEY, keys=keys)))
        env.step(reply(env, Action(kind=ActionKind.TYPE, text="News")))
        for _ in range(2):
            env.step(reply(env, Action(kind=ActionKind.KEY, keys=("escape",))))
    step = env.step(reply(env, Action(kind=ActionKind.TERMINATE, status=Status.SUCCESS)))
    assert step.reward == float(plays)


@pytest.mark.slow
@pytest.mark.parametrize(("status", "reward"), [(Status.FAILURE, 1.0), (Status.SUCCESS, 0.0)])
def test_infeasible_task_is_solved_by_giving_up_on_a_desktop(
    env: OsworldEnv, status: Status, reward: float
) -> None:
    env.reset(seed=1, options={"task": {"id": "fly"}})
    step = env.step(reply(env, Action(kind=ActionKind.TERMINATE, status=status)))
    assert step.reward == reward


def test_refused_and_unknown_tasks_are_named(env: OsworldEnv) -> None:
    assert {name: str(why) for name, why in env.refused.items()} == {
        "film.json": "application: VLC"
    }
    with pytest.raises(DatasetError, match="no imported task"):
        env.reset(seed=1, options={"task": {"id": "film"}})
