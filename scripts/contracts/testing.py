"""Run pytest for one project or server, with a time limit."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from environment import say

ROOT = Path(__file__).resolve().parents[2]
EXIT_TESTS = 1


def run_tests(
    marker: str,
    python: str,
    tests: str,
    arguments: Sequence[str],
    *,
    variables: Mapping[str, str],
    timeout_s: float,
) -> int:
    """Run the tests with a marker and return pytest's status, 1 if they did not finish in time.

    Args:
        marker: The marker, also used in output.
        python: The interpreter.
        tests: File or folder to test unless the arguments name one.
        arguments: Arguments of pytest.
        variables: All environment variables of the process.
        timeout_s: Seconds after which pytest is killed.
    """
    started = time.monotonic()
    is_named = any((ROOT / argument.partition("::")[0]).exists() for argument in arguments)
    command = [python, "-m", "pytest", "-m", marker, *([] if is_named else [tests])]
    process = subprocess.Popen(
        [*command, "--durations=5", *arguments], cwd=ROOT, env=dict(variables)
    )
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        say(marker, f"tests: not finished after {timeout_s:g} s")
        status = EXIT_TESTS
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    say(marker, f"tests: {time.monotonic() - started:.0f} s, status {status}")
    return status
