"""Output whose reader goes away: the rollout goes on, and its exit code says so."""

import os
import pty
import sys
from pathlib import Path
from typing import IO

import pytest
from fakes.command import start_envkit
from fakes.matrix import share
from fakes.models import tiny_model_dir

from envkit.cli.console import note, say
from envkit.cli.rich_console import PrintableConsole
from envkit.trajectory import load, verify_file

BEFORE = "from fakes.envs import register_toys\nregister_toys()"


@pytest.mark.parametrize(
    ("lines", "closed"),
    share([(2, ("stderr",)), (0, ("stdout",)), (0, ("stdout", "stderr"))], of=3),
)
def test_rollout_goes_on_when_nobody_reads_its_output(
    tmp_path: Path, lines: int, closed: tuple[str, ...]
) -> None:
    process = start_envkit(
        "rollout", "toy-echo-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", 40, "--concurrency", 1, "--out", tmp_path / "run", before=BEFORE,
    )  # fmt: skip
    assert process.stderr is not None
    for _ in range(lines):
        process.stderr.readline()
    for name in closed:
        getattr(process, name).close()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(load(tmp_path / "run")) == 40
    assert verify_file(tmp_path / "run").is_sound
    if "stdout" not in closed:
        assert "all sound" in out


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> IO[str]:
    """Standard error and output as a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def test_lines_without_a_reader_are_dropped(broken: IO[str]) -> None:
    for _ in range(3):
        say("a result")
        note("a note")
    broken.close()  # would raise if anything were left to write


def test_drawing_without_a_reader_is_dropped(broken: IO[str]) -> None:
    console = PrintableConsole(stderr=True, force_terminal=True)
    for _ in range(3):
        console.print("a bar")
    broken.close()


def test_lines_to_a_terminal_that_went_away_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", stream)
    os.close(ours)
    for _ in range(3):
        note("a note")
    stream.close()


def test_drawing_to_a_terminal_that_went_away_is_dropped() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", buffering=1) as stream:
        os.close(ours)
        console = PrintableConsole(file=stream, force_terminal=True)
        for _ in range(3):
            console.print("a bar")


def test_output_to_a_full_disk_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OSError, match="No space left"):
            say("a result")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.close()
