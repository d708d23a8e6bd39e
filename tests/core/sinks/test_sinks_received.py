"""A sink gets each finished episode once, over all processes that write to it."""

from pathlib import Path

import pytest
from fakes.trajectories import example

from envkit.errors import StorageError
from envkit.sinks import GuardedSinks, Received
from envkit.trajectory import StopReason, Trajectory


class Counting:
    """Keeps what it gets; the episodes it is given fail."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.rows: list[str] = []
        self.metrics = 0

    def write(self, trajectory: Trajectory) -> None:
        if trajectory.episode_id in self.failing:
            raise OSError("no space")
        self.rows.append(trajectory.episode_id)

    def write_metrics(self, metrics: object, step: int | None = None) -> None:
        self.metrics += 1

    def close(self) -> None:
        pass


def process(file: Path, sink: Counting, *rows: Trajectory, step: int | None = None) -> None:
    """Write rows and metrics as one process of a run does."""
    with GuardedSinks({"sink": sink}, received={"sink": Received(file)}) as sinks:
        for row in rows:
            sinks.write(row)
        sinks.write_metrics({"episodes": float(len(rows))}, step)


def test_each_finished_episode_arrives_once(tmp_path: Path) -> None:
    sink, file = Counting(), tmp_path / "received.txt"
    rows = [example(n) for n in range(4)]
    aborted = example(2, stop_reason=StopReason.ABORTED)
    process(file, sink, rows[0], rows[1], aborted)
    process(file, sink, *rows)
    process(file, sink, *rows)

    assert sink.rows == [f"episode-{n}" for n in range(4)]
    assert sink.metrics == 2  # the third process had nothing new
    assert Received(file).count == 4


def test_what_a_sink_failed_to_take_arrives_later(tmp_path: Path) -> None:
    file, rows = tmp_path / "received.txt", [example(n) for n in range(3)]
    process(file, Counting("episode-1"), *rows)
    sink = Counting()
    process(file, sink, *rows)

    assert sink.rows == ["episode-1"]


class Batching(Counting):
    """Sends two episodes at a time."""

    has_unsent = False

    def write(self, trajectory: Trajectory) -> None:
        self.has_unsent = not self.has_unsent
        super().write(trajectory)


def test_a_sink_that_sends_batches_has_only_what_it_sent(tmp_path: Path) -> None:
    file, rows = tmp_path / "received.txt", [example(n) for n in range(6)]
    sinks = GuardedSinks({"sink": Batching("episode-3")}, received={"sink": Received(file)})
    for row in rows[:5]:  # the second batch is lost, and a kill loses the fifth episode
        sinks.write(row)
    assert [row.episode_id in Received(file) for row in rows] == [True, True, *[False] * 4]
    sink = Batching()
    process(file, sink, *rows)

    assert sink.rows == [f"episode-{n}" for n in range(2, 6)]
    assert Received(file).count == 6


def test_metrics_of_a_training_step_always_arrive(tmp_path: Path) -> None:
    sink, file = Counting(), tmp_path / "received.txt"
    for step in (1, 2):
        process(file, sink, example(0), step=step)

    assert (sink.rows, sink.metrics) == (["episode-0"], 2)


def test_metrics_that_a_killed_process_did_not_write_arrive_later(tmp_path: Path) -> None:
    sink, file = Counting(), tmp_path / "received.txt"
    with Received(file) as received:
        received.add("episode-0")
    process(file, sink, example(0))

    assert (sink.rows, sink.metrics) == ([], 1)


def test_a_cut_line_costs_only_its_episode(tmp_path: Path) -> None:
    sink, file = Counting(), tmp_path / "received.txt"
    process(file, sink, *(example(n) for n in range(3)))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:5])  # key, two ids and a part of the third
    process(file, sink, *(example(n) for n in range(4)))

    assert sink.rows[3:] == ["episode-2", "episode-3"]
    assert Received(file).key.encode() == lines[0].strip()
    assert "episode-3" in Received(file)


def test_an_id_may_be_any_text(tmp_path: Path) -> None:
    names = ["null", "", "two\nlines", "half \ud83d", "a" * 16]
    for name in names:
        with Received(tmp_path / "received.txt") as received:
            assert name not in received
            received.add(name)

    again = Received(tmp_path / "received.txt")
    assert all(name in again for name in names)
    assert (again.count, again.has_metrics) == (5, False)


@pytest.mark.parametrize("content", [b"", b"\n", b"mine\n", b"\xff" * 40])
def test_another_file_is_replaced_by_the_first_delivery(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "received.txt"
    file.write_bytes(content)
    with Received(file) as received:
        assert received.count == 0
        assert file.read_bytes() == content
        received.add("one")

    assert (Received(file).count, Received(file).key) == (1, received.key)


def test_a_new_run_ignores_the_record_of_the_run_that_it_replaces(tmp_path: Path) -> None:
    file = tmp_path / "received.txt"
    process(file, Counting(), example(0))
    old = Received(file)
    with Received(file, is_new=True) as received:
        assert "episode-0" not in received
        assert "episode-0" in Received(file)  # until the new run delivers
        received.add("other")

    assert (Received(file).count, Received(file).key != old.key) == (1, True)


def test_a_link_in_a_foreign_run_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "received.txt").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match=r"received\.txt"):
        Received(tmp_path / "received.txt")
    assert (tmp_path / "other").read_text() == "mine"
