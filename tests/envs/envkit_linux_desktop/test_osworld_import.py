"""Task files in OSWorld's schema: translated, or refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

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
from envkit_linux_desktop.osworld.recorded_input import translate
from envkit_linux_desktop.osworld.sources import HomeFiles, Output
from envkit_linux_desktop.osworld.steps import Activate, Launch, PutFile, Run

START = "https://files.example/start.xlsx"
GOLD = "https://files.example/gold.xlsx"


def sheet_task(**changes: Any) -> dict[str, Any]:
    """A task over one workbook, as OSWorld writes them."""
    task: dict[str, Any] = {
        "id": "a1",
        "snapshot": "libreoffice_calc",
        "instruction": "Add a row with the total.",
        "source": "own",
        "trajectory": "trajectories/",
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
                    "parameters": {
                        "window_name": "prices.xlsx - LibreOffice Calc",
                        "strict": True,
                    },
                },
                {
                    "type": "execute",
                    "parameters": {
                        "command": [
                            "python",
                            "-c",
                            'import pyautogui; import time; pyautogui.hotkey("ctrl", "s"); '
                            "time.sleep(0.5);",
                        ]
                    },
                },
            ],
            "func": "compare_table",
            "result": {"type": "vm_file", "path": "/home/user/prices.xlsx", "dest": "prices.xlsx"},
            "expected": {"type": "cloud_file", "path": GOLD, "dest": "prices_gold.xlsx"},
            "options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
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
