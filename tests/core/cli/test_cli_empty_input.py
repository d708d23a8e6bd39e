"""Empty and misnamed input: the message names what was typed, and what would work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.command import run_envkit


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").touch()
    Path("runs/none").mkdir(parents=True)
    Path("runs/none/trajectories.jsonl").touch()


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("report runs/none", 1, "runs/none/trajectories.jsonl has no readable episode"),
        ("verify runs/none", 1, ""),
        ("view runs/none", 1, "runs/none has no readable episode"),
        ("filter empty.jsonl --out kept.jsonl", 1, "empty.jsonl: no episode to filter"),
        ("filter runs/none --out kept.jsonl --json", 1, "runs/none: no episode to filter"),
        (
            "rollout canary-v0 --policy oracle --tasks empty.jsonl",
            1,
            "'empty.jsonl' must have at least one task",
        ),
        (
            "export canary-v0 --format sft --out out.jsonl",
            2,
            "--format sft takes a run or its file, got the environment 'canary-v0'",
        ),
        ("import no.pt --from slime --out runs/slime", 1, "there is no dump 'no.pt'"),
        ("certify canry-v0", 2, "Did you mean 'canary-v0'?"),
        ("certify canary-v0 --only speeed", 2, "Did you mean 'speed'? Registered: ['constants'"),
    ],
)
def test_empty_or_misnamed_input_is_one_clear_error(command: str, code: int, says: str) -> None:
    shown = run_envkit(*command.split())
    assert shown.code == code
    assert says in shown.last_error
    assert "0 at 0 or below" not in shown.out


def test_empty_model_name_is_not_the_built_in_model() -> None:
    shown = run_envkit("audit", "")
    assert shown.code == 2
    assert "is not a model folder" in shown.last_error


def test_list_says_that_a_collection_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_members(namespace: str) -> dict[str, object]:
        del namespace
        return {}

    monkeypatch.setattr("envkit.registration.members", no_members)
    shown = run_envkit("list", "verifiers")
    assert shown.code == 0
    assert shown.out == ""
    assert shown.last_error == "no environment of the collection 'verifiers' is installed"


_MAIN = "from envkit.cli import main; main()"


@pytest.mark.parametrize("redirection", [">&-", "<&- >&- 2>&-", "> /dev/full"])
@pytest.mark.parametrize("command", ["--help", "list", "view runs/none"])
@pytest.mark.slow
def test_output_that_cannot_be_written_gives_no_traceback(redirection: str, command: str) -> None:
    line = f'"{sys.executable}" -c "{_MAIN}" {command} {redirection}'
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    run = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, env=env)
    assert "Traceback" not in run.stderr
    if redirection == "> /dev/full":
        assert run.returncode == 1
        assert run.stderr.startswith("envkit: error: ")


def test_help_wraps_paragraphs_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERMINAL_WIDTH", "60")
    text = run_envkit("filter", "--help").out.partition("Arguments")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    paragraph = lines[lines.index(next(line for line in lines if line.startswith("Rates"))) : -1]
    assert all(len(line) > 40 for line in paragraph[:-1])


_INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "envkit.cli.catalog":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
from envkit.cli import main
main(["list"])
"""


def test_ctrl_c_while_commands_are_imported_gives_no_traceback() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "envkit: interrupted\n")
