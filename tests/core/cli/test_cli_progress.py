"""Progress whose reader goes away: the rollout goes on."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.command import start_envkit
from fakes.models import tiny_model_dir
from fakes.trajectories import build

from envkit.cli.progress import LiveBar
from envkit.rollout import RolloutState
from envkit.trajectory import load, verify_file

BEFORE = "from fakes.envs import register_toys\nregister_toys()"


@pytest.mark.parametrize("lines", [0, 2])
def test_rollout_goes_on_when_nobody_reads_its_progress(tmp_path: Path, lines: int) -> None:
    process = start_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", 40, "--concurrency", 1, "--out", tmp_path / "run", before=BEFORE,
    )  # fmt: skip
    assert process.stderr is not None
    for _ in range(lines):
        process.stderr.readline()
    process.stderr.close()
    assert process.stdout is not None
    out = process.stdout.read()
    assert process.wait(timeout=120) == 0, out
    process.stdout.close()
    assert len(load(tmp_path / "run")) == 40
    assert verify_file(tmp_path / "run").is_sound


async def test_bar_of_a_terminal_that_went_away_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    gone: Any = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", gone)
    monkeypatch.setenv("FORCE_COLOR", "1")
    state = RolloutState()
    state.total = 2
    with LiveBar(state) as bar:
        bar.finished((build(()),))
        bar.tell("a line")
        bar.draw()
    with pytest.raises(BrokenPipeError):
        gone.close()
