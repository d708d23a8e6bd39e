"""Samples of an evaluation: one per episode, grouped by task."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from envkit.messages import images_of
from envkit.metrics import EpisodeFacts
from envkit.rollout.multi_agent import rollout_id_of
from envkit.trajectory import SegmentKind, TokenSequence, Trajectory, success_of

TAGS: Final = ("family", "level")
"""Tags to group results by, if an episode records them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One episode of an evaluation. Sums are over its turns."""

    env_id: str
    task: str
    """Equal for all samples of one task, including runs with the same seeds."""
    episode: str
    """Equal for the trajectories of one multi-agent episode."""
    role: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    reward: float | None
    """None after a fault or an abort."""
    solved: bool | None
    """Whether it solved its task; None if that is undefined (see `success_of`)."""
    is_ungraded: bool = False
    """Whether the reward is 0 because the grader failed on what the policy left."""
    is_faulted: bool
    is_aborted: bool
    """Whether it was aborted; a resumed run finishes it."""
    turns: int
    prompt_tokens: int
    """Tokens of all turns' contexts, which endpoints bill."""
    cached_tokens: int
    """Context tokens served from a prefix cache."""
    reply_tokens: int
    images: int
    """Images in all requests: one that stays in the context counts again on every turn."""
    seconds: float

    @classmethod
    def of(
        cls, trajectory: Trajectory, *, by: Sequence[str], threshold: float | None = None
    ) -> "Sample":
        """Return the sample of a trajectory.

        Args:
            trajectory: Any trajectory, including faulted ones.
            by: Tags to keep if the task or reset info has them as a string, number or bool.
            threshold: A reward threshold; None uses what the environment declared.
        """
        facts = EpisodeFacts.of(trajectory)
        reward = facts.reward
        return cls(
            env_id=trajectory.env_id,
            task=_task_of(trajectory),
            episode=rollout_id_of(trajectory),
            role=facts.role,
            tags=tags_of(trajectory, by),
            reward=reward,
            solved=success_of(trajectory, threshold=threshold),
            is_ungraded=reward is not None and facts.is_ungraded,
            is_faulted=facts.is_faulted,
            is_aborted=facts.is_aborted,
            turns=facts.turns,
            prompt_tokens=facts.prompt_tokens,
            cached_tokens=facts.cached_tokens,
            reply_tokens=facts.response_tokens,
            images=_images_sent(trajectory),
            seconds=facts.duration_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The rewarded samples of one task."""

    samples: tuple[Sample, ...]

    @property
    def reward(self) -> float:
        """Mean reward."""
        return sum(one.reward or 0.0 for one in self.samples) / len(self.samples)

    @property
    def judged(self) -> int:
        """Number of samples for which success is defined."""
        return sum(one.solved is not None for one in self.samples)

    @property
    def solved(self) -> int:
        """Number of samples that solved the task."""
        return sum(one.solved is True for one in self.samples)


def problems_of(samples: Iterable[Sample]) -> dict[str, Problem]:
    """Return tasks by key with their rewarded samples; tasks without any are omitted."""
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for one in samples:
        if one.reward is not None:
            found[one.task].append(one)
    return {task: Problem(samples=tuple(kept)) for task, kept in found.items()}


def episodes_of(samples: Iterable[Sample]) -> list[Sample]:
    """Return one sample for each episode.

    A multi-agent episode counts once. Its reward is the mean over roles, it is solved if every
    role succeeds, and it has no reward if one role has none. Costs are summed; turns and seconds
    are those of the longest role.
    """
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for one in samples:
        found[one.episode].append(one)
    return [parts[0] if len(parts) == 1 else _joined(parts) for parts in found.values()]


def _joined(parts: Sequence[Sample]) -> Sample:
    rewards = [one.reward for one in parts if one.reward is not None]
    is_whole = len(rewards) == len(parts)
    verdicts = [one.solved for one in parts if one.solved is not None]
    return replace(
        parts[0],
        role=None,
        reward=sum(rewards) / len(rewards) if is_whole else None,
        solved=all(verdicts) if len(verdicts) == len(parts) else None,
        is_ungraded=is_whole and any(one.is_ungraded for one in parts),
        is_faulted=any(one.is_faulted for one in parts),
        is_aborted=any(one.is_aborted for one in parts),
        turns=max(one.turns for one in parts),
        prompt_tokens=sum(one.prompt_tokens for one in parts),
        cached_tokens=sum(one.cached_tokens for one in parts),
        reply_tokens=sum(one.reply_tokens for one in parts),
        images=sum(one.images for one in parts),
        seconds=max(one.seconds for one in parts),
    )


def _task_of(trajectory: Trajectory) -> str:
    """Return the key of a sample's task: its seed, which is stable across runs."""
    for what in (trajectory.seed, trajectory.group_id):
        if what is not None:
            return f"{trajectory.env_id} {what}"
    return f"{trajectory.env_id} {trajectory.episode_id}"


def tags_of(trajectory: Trajectory, by: Sequence[str]) -> dict[str, str]:
    """Return an episode's tags: strings, numbers and bools of its task or reset info.

    Args:
        trajectory: The episode.
        by: Names of tags.
    """
    known = {**trajectory.reset_info, **trajectory.task}
    return {
        name: str(known[name])
        for name in by
        if isinstance(known.get(name), str | int | float | bool)
    }


def by_number(value: str) -> tuple[bool, float, str]:
    """Return a sort key for tag values: numbers by value, before other strings."""
    try:
        return (False, float(value), value)
    except ValueError:
        return (True, 0.0, value)


def _images_read(sequence: TokenSequence) -> int:
    """Return how many images the requests of a sequence's own turns had."""
    sent = shown = 0
    last: int | None = None
    for number, segment in enumerate(sequence.segments):
        shown += len(segment.images)
        is_reply = segment.kind is SegmentKind.MODEL and number >= sequence.owned
        if is_reply and segment.turn != last:  # an abort cuts a reply in two
            sent, last = sent + shown, segment.turn
    return sent


def _images_sent(trajectory: Trajectory) -> int:
    sent = shown = 0
    if trajectory.has_ledger:
        return sum(map(_images_read, trajectory.sequences()))
    for entry in trajectory.messages:
        if entry["role"] == "assistant":
            sent += shown
        else:
            shown += len(images_of((entry,)))
    return sent
