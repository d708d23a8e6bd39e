"""The job scripts of the page on clusters run as written, with Slurm's part played by the test."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.pages import blocks

from envkit.trajectory import load, verify_file

PAGE = Path(__file__).parents[2] / "docs/running/clusters.md"
SCRIPT, ARRAY, MERGE, _ = [code for kind, code in blocks(PAGE) if kind == "bash"]
_EPISODES = "-n 4096"
_REST = SCRIPT.partition("--quiet &\n")[2]
"""What the page says is the same for both scripts."""


@pytest.fixture
def bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with `envkit` and `scontrol` as commands."""
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    main = "import sys; from envkit.cli import main; main(sys.argv[1:])"
    _write(programs / "envkit", f"exec {sys.executable} -c '{main}' \"$@\"")
    _write(programs / "scontrol", 'echo "$@" >> scontrol.log')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return tmp_path


def _write(file: Path, line: str) -> None:
    file.write_text(f"#!/bin/bash\n{line}\n")
    file.chmod(0o755)


def start(script: str, **variables: object) -> "subprocess.Popen[str]":
    values = {name: str(value) for name, value in variables.items()}
    return subprocess.Popen(
        ["bash", "-c", script],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **values},
    )


@pytest.mark.slow
def test_job_that_runs_out_of_time_is_put_back_and_completed_by_the_next(bash: Path) -> None:
    script = SCRIPT.replace(_EPISODES, "-n 400")
    rows, requeued = bash / "runs/base/trajectories.jsonl", bash / "scontrol.log"
    with start(script, SLURM_JOB_ID=71) as job:
        while not rows.exists() or rows.read_bytes().count(b"\n") < 20:
            assert job.poll() is None, job.communicate()
            time.sleep(0.02)
        job.send_signal(signal.SIGUSR1)
        said = job.communicate(timeout=240)[0]
    assert job.returncode == 138, said
    assert requeued.read_text() == "requeue 71\n"
    stored = {one.episode_id for one in load("runs/base")}
    for _ in range(2):
        with start(script, SLURM_JOB_ID=71) as job:
            said = job.communicate(timeout=240)[0]
        assert job.returncode == 0, said
    assert "is finished: all 400 episodes are done" in said
    assert requeued.read_text() == "requeue 71\n"
    assert len(load("runs/base")) == 400
    assert stored <= {one.episode_id for one in load("runs/base")}


@pytest.mark.slow
def test_array_plays_the_shards_that_the_merge_joins(bash: Path) -> None:
    count = int(re.findall(r"--array=0-(\d)", ARRAY)[0]) + 1
    script = ARRAY.replace(_EPISODES, "-n 128") + _REST
    for number in range(count):
        variables = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_TASK_COUNT": count}
        with start(script, **variables) as job:
            said = job.communicate(timeout=120)[0]
        assert job.returncode == 0, said
    (command,) = re.findall(r"--wrap '(.*)'", MERGE)
    with start(command) as job:
        said = job.communicate(timeout=120)[0]
    assert job.returncode == 0, said
    assert len(load("runs/merged")) == 128
    assert verify_file("runs/merged").is_sound
