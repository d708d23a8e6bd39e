"""Whole plays of OSWorld tasks in a home folder under bubblewrap."""

import io
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from fakes.needs import BUBBLEWRAP

from envkit.errors import EnvFault
from envkit.grading import UngradedError
from envkit_actions.action import Action
from envkit_linux_desktop.osworld import FileFolder, Finished, Play, read_task

GOLD_ADDRESS = "https://files.example/gold.xlsx"


def workbook() -> bytes:
    book: Any = openpyxl.Workbook()
    for row in [("item", "price"), ("tea", 3), ("salt", 1)]:
        book.active.append(row)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


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
    store.add(GOLD_ADDRESS, workbook())
    task = read_task(
        {"id": "t", "instruction": "Do it.", "config": list(config), "evaluator": evaluator}
    )
    return Play(task=task, desk=FolderDesk(home), files=store)


WANTED: dict[str, Any] = {
    "postconfig": [
        {
            "type": "execute",
            "parameters": {
                "command": ["python", "-c", "import pyautogui; pyautogui.hotkey('ctrl', 's')"]
            },
        }
    ],
    "func": "compare_table",
    "result": {"type": "vm_file", "path": "/home/user/own.xlsx", "dest": "own.xlsx"},
    "expected": {"type": "cloud_file", "path": GOLD_ADDRESS, "dest": "gold.xlsx"},
    "options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
}


def test_workbook_task_scores_the_final_file(tmp_path: Path) -> None:
    played = play(tmp_path, WANTED)
    played.prepare()
    assert played.grade(gave_up=False) == 0.0
    played.desk.put("own.xlsx", workbook())
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
    played.desk.put("own.xlsx", workbook())
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
