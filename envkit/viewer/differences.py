"""Where two episodes diverge: the first token or image that differs, and the first rewrite."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envkit.text import counted
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import Trajectory

Rewrite = tuple[str, int, tuple[int | None, ...]]
"""Its reason, the number of images it kept, and the indices of the messages it kept; None for a
message that a policy wrote."""
_NAMES: Final = ("first", "second")
_SAID: Final = {
    SegmentKind.PROMPT: "the prompt",
    SegmentKind.OBSERVATION: "the observation",
    SegmentKind.MODEL: "the reply",
}


@dataclass(frozen=True, slots=True)
class _Stretch:
    kind: SegmentKind
    turn: int
    ids: NDArray[np.integer]
    images: tuple[str, ...]

    @classmethod
    def of(cls, segment: Segment) -> "_Stretch":
        names = tuple(image.sha256 for image in segment.images)
        return cls(segment.kind, segment.turn, segment.array("train_ids"), names)


@dataclass(frozen=True, slots=True)
class Trace:
    """The data of an episode that a comparison needs; much smaller than the episode."""

    shared: int
    """Number of leading turns that belong to the episode that it was forked from."""
    stretches: tuple[_Stretch, ...]
    replies: tuple[str, ...]
    rewrites: Mapping[int, Rewrite]

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Trace":
        """Return the trace of an episode."""
        return cls(
            0 if trajectory.origin is None else trajectory.origin.turns,
            tuple(map(_Stretch.of, trajectory.segments)),
            tuple(turn.response_text for turn in trajectory.turns),
            rewrites_of(trajectory),
        )


def rewrites_of(trajectory: Trajectory) -> dict[int, Rewrite]:
    """Return the rewrites of an episode's history by turn, from 0."""
    found: dict[int, Rewrite] = {}
    for branch in trajectory.branches:
        segment = trajectory.segments[branch.segment]
        if segment.kind is SegmentKind.PROMPT:
            kept = tuple(one if isinstance(one, int) else None for one in branch.history)
            found[segment.turn] = (branch.reason, len(segment.images), kept)
    return found


def differences(first: Trace, second: Trace) -> list[str]:
    """Return where two episodes diverge, then where their histories were rewritten differently.

    Args:
        first: The episode of one run.
        second: The episode of the other run.
    """
    found = (
        _parting(first, second) if first.stretches and second.stretches else _said(first, second)
    )
    texts = list(_rewritten(first.rewrites, second.rewrites))
    if found is None:
        return texts
    return [_placed(*found, shared=max(first.shared, second.shared)), *texts]


def _placed(turn: int, text: str, *, shared: int) -> str:
    return f"turn {turn + 1}{', before the fork' if turn < shared else ''}: {text}"


def _parting(first: Trace, second: Trace) -> tuple[int, str] | None:
    for a, b in zip_longest(first.stretches, second.stretches):
        if b is None:
            return a.turn, f"only the {_NAMES[0]} continues"
        if a is None:
            return b.turn, f"only the {_NAMES[1]} continues"
        if a.turn == b.turn and SegmentKind.PROMPT in {a.kind, b.kind} and a.kind is not b.kind:
            return None  # only one history was rewritten
        if (a.kind, a.turn) != (b.kind, b.turn):
            return min(a.turn, b.turn), f"{_SAID[a.kind]} against {_SAID[b.kind]}"
        text = _inside(a, b)
        if text is not None:
            return a.turn, text
    return None


def _inside(a: _Stretch, b: _Stretch) -> str | None:
    """Return how two segments of the same kind differ; None if they are equal."""
    at = _first(a.ids, b.ids)
    image = next(
        (n for n, pair in enumerate(zip_longest(a.images, b.images)) if len(set(pair)) > 1), None
    )
    places = [f"token {at + 1}"] if at is not None else []
    places += [f"image {image + 1}"] if image is not None else []
    return f"{_SAID[a.kind]} differs at {' and '.join(places)}" if places else None


def _first(a: NDArray[np.integer], b: NDArray[np.integer]) -> int | None:
    length = min(len(a), len(b))
    unequal = np.flatnonzero(a[:length] != b[:length])
    if len(unequal):
        return int(unequal[0])
    return None if len(a) == len(b) else length


def _said(first: Trace, second: Trace) -> tuple[int, str] | None:
    """Compare episodes without a ledger by their messages."""
    for turn, (a, b) in enumerate(zip_longest(first.replies, second.replies)):
        if a is None or b is None:
            return turn, f"only the {_NAMES[a is None]} continues"
        if a != b:
            return turn, "the reply differs"
    return None


def _rewritten(first: Mapping[int, Rewrite], second: Mapping[int, Rewrite]) -> Iterator[str]:
    for turn in sorted(first.keys() | second.keys()):
        a, b = first.get(turn), second.get(turn)
        if a == b:
            continue
        if a is not None and b is not None:
            yield f"turn {turn + 1}: history rewritten as {_shown(a)} against {_shown(b)}"
        else:
            given, name = (a, _NAMES[0]) if b is None else (b, _NAMES[1])
            yield f"turn {turn + 1}: history rewritten only in the {name} ({_shown(given)})"
        return


def _shown(rewrite: Rewrite | None) -> str:
    if rewrite is None:
        return ""
    reason, images, kept = rewrite
    parts = [reason.replace("_", " "), counted(images, "image") if images else ""]
    same = counted(sum(one is not None for one in kept), "message")
    parts.append(f"{same} as before" if kept else "")
    return ", ".join(filter(None, parts))
