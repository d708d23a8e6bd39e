"""The command's small parts: listing, describing, checking, playing by hand, and its errors."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fakes.command import run_envkit
from fakes.envs import register_toys

import envkit
from envkit.env import Env, Turn
from envkit.errors import UnknownNameError
from envkit.images import Image


class WrongTypeEnv(Env):
    """Answers its second reply with a bare string."""

    def on_reset(self, task: dict[str, Any]) -> Turn:
        return Turn("Say something.")

    def on_turn(self, response_text: str) -> Turn:
        return "what?" if self.turn else Turn("Go on.")  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _toys() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_toys()
    if "envkit/toy-wrong-type-v0" not in gymnasium.registry:
        envkit.register("toy-wrong-type-v0", entry_point=WrongTypeEnv, kwargs={"max_turns": 3})


def test_help_names_every_command() -> None:
    shown = run_envkit("--help")
    assert shown.code == 0
    for command in [
        "list",
        "info",
        "certify",
        "play",
        "rollout",
        "report",
        "verify",
        "audit",
        "golden",
        "conformance",
        "doctor",
    ]:
        assert f" {command} " in shown.out


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


def test_info_of_an_unknown_environment_suggests_the_nearest() -> None:
    shown = run_envkit("info", "geo3kk")
    assert shown.code == 2
    assert shown.err.count("\n") == 1
    assert "Did you mean 'geo3k-v0'?" in shown.err


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
