"""TensorBoard's own reader finds what the sink wrote."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.budget import examples
from fakes.trajectories import example, quick, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from envkit.errors import StorageError
from envkit.metrics import aggregate, histograms
from envkit.trajectory import Trajectory
from envkit_sinks import TensorBoardSink


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
