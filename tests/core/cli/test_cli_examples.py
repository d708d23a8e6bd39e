"""Every command shows examples, and each is one that the command reads."""

import os
import shlex
import subprocess
import sys

import pytest
import typer
from fakes.command import run_envkit

from envkit.cli.app import app
from envkit.cli.examples import EXAMPLES
from envkit.cli.options import complete_engine, complete_id
from envkit.cli.plugin_commands import plugin_commands
from envkit.errors import ConfigurationError
from envkit.wrappers.named import wrapping

COMMANDS = typer.main.get_group(app)


def test_every_command_of_envkit_has_examples() -> None:
    own = {name for name in COMMANDS.commands if not name.startswith("serve-")}
    assert own == set(EXAMPLES)


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_example_is_read_by_its_command(line: str) -> None:
    name, *arguments = shlex.split(line)
    context = COMMANDS.commands[name].make_context(name, arguments)
    assert not context.args


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_help_shows_the_examples(name: str) -> None:
    shown = " ".join(run_envkit(name, "--help").out.split())
    assert all(f"envkit {line}" in shown for line in EXAMPLES[name])


PLUGIN_COMMANDS = plugin_commands()


@pytest.mark.parametrize("name", sorted(PLUGIN_COMMANDS))
def test_plugins_bring_examples_that_their_commands_read(name: str) -> None:
    command = PLUGIN_COMMANDS[name].load()
    shown = [line.strip() for line in (command.epilog or "").splitlines()]
    lines = [line.removeprefix("envkit ") for line in shown if line.startswith("envkit ")]
    assert len(lines) >= 2
    for line in lines:
        first, *arguments = shlex.split(line)
        assert first == name
        assert not command.make_context(name, arguments).args
    text = " ".join(run_envkit(name, "--help").out.split())
    assert all(f"envkit {line}" in text for line in lines)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rollot", "canary-v0"], "Did you mean 'rollout'?"),
        (["serve-serch"], "Did you mean 'serve-search'?"),
        (["rollout", "canary-v0", "--enigne", "sglang"], "--engine"),
        (["rollout", "canary-v0", "--on-fualt", "x"], "--on-fault"),
        pytest.param(
            ["info", "reasoning_gym/sudko-v0"],
            "Did you mean 'reasoning_gym/sudoku-v0'?",
            marks=pytest.mark.slow,  # its library is
        ),
        (["list", "reasoning_gm"], "Did you mean 'reasoning_gym'?"),
        (["info", "geo3kk"], "Did you mean 'geo3k-v0'?"),
        (["rollout", "canary-v0", "--wrap", "blank-imge"], "Did you mean 'blank-image'?"),
        (["export", "canary-v0", "--format", "vrl", "--out", "x"], "Did you mean 'verl'?"),
        (["conformance", "--adapter", "trll"], "Did you mean 'trl'?"),
        (
            ["rollout", "canary-v0", "--policy", "oracle", "--env-kwargs", "max_trns=3"],
            "Did you mean 'max_turns'?",
        ),
    ],
)
def test_a_misspelt_word_gets_a_suggestion(arguments: list[str], hint: str) -> None:
    shown = run_envkit(*arguments)
    assert shown.code in (1, 2)
    words = shown.err.replace("│", " ").split()
    assert hint in " ".join(words)


@pytest.mark.parametrize(
    ("name", "argument", "meant"),
    [("inject-faults", "rat", "rate"), ("curriculum", "windw", "window")],
)
def test_a_misspelt_wrapper_argument_gets_a_suggestion(
    name: str, argument: str, meant: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"Did you mean '{meant}'"):
        wrapping(name, {argument: 1})


def test_completion_knows_environments_and_engines() -> None:
    assert complete_id("canary") == ["canary-v0"]
    assert complete_id("nothing") == []
    assert complete_engine("sg") == ["sglang"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ver", "verify"),
        ("info geo", "geo3k-v0"),
        pytest.param("certify gym", "gymnasium-v0", marks=pytest.mark.slow),
        pytest.param("rollout canary-v0 --res", "--resume", marks=pytest.mark.slow),
        pytest.param("rollout canary-v0 --sink pro", "prometheus", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_shell_gets_completions_of_a_word(typed: str, offered: str) -> None:
    words = f"envkit {typed}"
    environment = {
        **os.environ,
        "_ENVKIT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from envkit.cli import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert offered in done.stdout, done.stderr
