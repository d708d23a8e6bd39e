"""Runs the real command line: in this process, or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from typer.testing import CliRunner

from envkit.cli.app import app


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def last_error(self) -> str:
        """The last line on standard error."""
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


def run_envkit(*arguments: object, typed: str | None = None) -> Outcome:
    """Run the command in this process; an error that it does not expect is raised here.

    Args:
        arguments: As on the command line.
        typed: Standard input; None is empty.
    """
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(code=result.exit_code, out=result.stdout, err=result.stderr)


_HEAR_CTRL_C = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A job in a shell's background has the signal ignored, and so would its children."""


def start_envkit(
    *arguments: object, before: str = "", under: Sequence[str] = ()
) -> "subprocess.Popen[str]":
    """Start the command in its own process, with pipes for its output.

    Args:
        arguments: As on the command line.
        before: Python statements to run first, such as the registration of an environment.
        under: A program that starts it, with its arguments.
    """
    code = f"{_HEAR_CTRL_C}{before}\nimport sys\nfrom envkit.cli import main\nmain(sys.argv[1:])"
    return subprocess.Popen(
        [*under, sys.executable, "-c", code, *(str(argument) for argument in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_test_paths())},
    )


def _test_paths() -> Sequence[str]:
    return [path for path in sys.path if path]
