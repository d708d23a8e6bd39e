"""What a list shows of one trajectory, small enough to keep for every episode of a run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from envkit.images import Image
from envkit.messages import text_of
from envkit.trajectory.checks import Problem
from envkit.trajectory.plain import plain_float, to_plain
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory

_EXCERPT: Final = 140


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """One episode in a list."""

    number: int
    """Its line in the file, from 1; or its place among trajectories in memory."""
    episode_id: str
    env_id: str
    seed: int | None
    group_id: str | None
    role: str | None
    """Of the agent in an episode of several; None elsewhere."""
    member: int | None
    """Its number in its group; None where the rollout did not say."""
    task_hash: str
    """Equal for equal tasks."""
    replies_hash: str
    """Equal for equal replies of the model."""
    excerpt: str
    """The start of what was asked, on one line."""
    reward: float | None
    stop_reason: StopReason
    turns: int
    tokens: int
    sampled: int
    images: int
    seconds: float
    slowest: str
    """Which turn took longest and what of it, such as "turn 2, env"; empty without a turn."""
    marks: tuple[str, ...]
    """"fault", "broken", "parse error", "retry", "restart"."""
    note: str
    """The fault and broken rules, for the search."""

    @property
    def kind(self) -> str:
        """Colour of the ending: "good", "warn" or "bad"."""
        return ending_kind(self.stop_reason, self.reward)

    def row(self) -> list[Any]:  # JSON data
        """Return the row of the list, in the order of `ROW`."""
        return [
            self.number,
            self.episode_id,
            self.group_id or "",
            self.excerpt,
            None if self.reward is None else plain_float(self.reward),
            self.stop_reason.value,
            self.kind,
            self.turns,
            self.tokens,
            self.images,
            plain_float(round(self.seconds, 4)),
            list(self.marks),
            self.note,
        ]


ROW: Final = (
    "number",
    "id",
    "group",
    "task",
    "reward",
    "stop",
    "kind",
    "turns",
    "tokens",
    "images",
    "seconds",
    "marks",
    "note",
)
"""Names of a row's columns."""


def ending_kind(stop_reason: StopReason, reward: float | None) -> str:
    """Return the colour of an ending: "good", "warn" or "bad"."""
    if stop_reason.is_fault:
        return "bad"
    return "warn" if stop_reason.is_truncation or reward is None else "good"


def episode_facts(
    trajectory: Trajectory, problems: tuple[Problem, ...], *, number: int, is_broken: bool
) -> EpisodeFacts:
    """Return what a list shows of a trajectory.

    Args:
        trajectory: Any, faulted ones too.
        problems: What `check_trajectory` found.
        number: What to call it.
        is_broken: Whether a rule or the certificate does not hold.
    """
    replies = (turn.response_text for turn in trajectory.turns)
    fault = trajectory.fault
    return EpisodeFacts(
        number=number,
        episode_id=trajectory.episode_id,
        env_id=trajectory.env_id,
        seed=trajectory.seed,
        group_id=trajectory.group_id,
        role=_text(trajectory.metadata, "role"),
        member=_whole(trajectory.metadata, "member"),
        task_hash=_digest(to_plain(trajectory.task, "task", _forget)),
        replies_hash=_digest(list(replies)),
        excerpt=_excerpt(trajectory),
        reward=trajectory.reward,
        stop_reason=trajectory.stop_reason,
        turns=len(trajectory.turns),
        tokens=trajectory.token_count,
        sampled=sum(turn.response_tokens for turn in trajectory.turns),
        images=trajectory.image_count,
        seconds=trajectory.duration_seconds,
        slowest=_slowest(trajectory),
        marks=_marks(trajectory, is_broken=is_broken),
        note=" ".join(
            ("" if fault is None else fault.message, *(problem.message for problem in problems))
        ),
    )


def _slowest(trajectory: Trajectory) -> str:
    if not trajectory.turns:
        return ""
    turn = max(trajectory.turns, key=lambda one: sum(one.seconds.values()))
    parts = turn.seconds
    return f"turn {turn.turn}, {max(parts, key=lambda part: parts[part])}"


def _marks(trajectory: Trajectory, *, is_broken: bool) -> tuple[str, ...]:
    turns = trajectory.turns
    found = {
        "fault": trajectory.is_faulted,
        "broken": is_broken,
        "parse error": any(turn.parse_error is not None for turn in turns),
        "retry": any(turn.env_retries or turn.engine_retries or turn.resamples for turn in turns),
        "restart": trajectory.env_restarts > 0,
    }
    return tuple(name for name, is_on in found.items() if is_on)


def _excerpt(trajectory: Trajectory) -> str:
    asked = next((text_of(m) for m in trajectory.messages if m["role"] == "user"), "")
    role = _text(trajectory.metadata, "role")
    whose = "" if role is None else f"{role}: "
    text = whose + " ".join((asked or trajectory.episode_id).split())
    return text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"


def _digest(data: object) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _forget(image: Image) -> None:
    """Take an image of a task, which its hash stands for."""


def _text(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(name)
    return value if isinstance(value, str) else None


def _whole(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
