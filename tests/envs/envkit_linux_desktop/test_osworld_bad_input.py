"""Bad task files, documents and arguments: one clear outcome each."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envkit.errors import ConfigurationError, DatasetError
from envkit_actions.action import Action, ActionKind
from envkit_linux_desktop.osworld import FileFolder, RefusedError, import_tasks
from envkit_linux_desktop.osworld import read_task as read

START, GOLD = "https://files.example/start.txt", "https://files.example/gold.txt"


def task(config: Any = (), **evaluator: Any) -> dict[str, Any]:
    """Return a task that compares two text files."""
    return {
        "id": "a1",
        "instruction": "Edit the text.",
        "config": list(config) if isinstance(config, tuple) else config,
        "evaluator": {
            "func": "compare_text_file",
            "result": {"type": "vm_file", "path": "/home/user/a.txt", "dest": "a.txt"},
            "expected": {"type": "cloud_file", "path": GOLD, "dest": "b.txt"},
            **evaluator,
        },
    }


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return task([{"type": kind, "parameters": parameters}])


def result(**getter: Any) -> dict[str, Any]:
    return task(result={"type": "vm_file", "path": "/home/user/a.txt", "dest": "a", **getter})


def pyautogui(code: str) -> dict[str, Any]:
    return step("execute", command=["python", "-c", f"import pyautogui, time; {code}"])


REFUSED: dict[str, tuple[Any, str]] = {
    "no id": ({**task(), "id": " "}, "schema"),
    "lone surrogate": ({**task(), "instruction": "Edit \ud800."}, "schema"),
    "nan seconds": (step("sleep", seconds=float("nan")), "schema"),
    "address": (step("download", files=[{"url": {"a": 1}, "path": "a.txt"}]), "schema"),
    "null in a path": (step("download", files=[{"url": START, "path": "a\0b"}]), "result"),
    "folder as a path": (step("download", files=[{"url": START, "path": "/home/user/"}]), "result"),
    "path outside": (step("open", path="/home/user//etc/passwd.txt"), "result"),
    "null in a command": (step("execute", command=["echo", "a\0b"]), "schema"),
    "window": (step("activate_window", window_name=None), "schema"),
    "parameters": (task([{"type": "sleep", "parameters": [1]}]), "schema"),
    "half an index": (result(multi=True, path=["a"], dest=["a"], gives=[0.5]), "schema"),
    "index outside": (result(multi=True, path=["a"], dest=["a"], gives=[1]), "schema"),
    "several in a text": (result(multi=True, path="ab", dest="ab"), "schema"),
    "fewer names than paths": (result(multi=True, path=["a", "b"], dest=["a"]), "schema"),
    "options": (task(options="ignore_case"), "schema"),
    "sleep without end": (pyautogui("time.sleep(1e9)"), "input"),
    "sleep backwards": (pyautogui("time.sleep(-1)"), "input"),
    "scroll without end": (pyautogui("pyautogui.scroll(10**9)"), "input"),
    "scroll far": (pyautogui("pyautogui.scroll(1000000000)"), "input"),
    "text without end": (pyautogui(f"pyautogui.write({'x' * 20_000!r})"), "input"),
    "presses without end": (pyautogui("pyautogui.press(['a', 'b'] * 9, presses=200)"), "input"),
    "many presses": (pyautogui(f"pyautogui.press({['a'] * 300}, presses=200)"), "input"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_task_is_refused(name: str) -> None:
    document, kind = REFUSED[name]
    with pytest.raises(RefusedError) as caught:
        read(document)
    assert caught.value.refusal.kind == kind
    assert len(str(caught.value)) < 200


def test_long_sleep_is_cut() -> None:
    assert read(step("sleep", seconds=1e300)).setup == (Action(kind=ActionKind.WAIT, seconds=60.0),)


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "x", [], [1], {}, {"a": 1}, "\0", -1])
def test_no_value_in_any_place_raises_anything_else(value: Any) -> None:
    whole = step("download", files=[{"url": START, "path": "/home/user/a.txt"}])
    whole["config"] += [
        {"type": "launch", "parameters": {"command": ["localc", "a.xlsx"], "shell": False}},
        {"type": "sleep", "parameters": {"seconds": 1}},
        {"type": "activate_window", "parameters": {"window_name": "a", "strict": True}},
    ]
    whole["evaluator"]["postconfig"] = pyautogui("pyautogui.press('a')")["config"]
    whole["evaluator"]["options"] = {"ignore_case": True}

    def visit(node: Any, put: Callable[[Any], None]) -> None:
        put(value)
        with suppress(RefusedError):
            read(whole)
        put(node)
        if isinstance(node, dict | list):
            children: Any = node.items() if isinstance(node, dict) else enumerate(node)
            for key, child in list(children):
                visit(child, partial(node.__setitem__, key))

    for key in list(whole):
        visit(whole[key], partial(whole.__setitem__, key))


def write(folder: Path, name: str, document: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(document))


def test_second_file_with_the_same_id_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path, name, task())
    found = import_tasks(tmp_path)
    assert len(found.tasks) == 1
    assert {name: str(why) for name, why in found.refused.items()} == {
        "b.json": "schema: the id 'a1' is that of a.json"
    }


def test_file_that_is_no_task_file_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path, "a.json", task())
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "latin.json").write_bytes(b'"\xff"')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "lost.json").symlink_to("nowhere")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(8 << 30)
    found = import_tasks(tmp_path)
    assert len(found.tasks) == 1
    assert found.reasons() == {
        "schema: not valid JSON": 2,
        "schema: not a regular file": 3,
        "schema: a file of more than 4 MiB": 1,
    }


def documents(folder: Path) -> FileFolder:
    folder.mkdir()
    store = FileFolder(folder)
    store.add(GOLD, b"gold")
    return store


def test_document_that_was_deleted_counts_as_missing(tmp_path: Path) -> None:
    write(tmp_path / "tasks", "a.json", task())
    store = documents(tmp_path / "files")
    assert len(import_tasks(tmp_path / "tasks", files=store).tasks) == 1
    next((tmp_path / "files").glob("*.txt")).unlink()
    assert import_tasks(tmp_path / "tasks", files=store).reasons() == {
        "file: 1 files are missing": 1
    }


def test_document_that_no_grader_would_read_whole_refuses_its_task(tmp_path: Path) -> None:
    write(tmp_path / "tasks", "a.json", task())
    store = documents(tmp_path / "files")
    with next((tmp_path / "files").glob("*.txt")).open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert import_tasks(tmp_path / "tasks", files=store).reasons() == {
        "file: a document of more than 16 MiB": 1
    }


def test_pipe_in_place_of_a_document_is_an_error(tmp_path: Path) -> None:
    store = documents(tmp_path / "files")
    place = next((tmp_path / "files").glob("*.txt"))
    place.unlink()
    os.mkfifo(place)
    assert GOLD not in store
    with pytest.raises(DatasetError, match="regular file"):
        store.read(GOLD)


def test_id_that_names_no_playable_task_is_an_error(tmp_path: Path) -> None:
    from envkit_linux_desktop.osworld.env import OsworldEnv

    write(tmp_path / "tasks", "a.json", task())
    documents(tmp_path / "files")
    folders: dict[str, Any] = {"folder": tmp_path / "tasks", "files": tmp_path / "files"}
    with pytest.raises(ConfigurationError, match="'b2'"):
        OsworldEnv(**folders, identities=["a1", "b2"], ready=0)
    env = OsworldEnv(**folders, identities=["a1"], ready=0)
    assert env.tasks is not None
    assert env.tasks.task(0)["id"] == "a1"
    env.close()
