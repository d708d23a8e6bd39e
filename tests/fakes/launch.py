"""The launch files of examples/geo3k, started with programs on PATH that note their arguments."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fakes.installed import ROOT, install_metadata

EXAMPLES = ROOT / "examples" / "geo3k"
SCRIPTS = ("run.sh", "run_small.sh")
RUNS = [(script, paper) for script in SCRIPTS for paper in ("", "1", "2")]
"""Each script without `PAPER`, and with its two settings."""
SIZES = {"": (3, 4096), "1": (3, 4096), "2": (20, 32000)}
"""Turns and tokens of a run, by `PAPER`."""

_SHIM = """#!/bin/bash
name="$(basename "$0")"
if [[ "$name" == python3 && ("$1" == -c || "$1" == */model_args_utils.py) ]]; then
  exec {python} "$@"
fi
printf '%s\\0' "$@" > "$(mktemp "$RECORDED/$name.XXXXXX")"
"""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one start of a script came to."""

    words: list[str]
    """Arguments of the last program: the trainer's Python, `accelerate` or `ray`."""
    exports: list[list[str]]
    """Arguments of each `envkit`."""
    folder: Path
    """The script's `OUT`."""


def start(
    script: str,
    folder: Path,
    *arguments: str,
    program: str = "python3",
    **variables: str,
) -> Launch:
    """Run a launch file with recorders for programs and return what they got.

    Args:
        script: Below examples/geo3k, such as "verl/run.sh".
        folder: An empty one.
        arguments: Of the script.
        program: The one that the script ends in.
        variables: Environment variables; an empty one is left out.
    """
    done = run(script, folder, arguments, variables)
    assert done.returncode == 0, done.stderr[-3000:]
    calls = {name: recorded(folder, name) for name in (program, "envkit")}
    (words,) = calls[program]
    return Launch(words=words, exports=calls["envkit"], folder=folder / "out")


def run(
    script: str, folder: Path, arguments: Sequence[str] = (), variables: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    """Run a launch file with recorders for programs."""
    programs = folder / "bin"
    programs.mkdir()
    (folder / "recorded").mkdir()
    for name in ("python3", "accelerate", "ray", "envkit"):
        path = programs / name
        path.write_text(_SHIM.format(python=sys.executable))
        path.chmod(0o755)
    kept = ("PATH", "HOME", "LANG")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    given = {"OUT": str(folder / "out"), "RECORDED": str(folder / "recorded"), **variables}
    environment |= {name: value for name, value in given.items() if value}
    return subprocess.run(
        ["bash", str(EXAMPLES / script), *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def recorded(folder: Path, name: str) -> list[list[str]]:
    """Return the arguments of each call of a program, in no order."""
    texts = [path.read_text() for path in sorted((folder / "recorded").glob(f"{name}.*"))]
    return [text.removesuffix("\0").split("\0") for text in texts]


def export(words: Sequence[str], folder: Path, count: int = 2) -> Path:
    """Run a recorded `envkit export` with few tasks and return the file that it wrote."""
    words = list(words)
    if "--rows" in words:
        words[words.index("--rows") + 1] = str(count)
    metadata = folder / "metadata"
    if not metadata.exists():
        metadata.mkdir()
        install_metadata(metadata)
    paths = [str(metadata), *(str(ROOT / one) for one in (".", "envs", "adapters"))]
    code = "import sys; from envkit.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, check=True, capture_output=True
    )
    return Path(words[words.index("--out") + 1])
