"""Run an evaluator in a process with limits, since it parses files that the policy wrote.

The parent sends one pickled `Comparison` on stdin; the child answers in JSON.
"""

import json
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from envkit.grading import UngradedError, finite_reward
from envkit_linux_desktop.osworld.evaluators import FUNCTIONS, File, UnreadableError
from envkit_sandbox.limited import run_limited

_PROGRAM: Final = "from envkit_linux_desktop.osworld.grading import main; main()"
_SECONDS: Final = 60
"""Processor time of one evaluator."""
_MEMORY: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The arguments of one evaluator."""

    function: str
    result: Any
    expected: Any
    options: Mapping[str, Any]


def score(comparison: Comparison) -> float:
    """Return an evaluator's score; 0.0 if the result's bytes are broken.

    Raises:
        UngradedError: The evaluator, its rules or an expected file failed.
        EnvFault: The evaluator hung or was killed.
    """
    name = f"the evaluator {comparison.function!r}"
    printed = run_limited(
        [sys.executable, "-c", _PROGRAM],
        pickle.dumps(comparison),
        what=name,
        environment={
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PATH": os.defpath,
        },
    )
    if printed is None:
        return 0.0
    answer: dict[str, Any] = json.loads(printed)
    if "score" not in answer:
        raise UngradedError(f"{name} failed: {answer['failed']}")
    return finite_reward(answer["score"])


def evaluate(comparison: Comparison) -> float:
    """Run an evaluator in this process.

    Raises:
        UnreadableError: A file of the task is broken; one of the policy's scores 0.0.
        Exception: The evaluator failed, also with the expected file as the result.
    """
    run = FUNCTIONS[comparison.function].run
    try:
        found = run(comparison.result, comparison.expected, comparison.options)
    except UnreadableError as error:
        if error.file.is_result:
            return 0.0
        raise
    except Exception:
        # A document may parse and still have parts that the library cannot read. If the task's own
        # file passes in its place, the policy's file is at fault, else the evaluator.
        values = (comparison.result, comparison.expected)
        files = [value for value in values if isinstance(value, File)]
        own = next((file for file in files if not file.is_result), None)
        if own is None:
            if len(files) < len(values):
                raise
            return 0.0  # the policy left both
        run(replace(own, is_result=True), own, comparison.options)
        return 0.0
    return min(max(float(found), 0.0), 1.0)


def main() -> None:
    """Answer one comparison; the child's program."""
    import resource  # absent on Windows, where the package is only listed

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    comparison = cast(Comparison, pickle.load(sys.stdin.buffer))
    try:
        answer: dict[str, Any] = {"score": evaluate(comparison)}
    except MemoryError:
        answer = {"score": 0.0}
    except Exception as error:  # noqa: BLE001  # the parent raises it as a fault
        answer = {"failed": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)
