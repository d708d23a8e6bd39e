"""The hash chain: any change of the ledger shows, and says where."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fakes.trajectories import example, picture, quick, trajectories
from fakes.trees import Sums, grow
from hypothesis import given
from hypothesis import strategies as st

from envkit.trajectory import Segment, StopReason, Trajectory, certify


def _with(trajectory: Trajectory, index: int, segment: Segment) -> Trajectory:
    segments = list(trajectory.segments)
    segments[index] = segment
    return replace(trajectory, segments=tuple(segments))


@quick
@given(trajectories())
def test_certificate_of_equal_trajectories_is_equal(trajectory: Trajectory) -> None:
    certificate = certify(trajectory)
    assert certificate == certify(replace(trajectory))
    assert certificate.difference(certify(trajectory)) is None
    assert len(certificate.links) == len(trajectory.segments) + 1


@quick
@given(trajectories(), st.data())
def test_certificate_changes_with_any_token_and_names_the_segment(
    trajectory: Trajectory, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(trajectory.segments) - 1))
    segment = trajectory.segments[index]
    place = data.draw(st.integers(0, len(segment.train_ids) - 1))
    ids = (
        *segment.train_ids[:place],
        segment.train_ids[place] + 1,
        *segment.train_ids[place + 1 :],
    )
    wire = ids if segment.wire_ids == segment.train_ids else segment.wire_ids
    changed = _with(trajectory, index, replace(segment, train_ids=ids, wire_ids=wire))
    assert certify(trajectory).difference(certify(changed)) == f"segment {index} (counted from 0)"


Change = Callable[[Segment], Segment]


CHANGES: list[tuple[int, Change]] = [
    (1, lambda s: replace(s, loss_mask=(0, 1, 1))),
    (1, lambda s: replace(s, logprobs=(s.logprobs[0] - 1e-15, *s.logprobs[1:]))),
    (1, lambda s: replace(s, reward=None)),
    (1, lambda s: replace(s, reward=1e-300)),
    (1, lambda s: replace(s, weight_version=None)),
    (1, lambda s: replace(s, weight_version="none")),
    (1, lambda s: replace(s, finish_reason="length")),
    (1, lambda s: replace(s, turn=1)),
    (2, lambda s: replace(s, images=(s.images[1], s.images[0]))),
    (2, lambda s: replace(s, images=s.images[:1])),
    (2, lambda s: replace(s, images=(s.images[0], picture(5)))),
    (2, lambda s: replace(s, wire_ids=s.train_ids)),
]


@pytest.mark.parametrize(("index", "change"), CHANGES)
def test_certificate_changes_with_every_column(index: int, change: Change) -> None:
    trajectory = example()
    changed = _with(trajectory, index, change(trajectory.segments[index]))
    found = certify(trajectory).difference(certify(changed))
    assert found == f"segment {index} (counted from 0)"


def test_certificate_changes_when_tokens_move_between_segments() -> None:
    trajectory = example()
    first, second = trajectory.segments[3], trajectory.segments[5]
    swapped = _with(_with(trajectory, 3, replace(second, turn=1)), 5, replace(first, turn=2))
    assert certify(trajectory) != certify(swapped)


def test_certificate_shows_a_shortened_ledger() -> None:
    trajectory = example()
    shorter = replace(trajectory, segments=trajectory.segments[:-2])
    assert certify(trajectory).difference(certify(shorter)) == ("6 segments were recorded, got 4")


@pytest.mark.parametrize(
    "change",
    [
        {"stop_reason": StopReason.MAX_TURNS},
        {"reward": 0.5},
        {"reward": None},
    ],
)
def test_certificate_covers_the_end(change: dict[str, object]) -> None:
    trajectory = example()
    changed = replace(trajectory, **change)  # pyright: ignore[reportArgumentType]
    found = certify(trajectory).difference(certify(changed))
    assert found == "the stop reason, the reward, or where the branches start"


@pytest.mark.parametrize("name", ["episode_id", "env_id", "seed", "task"])
def test_certificate_covers_the_task_and_the_identity(name: str) -> None:
    trajectory = example()
    values = {"episode_id": "x", "env_id": "x", "seed": None, "task": {"gold": 6}}
    changed = replace(trajectory, **{name: values[name]})
    assert "identity" in (certify(trajectory).difference(certify(changed)) or "")


@pytest.mark.slow
def test_certificate_is_the_same_in_another_process() -> None:
    code = "from fakes.trajectories import example; from envkit.trajectory import certify;"
    code = f"import sys; sys.path.insert(0, 'tests'); {code} print(certify(example()).seal)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == certify(example()).seal


@pytest.mark.parametrize("change", [{"segments": 1}, {"turns": 0}, {"root": "x"}])
async def test_certificate_covers_where_a_fork_starts(change: dict[str, Any]) -> None:
    _, fork, *_ = await grow(Sums)
    assert fork.origin is not None
    moved = replace(fork, origin=replace(fork.origin, **change))
    assert certify(fork).difference(certify(moved)) is not None
