"""The hash chain: any change of the ledger shows, and says where."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.trajectories import example, picture, quick, trajectories
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import StorageError
from envkit.trajectory import (
    Branch,
    Segment,
    StopReason,
    Trajectory,
    certificate,
    certify,
    load,
    save,
)
from envkit.trajectory.columns import Packed
from envkit.trajectory.sequence import Origin


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


def _tree(**changes: Any) -> Trajectory:
    """Return a fork with a branch; no rule of the ledger matters to a certificate."""
    branch = Branch(segment=4, parent=0, at=2, reason="branch")
    origin = Origin(episode_id="parent", segments=1, turns=0, root="root")
    return replace(example(), branches=(branch,), origin=origin, **changes)


RECORDED = {
    "line": (example, "55e39f0fe8c0b6f0ae5c50fffc00b7cc29c809cc57fd5d59a0dd0d4184fd9b76"),
    "fork": (_tree, "110f09bd8850fc84254dcb95801fc6c80057875411ff048e0e7a8bc91d74df0a"),
    "unseeded": (
        lambda: replace(example(seed=None), reward=None),
        "f7ab6058fc5b66b8bbf3f706b91fac2b2da5b523deaf3a8ecbed06dc26a323ce",
    ),
}
"""Seals that an earlier version recorded: another value needs another `ALGORITHM`."""


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 1 << 14])
def test_certificate_of_an_earlier_version_is_still_the_same(
    monkeypatch: pytest.MonkeyPatch, name: str, chunk: int
) -> None:
    monkeypatch.setattr("envkit.trajectory.certificate._CHUNK", chunk)
    make, seal = RECORDED[name]
    certificate = certify(make())
    assert certificate.algorithm == "sha256-chain-1"
    assert certificate.seal == seal


def test_certificate_does_not_depend_on_the_order_of_a_tasks_keys(tmp_path: Path) -> None:
    task = {"question": "how long?", "gold": 5, "parts": {"b": [1, 2], "a": {"y": 1, "x": 2}}}
    turned = {"parts": {"a": {"x": 2, "y": 1}, "b": [1, 2]}, "gold": 5, "question": "how long?"}
    one, other = example(task=task), example(task=turned)
    assert list(task) != list(turned)
    assert certify(one) == certify(other)
    save(other, tmp_path / "run.jsonl")
    assert certify(load(tmp_path / "run.jsonl")[0]) == certify(one)
    swapped = {**task, "parts": {"b": [2, 1], "a": {"y": 1, "x": 2}}}
    assert certify(one) != certify(example(task=swapped))


def test_certificate_covers_images_of_a_task_and_names_what_is_not_json() -> None:
    one, other = (example(task={"shown": [picture(number)]}) for number in (1, 2))
    assert certify(one) != certify(other)
    with pytest.raises(StorageError, match=r"^task\.when must be JSON data"):
        certify(example(task={"when": object()}))


def test_certificate_is_the_same_for_every_nan() -> None:
    def with_nan(value: float) -> Trajectory:
        trajectory = replace(example(), reward=value)
        reply = trajectory.segments[1]
        logprobs = (value, *reply.logprobs[1:])
        return _with(trajectory, 1, replace(reply, logprobs=logprobs, reward=value))

    plain, negative = with_nan(math.nan), with_nan(math.copysign(math.nan, -1.0))
    assert certify(plain) == certify(negative)
    assert certify(plain) != certify(with_nan(-1.0))


def test_certificate_joins_the_halves_of_a_character_as_a_file_does(tmp_path: Path) -> None:
    halves, alone = example(episode_id="\ud83d\ude00"), example(episode_id="\ud83d x")
    assert certify(halves) == certify(example(episode_id="\U0001f600"))
    assert certify(alone) != certify(halves)
    save([halves, alone], tmp_path / "run.jsonl")
    assert [certify(one) for one in load(tmp_path / "run.jsonl")] == [
        certify(halves),
        certify(alone),
    ]


def test_certificate_of_another_algorithm_is_named_first() -> None:
    found = certify(example())
    recorded = replace(found, algorithm="sha256-chain-0", links=())
    assert recorded.difference(found) == (
        "its certificate uses 'sha256-chain-0', not 'sha256-chain-1'"
    )


@pytest.mark.parametrize(
    "change", [{"segment": 5}, {"parent": 1}, {"parent": None}, {"at": 3}, {"reason": "x"}]
)
def test_certificate_covers_where_a_branch_starts(change: dict[str, Any]) -> None:
    tree = _tree()
    moved = replace(tree, branches=(replace(tree.branches[0], **change),))
    found = certify(tree).difference(certify(moved))
    assert found == "the stop reason, the reward, or where the branches start"
    assert certify(tree) != certify(replace(tree, branches=()))


@pytest.mark.parametrize(
    "change", [{"episode_id": "x"}, {"segments": 2}, {"turns": 1}, {"root": "x"}]
)
def test_certificate_covers_the_origin_of_a_fork(change: dict[str, Any]) -> None:
    tree = _tree()
    assert tree.origin is not None
    assert certify(tree) != certify(replace(tree, origin=replace(tree.origin, **change)))
    assert certify(tree) != certify(replace(tree, origin=None))


def test_certificate_converts_a_long_column_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    before, sizes, convert = certify(example()), list[int](), certificate._integers_of

    def counted(part: Packed) -> bytes:
        sizes.append(len(part))
        return convert(part)

    monkeypatch.setattr(certificate, "_CHUNK", 3)
    monkeypatch.setattr(certificate, "_integers_of", counted)
    assert certify(example()) == before
    assert set(sizes) == {1, 2, 3}
