"""OSWorld tasks on a real Linux desktop."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from fakes.needs import DESKTOP
from pptx import Presentation

from envkit.errors import DatasetError, EnvFault, FaultKind
from envkit_actions.action import Action, ActionKind, Status
from envkit_linux_desktop.osworld import FileFolder
from envkit_linux_desktop.osworld.env import OsworldEnv

START, GOLD = "https://files.example/start.xlsx", "https://files.example/gold.xlsx"
SAVE = "import pyautogui; import time; pyautogui.hotkey('ctrl', 's'); time.sleep(0.5);"
KEEP_FORMAT = "import pyautogui; import time; pyautogui.press('enter'); time.sleep(1);"
TASK: dict[str, Any] = {
    "id": "salt",
    "instruction": "Add the row salt, 1 below the others.",
    "related_apps": ["libreoffice_calc"],
    "config": [
        {
            "type": "download",
            "parameters": {"files": [{"url": START, "path": "/home/user/prices.xlsx"}]},
        },
        {"type": "open", "parameters": {"path": "/home/user/prices.xlsx"}},
    ],
    "evaluator": {
        "postconfig": [
            {
                "type": "activate_window",
                "parameters": {"window_name": "prices.xlsx - LibreOffice Calc", "strict": True},
            },
            {"type": "execute", "parameters": {"command": ["python", "-c", SAVE]}},
            {"type": "execute", "parameters": {"command": ["python", "-c", KEEP_FORMAT]}},
        ],
        "func": "compare_table",
        "result": {"type": "vm_file", "path": "/home/user/prices.xlsx", "dest": "prices.xlsx"},
        "expected": {"type": "cloud_file", "path": GOLD, "dest": "gold.xlsx"},
        "options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
    },
}
DECK, GOLD_DECK = "https://files.example/start.pptx", "https://files.example/gold.pptx"
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
    "config": [
        {
            "type": "download",
            "parameters": {"files": [{"url": DECK, "path": "/home/user/Desktop/talk.pptx"}]},
        },
        {"type": "open", "parameters": {"path": "/home/user/Desktop/talk.pptx"}},
    ],
    "evaluator": {
        "postconfig": [
            {
                "type": "activate_window",
                "parameters": {"window_name": "talk.pptx - LibreOffice Impress", "strict": True},
            },
            {"type": "execute", "parameters": {"command": ["python", "-c", SAVE]}},
            {"type": "sleep", "parameters": {"seconds": 2}},
        ],
        "func": "compare_pptx_files",
        "result": {"type": "vm_file", "path": "/home/user/Desktop/talk.pptx", "dest": "talk.pptx"},
        "expected": {"type": "cloud_file", "path": GOLD_DECK, "dest": "gold.pptx"},
        "options": TEXT_ONLY,
    },
}
IMPOSSIBLE: dict[str, Any] = {
    "id": "fly",
    "instruction": "Make the computer fly.",
    "related_apps": ["os"],
    "config": [],
    "evaluator": {"func": "infeasible"},
}


def workbook(*rows: tuple[str, int]) -> bytes:
    book: Any = openpyxl.Workbook()
    for row in (("item", "price"), ("tea", 3), *rows):
        book.active.append(row)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def deck(title: str) -> bytes:
    made: Any = Presentation()
    made.slides.add_slide(made.slide_layouts[5]).shapes.title.text = title
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


def tool_task(*, writes: str) -> dict[str, Any]:
    """Return a task whose last step before grading runs a program in the home folder."""
    setup = {"type": "execute", "parameters": {"command": f"echo {writes} > tool", "shell": True}}
    run = {"type": "execute", "parameters": {"command": "sh tool", "shell": True}}
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
def test_infeasible_task_is_solved_by_giving_up(
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
