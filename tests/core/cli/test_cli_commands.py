"""The command's small parts: help, lists, playing by hand, empty input, errors and exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from fakes.command import run_envkit
from fakes.envs import EchoEnv
from fakes.models import tiny_model_dir

import envkit
from envkit.env import Capabilities, Policy
from envkit.errors import UnknownNameError
from envkit.images import Image
from envkit.trajectory import read_trajectories

pytestmark = pytest.mark.usefixtures("toys_here")


@pytest.mark.parametrize(("arguments", "code"), [(["list"], 0), (["rollout", "--help"], 1)])
@pytest.mark.slow
def test_command_whose_reader_leaves_ends_without_an_error(arguments: list[str], code: int) -> None:
    program = f"from envkit.cli import main; main({arguments!r})"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode == code
    assert "called sys.exit" not in done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_that_of_the_distribution() -> None:
    assert run_envkit("--version").out.strip() == f"envkit {envkit.__version__}"


def test_list_shows_ids_and_descriptions() -> None:
    rows = json.loads(run_envkit("list", "--json").out)
    found = {row["id"]: row for row in rows}
    assert {"canary-v0", "geo3k-v0"} <= set(found)
    assert found["canary-v0"]["description"].startswith("Read a code")
    assert "canary-v0" in run_envkit("list").out


def test_info_lists_arguments_tools_and_policies() -> None:
    facts = json.loads(run_envkit("info", "geo3k-v0", "--json").out)
    assert {"oracle", "noisy-oracle"} <= set(facts["policies"])
    assert "calc_score" in [entry["name"] for entry in facts["tools"]]
    assert any(argument.startswith("max_turns=") for argument in facts["arguments"])
    shown = run_envkit("info", "geo3k-v0").out
    assert "calc_score" in shown
    assert "Reward:" in shown


def test_debug_shows_where_an_error_came_from() -> None:
    for arguments in (("--debug", "info", "nothing"), ("info", "nothing", "--debug")):
        with pytest.raises(UnknownNameError):
            run_envkit(*arguments)


@pytest.mark.parametrize("pair", ["turns", "=3", "two words=3"])
def test_env_kwargs_without_a_name_and_a_value_are_refused(pair: str) -> None:
    shown = run_envkit("info", "canary-v0", "--env-kwargs", pair)
    assert shown.code == 2
    assert "KEY=VALUE" in shown.err


def test_env_kwargs_reach_the_environment_as_json_or_text() -> None:
    arguments = ["--env-kwargs", "turns=5", "--env-kwargs", "alphabet=XYZ"]
    facts = json.loads(run_envkit("info", "canary-v0", "--json", *arguments).out)
    assert facts["max_turns"] == 5


def test_an_env_kwarg_of_the_wrong_type_is_named_as_typed() -> None:
    shown = run_envkit("info", "canary-v0", "--env-kwargs", "turns=abc")
    assert shown.code == 2
    assert "canary-v0 cannot be built with turns=abc: turns must be int, got 'abc'" in shown.err


def test_an_unknown_env_kwarg_is_one_clear_line() -> None:
    shown = run_envkit("info", "canary-v0", "--env-kwargs", "colour=red")
    assert shown.code == 2
    assert shown.err.count("\n") == 1
    assert "colour" in shown.err


def test_play_saves_images_and_takes_replies_of_several_lines(tmp_path: Path) -> None:
    env = envkit.make("canary-v0")
    env.reset(seed=4)
    first, second, third = env.task["codes"]
    typed = f"I think it is\n{first}\n\nnothing at all\n\n{third}\n\n"
    shown = run_envkit("play", "canary-v0", "--seed", 4, "--out", tmp_path, typed=typed)
    assert shown.code == 0, shown.err
    assert "done after 3 turns; reward 0.666667" in shown.out
    assert second not in shown.out
    assert "not understood: no run of 4" in shown.err
    saved = sorted(tmp_path.iterdir())
    assert [str(path) in shown.out for path in saved] == [True] * 3
    observation, _ = env.reset(seed=4)
    assert Image.open(saved[0]) == observation["images"][0]


@pytest.mark.parametrize("typed", ["", ":quit\n", "half a reply\n:q\n"])
def test_play_can_be_left(typed: str) -> None:
    shown = run_envkit("play", "toy-echo-v0", "--seed", 1, typed=typed)
    assert shown.code == 0
    assert "you left after 0 turns" in shown.out


def test_play_sends_what_was_typed_before_the_end_of_input() -> None:
    shown = run_envkit("play", "toy-echo-v0", "--seed", 1, typed="wrong")
    assert "Miss 1" in shown.out
    assert "you left after 1 turns" in shown.out


def test_wrong_usage_exits_with_two() -> None:
    assert run_envkit("rollout").code == 2
    assert run_envkit("rollout", "canary-v0", "-n", "0").code == 2
    assert run_envkit("frobnicate").code == 2


def test_help_groups_commands_as_the_docs_do() -> None:
    page = (Path(__file__).parents[3] / "docs/command-line.md").read_text(encoding="utf-8")
    groups = re.findall(r"^## (.+)\n\n\| command ", page, re.M)
    listed = {
        group: re.findall(r"^\| `([\w-]+)`", page.split(f"## {group}\n")[1].split("\n## ")[0], re.M)
        for group in groups
    }
    served = listed.pop("Serve")
    shown = re.split(r"╭─ (.+?) ─+╮", run_envkit("--help").out)
    panels = {
        name: re.findall(r"^│ ([\w-]+)  ", body, re.M)
        for name, body in zip(shown[1::2], shown[2::2], strict=True)
    }

    assert panels.pop("Commands of plugins") == served
    panels.pop("Options")
    # Within a group, the commands of plugins come last.
    assert {name: sorted(panel) for name, panel in panels.items()} == {
        name: sorted(commands) for name, commands in listed.items()
    }
    assert list(panels) == list(listed)


@pytest.fixture
def empty_files(toys_here: Path) -> None:
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
@pytest.mark.usefixtures("empty_files")
def test_empty_or_misnamed_input_is_one_clear_error(command: str, code: int, says: str) -> None:
    shown = run_envkit(*command.split())
    assert shown.code == code
    assert says in shown.last_error
    assert "0 at 0 or below" not in shown.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--wrap text-twin", "toy-echo-v0 has no text twin"),
        ("--wrap resize-image:side=5", "side must be 28 to 4096, got 5"),
        ("--agent clauude", "Did you mean 'claude-code'?"),
        ("--workers 1 --player raay", "no player 'raay' is registered. Did you mean 'ray'?"),
        ("--set player=raay", "no player 'raay' is registered. Did you mean 'ray'?"),
    ],
)
@pytest.mark.usefixtures("toys_here")
def test_a_wrong_name_is_noticed_before_the_model_is_loaded(options: str, says: str) -> None:
    policy = [] if "--agent" in options else ["--policy", "oracle"]
    for command in ("rollout", "eval"):
        shown = run_envkit(command, "toy-echo-v0", "--model", "no", *policy, *options.split())
        assert shown.code == 2
        assert says in shown.err
        assert not Path("runs").exists() or not list(Path("runs").iterdir())


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
@pytest.mark.usefixtures("empty_files")
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


class ExitingCloseEnv(EchoEnv):
    """Raises when it is closed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)
    error: ClassVar[type[BaseException]] = SystemExit

    def close(self) -> None:
        raise self.error(0)


class ExitingOracleEnv(EchoEnv):
    """Ends the process where its policy is made."""

    def oracle(self) -> Policy:
        sys.exit(0)


@pytest.fixture
def exiting_envs() -> None:
    envkit.register("exiting-close-v0", ExitingCloseEnv)
    envkit.register("exiting-oracle-v0", ExitingOracleEnv)


@pytest.mark.usefixtures("exiting_envs")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, RuntimeError])
def test_rollout_survives_close_that_raises_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    monkeypatch.setattr(ExitingCloseEnv, "error", error)

    outcome = run_envkit(
        *("rollout", "exiting-close-v0", "--policy", "oracle", "-n", 2),
        *("--model", tiny_model_dir("qwen2_5_vl"), "--out", tmp_path / "run", "--quiet"),
    )

    assert outcome.code == 0
    assert outcome.last_error == f"closing ExitingCloseEnv failed: {error.__name__}: 0"
    assert len(list(read_trajectories(tmp_path / "run"))) == 2
    assert (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.usefixtures("exiting_envs")
@pytest.mark.parametrize(
    "command",
    [
        ("rollout", "exiting-oracle-v0", "--policy", "oracle", "-n", 2, "--quiet"),
        ("info", "exiting-close-v0"),
    ],
)
def test_command_ended_by_foreign_exit_is_an_error(
    command: tuple[object, ...],
) -> None:
    model = ("--model", tiny_model_dir("qwen2_5_vl")) if command[0] == "rollout" else ()

    outcome = run_envkit(*command, *model)

    assert outcome.code == 1
    assert "sys.exit(0)" in outcome.last_error
