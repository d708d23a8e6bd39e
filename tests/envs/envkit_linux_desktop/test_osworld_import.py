"""Task files in OSWorld's schema, good and bad: translated, or refused with the reason."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.osworld import FILES, SAME_DATA, compared, opened, recorded, step

from envkit.errors import ConfigurationError, DatasetError
from envkit_actions.action import Action, ActionKind
from envkit_linux_desktop.osworld import (
    Application,
    FileFolder,
    RefusalKind,
    RefusedError,
    import_tasks,
    read_task,
)
from envkit_linux_desktop.osworld import read_task as read
from envkit_linux_desktop.osworld.recorded_input import translate
from envkit_linux_desktop.osworld.sources import HomeFiles, Output
from envkit_linux_desktop.osworld.steps import Activate, Launch, PutFile, Run

START, GOLD = f"{FILES}/start.xlsx", f"{FILES}/gold.xlsx"


def sheet_task(**changes: Any) -> dict[str, Any]:
    """A task over one workbook, as OSWorld writes them."""
    task: dict[str, Any] = {
        "id": "a1",
        "snapshot": "libreoffice_calc",
        "instruction": "Add a row with the total.",
        "source": "own",
        "trajectory": "trajectories/",
        "related_apps": ["libreoffice_calc"],
        "config": opened(START, "prices.xlsx"),
        "evaluator": {
            "postconfig": [
                step("activate_window", window_name="prices.xlsx - LibreOffice Calc", strict=True),
                recorded('pyautogui.hotkey("ctrl", "s"); time.sleep(0.5);'),
            ],
            **compared("compare_table", "prices.xlsx", GOLD, rules=[SAME_DATA]),
        },
    }
    return {**task, **changes}


def with_step(kind: str, **parameters: Any) -> dict[str, Any]:
    return sheet_task(config=[{"type": kind, "parameters": parameters}])


def with_check(**evaluator: Any) -> dict[str, Any]:
    return sheet_task(evaluator={**sheet_task()["evaluator"], **evaluator})


def test_task_file_is_translated_to_steps_and_checks() -> None:
    task = read_task(sheet_task())
    assert task.setup[0] == PutFile(path="prices.xlsx", address=START)
    assert isinstance(task.setup[1], Launch)
    assert task.setup[1].command[-1] == "/home/user/prices.xlsx"
    assert task.before_grading == (
        Activate(title="prices.xlsx - LibreOffice Calc", strict=True),
        Action(kind=ActionKind.KEY, keys=("ctrl", "s")),
        Action(kind=ActionKind.WAIT, seconds=0.5),
    )
    assert task.checks[0].result == HomeFiles(
        paths=("prices.xlsx",), names=("prices.xlsx",), gives=(0,)
    )
    assert task.addresses == (START, GOLD)
    assert not task.is_infeasible


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("import pyautogui; pyautogui.hotkey(['shift', 'ctrl', 'e'])", [("shift", "ctrl", "e")]),
        ("import pyautogui; pyautogui.press('down', presses=2, interval=0.01)", [("down",)] * 2),
        ("import pyautogui; pyautogui.press(['esc', 'enter']);", [("escape",), ("enter",)]),
    ],
)
def test_recorded_keys_become_presses(code: str, steps: list[tuple[str, ...]]) -> None:
    assert translate(code) == tuple(Action(kind=ActionKind.KEY, keys=keys) for keys in steps)


def test_recorded_typing_and_clicks_become_steps() -> None:
    code = (
        "import pyautogui; import time; pyautogui.click({SCREEN_WIDTH_HALF}, {SCREEN_HEIGHT_HALF});"
        " time.sleep(1); pyautogui.write('stty size')"
    )
    assert translate(code) == (
        Action(kind=ActionKind.CLICK),
        Action(kind=ActionKind.WAIT, seconds=1.0),
        Action(kind=ActionKind.TYPE, text="stty size"),
    )


def test_recorded_press_and_release_after_a_click_are_a_click_at_its_place() -> None:
    code = (
        "import pyautogui; pyautogui.doubleClick(x=960, y=540); "
        "pyautogui.mouseDown(); pyautogui.mouseUp()"
    )
    kinds = (ActionKind.DOUBLE_CLICK, ActionKind.CLICK)
    assert translate(code) == tuple(Action(kind=kind) for kind in kinds)


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.system('rm -rf /')",
        "import pyautogui; pyautogui.click(170, 250)",
        "import pyautogui; pyautogui.mouseDown(); pyautogui.mouseUp()",
        "import pyautogui; pyautogui.press(key)",
        "import pyautogui; pyautogui.press('anykey')",
        "import pyautogui; pyautogui.press('a', presses=100000)",
        "for n in range(3): print(n)",
        "import pyautogui; pyautogui.hotkey(",
    ],
)
def test_recorded_program_of_other_calls_is_refused(code: str) -> None:
    with pytest.raises(RefusedError) as caught:
        translate(code)
    assert caught.value.refusal.kind is RefusalKind.INPUT


@pytest.mark.parametrize(
    ("document", "kind", "detail"),
    [
        (sheet_task(related_apps=["gimp"]), "application", "GIMP"),
        (with_step("open", path="/home/user/film.mp4"), "application", "a viewer for .mp4 files"),
        (with_step("launch", command=["google-chrome", "--new"]), "application", "Chrome"),
        (with_step("launch", command="VLC_VERBOSE=-1 vlc x.mp4"), "application", "VLC"),
        (with_step("chrome_open_tabs", urls_to_open=["a"]), "network", "web pages in Chrome"),
        (with_step("command", command="pip install pysrt"), "network", "packages"),
        (with_step("execute", command="echo x | sudo -S ls", shell=True), "privilege", "root"),
        (with_step("teleport"), "step", "teleport"),
        (sheet_task(config=[{"type": {"a": 1}, "parameters": {}}]), "step", "{'a': 1}"),
        (with_step("open"), "schema", "the parameters of 'open'"),
        (with_check(func="compare_audios"), "function", "compare_audios"),
        (with_check(func="compare_pptx_files", expected=None), "function", "expected file"),
        (
            with_check(func="compare_references", options={"reference_base_result": 1}),
            "function",
            "reference_base_result=1",
        ),
        (with_check(conj="xor"), "schema", "'conj'"),
        (
            with_check(options={"rules": [{"type": "sheet_colour"}]}),
            "function",
            "compare_table with the rule 'sheet_colour'",
        ),
        (with_check(result={"type": "vlc_config"}), "result", "vlc_config"),
        (
            with_check(result={"type": "vm_file", "path": "/etc/passwd", "dest": "p"}),
            "result",
            "a file outside the home folder",
        ),
        (
            with_check(result={"type": "vm_file", "path": "/home/user/../x", "dest": "p"}),
            "result",
            "a file outside the home folder",
        ),
        (with_check(func=["compare_table", "exact_match"]), "schema", "'result'"),
        (sheet_task(related_apps=1.5), "schema", "'related_apps'"),
        (with_check(options={"rules": [{"type": ["sheet_data"]}]}), "schema", "the rules of"),
        ([], "schema", "a task must be an object"),
        (sheet_task(evaluator=None), "schema", "'evaluator'"),
    ],
)
def test_task_that_cannot_be_played_is_refused(document: Any, kind: str, detail: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read_task(document)
    assert caught.value.refusal.kind == kind
    assert detail in caught.value.refusal.detail


@pytest.mark.parametrize(
    ("name", "program"), [("talk.pptx", "loimpress"), ("book.pdf", "chromium")]
)
def test_document_opens_with_its_application_if_installed(name: str, program: str) -> None:
    document = with_step("open", path=f"/home/user/{name}")
    assert read_task(document).setup == (Launch(command=(program, f"/home/user/{name}")),)
    with pytest.raises(RefusedError, match="application"):
        read_task(document, installed={Application.CALC})


@pytest.mark.parametrize(
    ("function", "rules"),
    [
        ("check_pdf_pages", {"relation": "about", "ref_value": 1}),
        ("check_pdf_pages", {"relation": "eq"}),
        ("check_page_number_colors", {"color": "mauve"}),
        ("check_transition", {"slide_idx": 0, "transition_type": "a/b"}),
        ("check_transition", {"slide_idx": -1, "transition_type": "wipe"}),
        ("evaluate_presentation_fill_to_rgb_distance", {"rgb": [0, 0]}),
        ("check_auto_saving_time", {"minutes": True}),
        ("find_default_font", []),
    ],
)
def test_rules_that_an_evaluator_does_not_know_are_refused(function: str, rules: Any) -> None:
    document = with_check(func=function, expected={"type": "rule", "rules": rules})
    with pytest.raises(RefusedError) as caught:
        read_task(document)
    assert caught.value.refusal.kind is RefusalKind.FUNCTION
    assert function in caught.value.refusal.detail


def test_shell_commands_run_in_a_shell_and_python_is_python3() -> None:
    task = read_task(with_step("execute", command="python a.py; ls ~/Desktop", shell="true"))
    assert task.setup == (Run(command=("sh", "-c", "python3 a.py; ls ~/Desktop")),)
    check = {"type": "vm_command_line", "command": ["python", "~/a.py"]}
    rules = {"type": "rule", "rules": {"expected": "1\n"}}
    task = read_task(with_check(func="exact_match", result=check, expected=rules, options={}))
    assert task.checks[0].result == Output(command=("python3", "/home/user/a.py"))


def test_relative_path_lies_in_the_home_folder_and_keys_open_a_terminal() -> None:
    files = [{"url": START, "path": "setup.sh"}]
    task = read_task(with_step("download", files=files))
    assert task.setup == (PutFile(path="setup.sh", address=START),)
    code = "import pyautogui; pyautogui.hotkey('ctrl', 'alt', 't'); pyautogui.write('ls')"
    task = read_task(with_step("execute", command=["python", "-c", code]))
    assert task.setup == (Launch(command=("xterm",)), Action(kind=ActionKind.TYPE, text="ls"))


def test_infeasible_task_has_no_checks() -> None:
    task = read_task(sheet_task(evaluator={"func": "infeasible"}))
    assert task.is_infeasible


def test_folder_is_sorted_into_tasks_and_refusals(tmp_path: Path) -> None:
    tasks, files = tmp_path / "tasks", tmp_path / "files"
    (tasks / "calc").mkdir(parents=True)
    files.mkdir()
    (tasks / "calc/good.json").write_text(json.dumps(sheet_task()))
    (tasks / "calc/vlc.json").write_text(json.dumps(sheet_task(related_apps=["vlc"])))
    (tasks / "calc/broken.json").write_text("{")
    assert len(import_tasks(tasks).tasks) == 1

    store = FileFolder(files)
    without = import_tasks(tasks, files=store)
    assert without.tasks == ()
    assert without.reasons() == {
        "file: 2 files are missing": 1,
        "application: VLC": 1,
        "schema: not valid JSON": 1,
    }
    store.add(START, b"1")
    store.add(GOLD, b"2")
    assert [task.identity for task in import_tasks(tasks, files=store).tasks] == ["a1"]


def test_folder_without_task_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no task files"):
        import_tasks(tmp_path)
    with pytest.raises(ConfigurationError, match="no folder"):
        import_tasks(tmp_path / "none")


def test_file_folder_keeps_files_by_address_and_checks_their_hashes(tmp_path: Path) -> None:
    FileFolder(tmp_path).add(START, b"data")
    store = FileFolder(tmp_path)
    assert store.read(START) == b"data"
    assert GOLD not in store
    with pytest.raises(DatasetError, match="no file for"):
        store.read(GOLD)
    stored = next(path for path in tmp_path.iterdir() if path.suffix == ".xlsx")
    stored.write_bytes(b"other")
    with pytest.raises(DatasetError, match="has changed"):
        store.read(START)


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{",
        '{"a": {"file": "../x", "sha256": "1"}}',
        '{"a": 1}',
        '{"a": {"file": "a\\u0000b", "sha256": "1"}}',
    ],
)
def test_invalid_index_of_files_is_an_error(tmp_path: Path, index: str) -> None:
    (tmp_path / "addresses.json").write_text(index)
    with pytest.raises(DatasetError, match=r"addresses\.json"):
        FileFolder(tmp_path)


@pytest.mark.parametrize(
    ("instruction", "detail"),
    [
        ("Install Spotify on this system.", "packages"),
        ("Could you help me to install the LanguageTool extension in Writer?", "packages"),
        ("Run pip install numpy in ~/work, then run main.py.", "packages"),
        ("Download the first paper of the list and save it as bert.pdf.", "a download"),
        ("Clone the repository of the project into my home folder.", "a download"),
        ("Read https://example.org/post.html and save it as post.txt.", "a web address"),
        ("Take the prices from shop.example.com and fill in column B.", "a web address"),
        ("Fill in the city of each conference. You may look it up online.", "on the web"),
        ("Add the number of citations from Google Scholar to the sheet.", "on the web"),
        ("Search the Internet for the capital of each country.", "on the web"),
        ("Copy the abstract of the arXiv paper into the document.", "on the web"),
    ],
)
def test_task_whose_goal_is_on_the_web_is_refused(instruction: str, detail: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read_task(sheet_task(instruction=instruction))
    assert caught.value.refusal.kind is RefusalKind.NETWORK
    assert detail in caught.value.refusal.detail


@pytest.mark.parametrize(
    "instruction",
    [
        "Move the files that I downloaded yesterday from the Downloads folder to ~/papers.",
        "Sort the files of the download directory by name.",
        "Write ann@example.com into cell B2 of contacts.xlsx.",
        "Set the column of installed programs in bold.",
        "Install the font in /home/user/fonts/Own.ttf for Writer.",
        "Underline the second line of offline.docx.",
        "Add a row with the total.",
    ],
)
def test_task_that_only_sounds_like_the_web_is_accepted(instruction: str) -> None:
    assert read_task(sheet_task(instruction=instruction)).instruction == instruction


def test_task_with_a_proxy_is_refused_unless_failure_is_its_solution() -> None:
    with pytest.raises(RefusedError, match="network: a proxy"):
        read_task(sheet_task(proxy=True))
    assert read_task(sheet_task(proxy=False)).checks
    infeasible = {"func": "infeasible"}
    text = "Install the newest version from https://example.org."
    assert read_task(sheet_task(instruction=text, evaluator=infeasible)).is_infeasible


@pytest.mark.parametrize(
    "command",
    [
        "git clone https://example.org/a.git",
        ["git", "-C", "/home/user", "clone", "git@example.org:a.git"],
        "cd work && git pull https://example.org/a.git main",
        "xdg-open https://example.org",
        "scp a.txt host:",
        "ping -c 1 example.org",
    ],
)
def test_command_that_needs_a_network_is_refused(command: Any) -> None:
    with pytest.raises(RefusedError, match=r"network: "):
        read_task(with_step("command", command=command))


def test_command_with_a_local_repository_is_accepted() -> None:
    assert read_task(with_step("command", command="git clone /home/user/a /home/user/b")).setup


START_TEXT, GOLD_TEXT = "https://files.example/start.txt", "https://files.example/gold.txt"


def task(config: Any = (), **evaluator: Any) -> dict[str, Any]:
    """Return a task that compares two text files."""
    return {
        "id": "a1",
        "instruction": "Edit the text.",
        "config": list(config) if isinstance(config, tuple) else config,
        "evaluator": {
            "func": "compare_text_file",
            "result": {"type": "vm_file", "path": "/home/user/a.txt", "dest": "a.txt"},
            "expected": {"type": "cloud_file", "path": GOLD_TEXT, "dest": "b.txt"},
            **evaluator,
        },
    }


def only(kind: str, **parameters: Any) -> dict[str, Any]:
    return task([step(kind, **parameters)])


def result(**getter: Any) -> dict[str, Any]:
    return task(result={"type": "vm_file", "path": "/home/user/a.txt", "dest": "a", **getter})


def pyautogui(code: str) -> dict[str, Any]:
    return only("execute", command=["python", "-c", f"import pyautogui, time; {code}"])


REFUSED: dict[str, tuple[Any, str]] = {
    "no id": ({**task(), "id": " "}, "schema"),
    "lone surrogate": ({**task(), "instruction": "Edit \ud800."}, "schema"),
    "nan seconds": (only("sleep", seconds=float("nan")), "schema"),
    "address": (only("download", files=[{"url": {"a": 1}, "path": "a.txt"}]), "schema"),
    "null in a path": (only("download", files=[{"url": START_TEXT, "path": "a\0b"}]), "result"),
    "folder as a path": (
        only("download", files=[{"url": START_TEXT, "path": "/home/user/"}]),
        "result",
    ),
    "path outside": (only("open", path="/home/user//etc/passwd.txt"), "result"),
    "null in a command": (only("execute", command=["echo", "a\0b"]), "schema"),
    "window": (only("activate_window", window_name=None), "schema"),
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
    assert read(only("sleep", seconds=1e300)).setup == (Action(kind=ActionKind.WAIT, seconds=60.0),)


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "x", [], [1], {}, {"a": 1}, "\0", -1])
def test_no_value_in_any_place_raises_anything_else(value: Any) -> None:
    whole = only("download", files=[{"url": START_TEXT, "path": "/home/user/a.txt"}])
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
    store.add(GOLD_TEXT, b"gold")
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
    assert GOLD_TEXT not in store
    with pytest.raises(DatasetError, match="regular file"):
        store.read(GOLD_TEXT)


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
