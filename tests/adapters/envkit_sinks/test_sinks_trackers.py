"""TensorBoard's own reader and W&B's offline file hold the run."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.budget import examples
from fakes.trajectories import example, quick, trajectories
from fakes.wandb_file import WandbFile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from envkit.errors import ConfigurationError, StorageError
from envkit.metrics import aggregate, histograms
from envkit.trajectory import StopReason, Trajectory
from envkit_sinks import TensorBoardSink, WandbSink
from envkit_sinks.wandb import chosen_mode, has_api_key


class Board:
    """What TensorBoard reads from a directory."""

    def __init__(self, directory: Path) -> None:
        everything = {"tensors": 0, "scalars": 0, "images": 0, "histograms": 0}
        self._reader: Any = EventAccumulator(str(directory), size_guidance=everything)
        self._reader.Reload()

    def tags(self, plugin: str) -> set[str]:
        """Return the tags that a tab of TensorBoard shows."""
        return set(self._reader.PluginTagToContent(plugin))

    def values(self, tag: str) -> list[tuple[int, Any]]:
        """Return step and value of everything under a tag."""
        return [(e.step, make_ndarray(e.tensor_proto)) for e in self._reader.Tensors(tag)]

    def last(self, tag: str) -> float:
        return float(self.values(tag)[-1][1])


def test_board_shows_scalars_histograms_and_images(tmp_path: Path) -> None:
    rows = [example(n) for n in range(3)]
    sink = TensorBoardSink(tmp_path, shown_episodes=2)
    for row in rows:
        sink.write(row)
    sink.write_metrics(aggregate(rows))
    sink.close()
    sink.close()
    board = Board(tmp_path)
    assert {"episode/reward", "episode/turns", "reward/mean"} <= board.tags("scalars")
    assert board.tags("histograms") == {f"histogram/{name}" for name in histograms(rows)}
    assert [step for step, _ in board.values("episode/reward")] == [1, 2, 3]
    assert board.tags("images") == {"episode/images"}
    pictures = board.values("episode/images")
    assert [step for step, _ in pictures] == [1, 2]
    shown = PillowImage.open(io.BytesIO(pictures[0][1][2]))
    assert np.array_equal(np.asarray(shown.convert("RGB")), rows[0].images()[1].array())
    assert len(pictures[0][1]) == 2 + 2  # the first image comes again as the last


def test_metrics_of_steps_are_at_their_step_with_their_own_histograms(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for step in (10, 20):
        sink.write(example(step, duration_seconds=float(step)))
        sink.write_metrics({"loss": step / 10}, step=step)
    sink.close()
    board = Board(tmp_path)
    assert [(step, float(value)) for step, value in board.values("loss")] == [(10, 1), (20, 2)]
    seconds = board.values("histogram/seconds/episode")
    assert [(step, value[:, 2].sum()) for step, value in seconds] == [(10, 1), (20, 1)]
    assert seconds[0][1][0, 0] < 10 < seconds[0][1][-1, 1]


@settings(quick, max_examples=examples(8))
@given(rows=st.lists(trajectories(), max_size=4))
def test_board_has_the_metrics_and_histograms_of_the_run(
    rows: list[Trajectory], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("board")
    sink = TensorBoardSink(directory)
    for row in rows:
        sink.write(row)
    sink.write_metrics(aggregate(rows))
    sink.close()
    board = Board(directory)
    for name, value in aggregate(rows).items():
        assert board.last(name) == np.float32(value), name
    for name, histogram in histograms(rows).items():
        (_, read), *_ = board.values(f"histogram/{name}")
        assert tuple(read[:, 0]) == histogram.edges[:-1]
        assert tuple(read[:, 1]) == histogram.edges[1:]
        assert tuple(read[:, 2]) == histogram.counts


def test_a_written_episode_is_in_the_file_even_if_the_process_is_killed(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(example())
    assert [step for step, _ in Board(tmp_path).values("episode/turns")] == [1]
    sink.close()


@pytest.mark.parametrize("end", [b"", b"\x10", bytes(12), b"\xff" * 40])
def test_episode_numbers_continue_after_files_that_exist(end: bytes, tmp_path: Path) -> None:
    for start in (0, 150):  # the step takes two bytes then
        sink = TensorBoardSink(tmp_path, shown_episodes=1)
        for number in range(150):
            sink.write(example(number % 3))
        sink.write_metrics({"loss": 1.0}, step=10**6)
        sink.close()
        steps = sorted(step for step, _ in Board(tmp_path).values("episode/turns"))
        assert steps == [*range(1, start + 151)]
    (last, *_) = sorted(tmp_path.iterdir(), reverse=True)
    last.write_bytes(last.read_bytes() + end)  # what a process was writing when it was killed
    sink = TensorBoardSink(tmp_path)
    sink.write(example())
    sink.close()
    assert max(step for step, _ in Board(tmp_path).values("episode/turns")) == 301


def test_a_directory_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="TensorBoard"):
        TensorBoardSink(tmp_path / "file" / "board")


ROWS = [
    *(example(n, duration_seconds=0.5 + n, group_id=f"g{n // 2}") for n in range(4)),
    example(4, stop_reason=StopReason.ENV_FAULT),
]


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WandbFile:
    """One run of five episodes; starting one takes seconds."""
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NETRC", str(folder / "netrc"))
        patch.delenv("WANDB_API_KEY", raising=False)
        sink = WandbSink(
            project="demo", config={"seed": 7, "limits": {"max_turns": 3}}, directory=folder,
            shown_episodes=2,
        )  # fmt: skip
        assert sink.mode == "offline"
        for row in ROWS:
            sink.write(row)
        sink.write_metrics(aggregate(ROWS), step=12)
        sink.write(ROWS[0])
        sink.close()
        sink.close()
    return WandbFile(folder)


@pytest.mark.slow
def test_metrics_read_back_are_those_of_the_run(run: WandbFile) -> None:
    (row,) = [row for row in run.history() if "reward/mean" in row]
    metrics = aggregate(ROWS)
    assert {name: row[name] for name in metrics} == metrics
    assert row["step"] == 12
    assert run.over_step()["reward/mean"] == "step"


@pytest.mark.slow
def test_every_episode_is_a_point(run: WandbFile) -> None:
    rows = [row for row in run.history() if "episode/turns" in row]
    assert [row["episode/number"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.get("episode/reward") for row in rows] == [1.0, 1.0, 1.0, 1.0, None, 1.0]
    assert [row["episode/faulted"] for row in rows] == [0, 0, 0, 0, 1, 0]


@pytest.mark.slow
def test_histograms_are_those_of_the_step(run: WandbFile) -> None:
    shown = [row for row in run.history() if "histogram/turns" in row]
    assert len(shown) == 2
    for name, histogram in histograms(ROWS).items():
        read = shown[0][f"histogram/{name}"]
        assert read["_type"] == "histogram"
        assert read["values"] == list(histogram.counts)
        assert read["bins"] == pytest.approx(histogram.edges)
    assert sum(shown[1]["histogram/turns"]["values"]) == 1


@pytest.mark.slow
def test_some_episodes_are_shown_with_their_last_images(run: WandbFile) -> None:
    row: dict[str, Any] = next(row for row in run.history() if "shown_episodes" in row)
    table = json.loads((run.folder / "files" / row["shown_episodes"]["path"]).read_text())
    first = dict(zip(table["columns"], table["data"][0], strict=True))
    assert len(table["data"]) == 2
    assert first["episode_id"] == "episode-0"
    assert first["stop_reason"] == "terminated"
    assert first["last_reply"] == "a reply"
    named = row["shown_images"]
    assert named["captions"] == ["episode-0: 1.0, terminated", "episode-1: 1.0, terminated"]
    shown = PillowImage.open(run.folder / "files" / named["filenames"][0]).convert("RGB")
    assert np.array_equal(np.asarray(shown), ROWS[0].images()[-1].array())


@pytest.mark.slow
def test_configuration_is_kept(run: WandbFile) -> None:
    config = run.config()
    assert config["seed"] == 7
    assert config["limits"] == {"max_turns": 3}


def test_mode_follows_the_key_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert chosen_mode(None) == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert chosen_mode(None) == "disabled"
    assert chosen_mode("offline") == "offline"
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 0\n")
    assert chosen_mode(None) == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_api_key()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert chosen_mode(None) == "online"


@pytest.mark.slow
def test_online_without_a_key_is_refused_and_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ConfigurationError, match="WANDB_MODE=offline"):
        WandbSink()
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(ConfigurationError, match="onlin"):
        WandbSink()
