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


def test_completion_knows_environments_and_engines() -> None:
    assert complete_id("canary") == ["canary-v0"]
    assert complete_id("nothing") == []
    assert complete_engine("sg") == ["sglang"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ver", "verify"), ("check gym", "gymnasium-v0"), ("info geo", "geo3k-v0")],
)
def test_shell_is_told_how_a_word_may_end(typed: str, offered: str) -> None:
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
