"""Sinks of a run that is stopped and resumed: each finished episode once, steps never go back."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.command import Outcome
from fakes.hostile_runs import EPISODES, RUN, RunEnv, Sent, resume, rollout
from fakes.wandb_file import WandbFile
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from envkit.trajectory import load
from envkit_sinks import TensorBoardSink

pytest_plugins = ["fakes.run_fixtures"]
pytestmark = pytest.mark.usefixtures("own_folder")
BOARD = "--sink=tensorboard=board"
PARQUET = "--sink=parquet=run.parquet"


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def stopped(*sinks: object) -> int:
    """Play until Ctrl-C and return the number of finished episodes; others are under way."""
    RunEnv.arm(Sent(signal.SIGINT), at=14)
    assert rollout(*sinks).code == 130
    RunEnv.arm(None)
    return sum(one.stop_reason.value != "aborted" for one in load(RUN))


def steps_of(tag: str, board: str = "board") -> list[int]:
    """Return the steps of everything in a TensorBoard folder under a tag, in the order of time.

    Files are read by name, which is not that order if one process opens ten in a second.
    """
    reader: Any = EventAccumulator(board, size_guidance={"tensors": 0})
    reader.Reload()
    return [event.step for event in sorted(reader.Tensors(tag), key=lambda one: one.wall_time)]


def test_board_shows_each_episode_once_however_often_the_run_is_resumed() -> None:
    done = stopped(BOARD)
    assert 0 < done < EPISODES
    assert steps_of("episode/turns") == [*range(1, done + 1)]
    for _ in range(3):
        assert resume(RUN, BOARD).code == 0
        assert steps_of("episode/turns") == [*range(1, EPISODES + 1)]
        assert steps_of("reward/mean") == [done, EPISODES]
        histograms = steps_of("histogram/turns")
        assert histograms == sorted(histograms)


def test_a_new_or_deleted_board_gets_the_whole_run() -> None:
    done = stopped(BOARD)
    assert resume(RUN, "--sink=tensorboard=other").code == 0
    assert steps_of("episode/turns", "other") == [*range(1, EPISODES + 1)]
    assert len(steps_of("episode/turns")) == done
    assert resume(RUN, BOARD).code == 0
    assert steps_of("episode/turns") == [*range(1, EPISODES + 1)]
    shutil.rmtree("board")
    assert resume(RUN, BOARD).code == 0
    assert steps_of("episode/turns") == [*range(1, EPISODES + 1)]
    assert steps_of("reward/mean") == [EPISODES]


def test_a_board_that_another_run_used_counts_on() -> None:
    assert rollout(BOARD, episodes=2, out="first").code == 0
    assert rollout(BOARD, episodes=2).code == 0
    assert rollout(BOARD, "--overwrite", episodes=2).code == 0

    assert steps_of("episode/turns") == [1, 2, 3, 4, 5, 6]
    assert steps_of("reward/mean") == [2, 4, 6]


def test_a_resume_delivers_what_a_sink_failed_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(sink: TensorBoardSink, trajectory: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(TensorBoardSink, "write", write)
        assert rollout(BOARD).code == 1
    assert resume(RUN, BOARD).code == 0
    assert steps_of("episode/turns") == [*range(1, EPISODES + 1)]


def test_parquet_file_holds_the_stored_episodes_after_each_command() -> None:
    stopped(PARQUET)
    for code in (130, 0, 0):
        stored = [one.episode_id for one in load(RUN)]
        assert pq.read_table("run.parquet")["episode_id"].to_pylist() == stored
        assert resume(RUN, PARQUET).code == 0, code
    assert len(stored) == EPISODES


def test_each_episode_is_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    RunEnv.arm(Sent(signal.SIGINT), at=14)
    shown = [rollout("--sink=opentelemetry")]
    RunEnv.arm(None)
    shown += [resume(RUN, "--sink=opentelemetry"), resume(RUN, "--sink=opentelemetry")]
    episodes = [one for each in shown for one in spans(each, "episode")]
    ids = [span["attributes"]["gen_ai.conversation.id"] for span in episodes]

    assert sorted(ids) == sorted(one.episode_id for one in load(RUN))
    assert [len(spans(each, "metrics")) for each in shown] == [1, 1, 0]


def test_a_run_that_replaces_another_has_no_record_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    assert len(spans(rollout("--sink=opentelemetry", episodes=2), "episode")) == 2
    assert rollout("--overwrite", episodes=2).code == 0
    assert not list(RUN.glob("received-*"))
    assert len(spans(resume(RUN, "--sink=opentelemetry"), "episode")) == 2
    assert len(spans(rollout("--overwrite", "--sink=opentelemetry", episodes=2), "episode")) == 2
    assert spans(resume(RUN, "--sink=opentelemetry"), "episode") == []


def spans(shown: Outcome, name: str) -> list[dict[str, Any]]:
    lines = [line for line in shown.err.splitlines() if line.startswith('{"name"')]
    return [span for span in map(json.loads, lines) if span["name"] == name]


@pytest.mark.slow
def test_offline_folders_of_wandb_are_one_run_with_each_episode_once() -> None:
    done = stopped("--sink=wandb")
    first = WandbFile(Path())
    Path("wandb").rename("before")
    assert resume(RUN, "--sink=wandb").code == 0
    second = WandbFile(Path())
    numbers = [
        row["episode/number"]
        for row in first.history() + second.history()
        if "episode/turns" in row
    ]

    assert numbers == [*range(1, EPISODES + 1)]
    assert done < EPISODES
    assert first.run_id() == second.run_id()
    calls = [*first.steps(), *second.steps()]
    assert calls == sorted(set(calls))
    Path("wandb").rename("after")
    assert resume(RUN, "--sink=wandb").code == 0
    assert WandbFile(Path()).history() == []
