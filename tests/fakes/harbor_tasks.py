"""Task folders in Harbor's format, as small as a test needs."""

from collections.abc import Mapping
from pathlib import Path

ONE = "echo 1 > /logs/verifier/reward.txt"
ZERO = "echo 0 > /logs/verifier/reward.txt"
CHECK = f'if [ "$(cat /app/out.txt)" = hello ]; then {ONE}; else {ZERO}; fi'
"""A verifier for the default instruction."""
DOCKERFILE = "FROM ubuntu:24.04\nWORKDIR /app\n"


def write_task(
    root: Path,
    name: str = "hello",
    *,
    test: str | None = CHECK,
    solution: str | None = "echo hello > /app/out.txt",
    config: str = "[verifier]\ntimeout_sec = 30\n",
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a task folder and return it.

    Args:
        root: Where it is made.
        name: Its name.
        test: Lines of tests/test.sh; None leaves it out.
        solution: Lines of solution/solve.sh; None leaves it out.
        config: The text of task.toml.
        files: More files by their path, or others instead of those above.
    """
    texts = {
        "task.toml": config,
        "instruction.md": "Write hello to /app/out.txt\n",
        "environment/Dockerfile": DOCKERFILE,
    }
    if test is not None:
        texts["tests/test.sh"] = f"#!/bin/bash\n{test}\n"
    if solution is not None:
        texts["solution/solve.sh"] = f"#!/bin/bash\n{solution}\n"
    folder = root / name
    for path, text in {**texts, **(files or {})}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
