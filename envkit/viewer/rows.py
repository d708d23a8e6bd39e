"""One index row per episode, used by lists, figures and comparisons."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from envkit.messages import images_of, text_of
from envkit.metrics.facts import reward_terms
from envkit.reply import FinishReason
from envkit.rollout.multi_agent import ROLLOUT_ID
from envkit.trajectory.checks import Problem
from envkit.trajectory.plain import plain_float, to_plain
from envkit.trajectory.segment import SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.success import deciding_threshold, success_of
from envkit.trajectory.trajectory import Trajectory, role_of
from envkit.viewer.differences import rewrites_of

_EXCERPT: Final = 240
_NOTE: Final = 2_000
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class EpisodeRow(Struct, frozen=True, kw_only=True, gc=False):
    """One episode in a list. The fields come in the order of the page's columns.

    A struct for the same reason as `EpisodeFacts`. The collector need not visit the rows of a large
    run, which cannot hold themselves.
    """

    number: int
    """Its line in the file, or its position among trajectories in memory, from 1."""
    episode_id: str
    env_id: str
    seed: int | None
    group_id: str | None
    role: str | None
    """Role of the agent; None if the episode has one agent."""
    rollout: str | None
    """Shared by the agents of an episode; None if it has one agent."""
    member: int | None
    """Its index in its group, from 0; None if the rollout did not record it."""
    family: str
    """Family of the task; empty if the environment names none."""
    task_hash: str
    """Equal for equal tasks."""
    replies_hash: str
    """Equal for equal replies of the model."""
    history_hash: str
    """Equal for histories that were rewritten at the same turns in the same way."""
    excerpt: str
    """The start of the first user message, on one line."""
    reward: float | None
    stop_reason: StopReason
    is_solved: bool | None
    """None if success is undefined (see `success_of`)."""
    threshold: float | None
    """The reward threshold that decided it; None if the environment's own verdict did."""
    turns: int
    """Replies that went to the environment, including those before a fork."""
    replies: int
    """Replies of the episode itself: excludes those before a fork, includes summaries."""
    parent: str | None
    """Id of the episode that it was forked from; None for one that is not a fork."""
    shared: int
    """How many of its first replies are the parent's."""
    rewrites: int
    """Number of rewrites of its history, excluding those before a fork."""
    tokens: int
    """Train ids of all segments."""
    sampled: int
    """Tokens that the model sampled in the episode itself."""
    images: int
    seconds: float
    slowest: str
    """The slowest turn and its slowest part, such as "turn 2, env"; empty without turns."""
    not_understood: int
    """Replies that the environment could not parse."""
    cut: int
    """Replies that reached the limit of their tokens before they ended."""
    terms: Mapping[str, float] = field(default_factory=dict[str, float])
    """Reward terms, summed over turns."""
    thumbnail: str | None
    """SHA-256 of the last image; None without one."""
    flags: tuple[str, ...]
    """Any of "fault", "broken", "parse error", "retry", "restart"."""
    fault: str
    """What failed and how, such as "step timeout"; empty without a fault."""
    note: str
    """Messages of the fault and of violated rules."""

    def to_json(self) -> list[Any]:
        """Return the row as JSON data, in the order of `COLUMNS`."""
        converted = {
            "seed": None if self.seed is None else str(self.seed),  # JavaScript rounds above 2^53
            "reward": None if self.reward is None else plain_float(self.reward),
            "threshold": None if self.threshold is None else plain_float(self.threshold),
            "seconds": plain_float(round(self.seconds, 4)),
        }
        return [converted[n] if n in converted else getattr(self, n) for n in _SHOWN]


_NOT_SHOWN: Final = {
    "task_hash",
    "replies_hash",
    "history_hash",
    "slowest",
    "terms",
}
_SHOWN: Final = [one for one in EpisodeRow.__struct_fields__ if one not in _NOT_SHOWN]
_SHORT_NAMES: Final = {
    "episode_id": "id",
    "env_id": "env",
    "group_id": "group",
    "excerpt": "task",
    "stop_reason": "stop",
    "is_solved": "solved",
    "not_understood": "unread",
}
COLUMNS: Final = tuple(_SHORT_NAMES.get(name, name) for name in _SHOWN)
"""Names of a row's columns."""


def episode_row(
    trajectory: Trajectory,
    *,
    number: int,
    problems: tuple[Problem, ...] = (),
    is_broken: bool = False,
) -> EpisodeRow:
    """Return the row of a trajectory.

    Args:
        trajectory: Any trajectory; it may be faulted.
        number: Its line in the file, from 1.
        problems: The result of `check_trajectory`; empty if it was not checked.
        is_broken: Whether a rule is violated or the certificate does not match.
    """
    turns, fault, origin = trajectory.turns, trajectory.fault, trajectory.origin
    own, images = trajectory.own_turns, images_of(trajectory.messages)
    rewrites = rewrites_of(trajectory)
    said = [problem.message for problem in problems]
    if fault is not None:
        said.insert(0, fault.message)
    return EpisodeRow(
        number=number,
        episode_id=trajectory.episode_id,
        env_id=trajectory.env_id,
        seed=trajectory.seed,
        group_id=trajectory.group_id,
        role=role_of(trajectory),
        rollout=_text(trajectory.metadata, ROLLOUT_ID) or None,
        member=_whole(trajectory.metadata, "member"),
        family=_text(trajectory.task, "family"),
        task_hash=_digest(to_plain(trajectory.task, "task", lambda _: None)),
        replies_hash=_digest([turn.response_text for turn in turns]),
        history_hash=_digest(list(rewrites.items())) if rewrites else _NOTHING,
        excerpt=_excerpt(trajectory),
        reward=trajectory.reward,
        is_solved=success_of(trajectory),
        threshold=deciding_threshold(trajectory),
        stop_reason=trajectory.stop_reason,
        turns=trajectory.step_count,
        replies=len(own),
        parent=None if origin is None else origin.episode_id,
        shared=len(turns) - len(own),
        rewrites=_rewrites(trajectory),
        tokens=trajectory.token_count,
        sampled=sum([turn.response_tokens for turn in own]),
        images=trajectory.image_count,
        seconds=trajectory.duration_seconds,
        slowest=_slowest(trajectory),
        not_understood=sum([turn.parse_error is not None for turn in own]),
        cut=sum([turn.finish_reason == FinishReason.LENGTH for turn in own]),
        terms=reward_terms(trajectory),
        thumbnail=images[-1].sha256 if images else None,
        flags=_flags(trajectory, is_broken=is_broken),
        fault="" if fault is None else f"{fault.where} {fault.kind}",
        note=" ".join(said)[:_NOTE],
    )


def title_of(trajectory: Trajectory) -> str:
    """Return the first user message on one line, else the task's id, the seed or the id.

    The message comes first because a task's description may be data rather than text.
    """
    text = ""
    for entry in trajectory.messages:
        if entry["role"] == "user" and (text := " ".join(text_of(entry).split())):
            break
    named = text.removeprefix("Task: ") or _text(trajectory.task, "id")
    if named or trajectory.seed is None:
        return named or trajectory.episode_id
    return f"no task, seed {trajectory.seed}"


def _excerpt(trajectory: Trajectory) -> str:
    role = role_of(trajectory)
    text = ("" if role is None else f"{role}: ") + title_of(trajectory)
    return text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"


def _rewrites(trajectory: Trajectory) -> int:
    start = 0 if trajectory.origin is None else trajectory.origin.segments
    return sum([s.kind is SegmentKind.PROMPT for s in trajectory.segments[max(1, start) :]])


def _slowest(trajectory: Trajectory) -> str:
    turns = trajectory.own_turns
    if not turns:
        return ""
    times = [turn.seconds for turn in turns]
    totals = [sum(parts.values()) for parts in times]
    slowest = max(range(len(turns)), key=totals.__getitem__)
    parts = times[slowest]
    return f"turn {turns[slowest].turn + 1}, {max(parts, key=parts.__getitem__)}"


def _flags(trajectory: Trajectory, *, is_broken: bool) -> tuple[str, ...]:
    turns = trajectory.turns
    found = {
        "fault": trajectory.is_faulted,
        "broken": is_broken,
        "parse error": any(turn.parse_error is not None for turn in turns),
        "retry": any(turn.env_retries or turn.engine_retries or turn.resamples for turn in turns),
        "restart": trajectory.env_restarts > 0,
    }
    return tuple([name for name, is_on in found.items() if is_on])


def _digest(data: object) -> str:
    return hashlib.sha256(_ENCODER.encode(data).encode("ascii")).hexdigest()


_NOTHING: Final = _digest([])


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _whole(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
