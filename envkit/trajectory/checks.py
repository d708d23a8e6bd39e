"""The rules that every recorded trajectory keeps, checked from the record alone.

Lengths, mask values and masks outside model segments are refused by `Segment` itself.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from envkit.messages import images_of
from envkit.trajectory.placeholders import check_placeholders
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory

LOGPROB_SLACK = 1e-3
"""How far above 0 a log-probability may lie: rounding of half-precision engines."""


class Rule(StrEnum):
    """What a problem violates."""

    READABLE = "readable"
    """Every line is a record of a known schema, and columns of a segment have one length."""
    CERTIFICATE = "certificate"
    """The hash chain of the ledger is the recorded one."""
    LEDGER = "ledger"
    """A ledger starts with a prompt, ends with a reply and counts its turns without a gap."""
    PREFIX = "prefix"
    """Every turn's prompt is the whole ledger before it: the recorded lengths agree."""
    LOGPROBS = "logprobs"
    """Log-probabilities are finite and at most 0."""
    IMAGES = "images"
    """Images, placeholders and the pictures of the messages agree."""
    IMAGE_FILES = "image_files"
    """Every image file is there and has the pixels that its name says."""
    REWARD = "reward"
    """Rewards are finite; an episode's is the sum of its turns', None after a fault or an abort."""
    FAULT = "fault"
    """A fault is recorded exactly where infrastructure ended the episode, and masks all tokens."""
    STOP = "stop"
    """The stop reason agrees with the last turn."""
    GROUP = "group"
    """All episodes of a group started from the same observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One rule that a trajectory breaks."""

    rule: Rule
    message: str
    line: int | None = None
    """Of the file, counted from 1; None for a trajectory that is in memory."""
    episode_id: str | None = None
    """None when the line cannot be read."""

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}[{self.rule}] {self.message}"


def check_trajectory(trajectory: Trajectory) -> tuple[Problem, ...]:
    """Return every rule that the trajectory breaks; empty when it is sound.

    Files, certificates and groups are checked by `verify_file`.
    """
    rules = (
        (Rule.LEDGER, _ledger),
        (Rule.PREFIX, _prefix),
        (Rule.LOGPROBS, _logprobs),
        (Rule.IMAGES, _images),
        (Rule.REWARD, _reward),
        (Rule.FAULT, _fault),
        (Rule.STOP, _stop),
    )
    return tuple(
        Problem(rule=rule, message=message, episode_id=trajectory.episode_id)
        for rule, check in rules
        for message in check(trajectory)
    )


def replies(trajectory: Trajectory) -> dict[int, list[Segment]]:
    """Return the model segments of each turn; an abort cuts a reply into more than one."""
    found: dict[int, list[Segment]] = {}
    for segment in trajectory.segments:
        if segment.kind is SegmentKind.MODEL:
            found.setdefault(segment.turn, []).append(segment)
    return found


def _ledger(trajectory: Trajectory) -> Iterator[str]:
    segments = trajectory.segments
    if segments and segments[0].kind is not SegmentKind.PROMPT:
        yield f"a ledger starts with a prompt, got a segment of kind {segments[0].kind}"
    if segments and segments[-1].kind is SegmentKind.OBSERVATION:
        yield "an observation behind the last reply is never in the ledger"
    numbers = [turn.turn for turn in trajectory.turns]
    if numbers != list(range(len(numbers))):
        yield f"turn records are numbered from 0 without a gap, got {numbers}"
    upcoming = 0
    for index, segment in enumerate(segments):
        same_reply = index > 0 and segments[index - 1].kind is SegmentKind.MODEL
        is_model = segment.kind is SegmentKind.MODEL
        expected = {upcoming, upcoming - 1} if is_model and same_reply else {upcoming}
        if segment.turn not in expected:
            yield f"segment {index} ({segment.kind}) must be of turn {upcoming}, got {segment.turn}"
            return
        if is_model:
            upcoming = segment.turn + 1
    unheard = len(numbers) - upcoming  # 1 where the engine failed before the first token
    # An episode that could not be resumed keeps the tokens of the reply that an abort had cut.
    unfiled = 1 if trajectory.is_faulted else 0
    if not -unfiled <= unheard <= 1:
        yield f"{upcoming} replies are in the ledger, but {len(numbers)} turns are recorded"


def _prefix(trajectory: Trajectory) -> Iterator[str]:
    recorded = {turn.turn: turn for turn in trajectory.turns}
    length, seen = 0, set[int]()
    for index, segment in enumerate(trajectory.segments):
        turn = recorded.get(segment.turn)
        if segment.kind is SegmentKind.PROMPT:
            length = 0
        elif segment.kind is SegmentKind.MODEL and turn is not None and segment.turn not in seen:
            seen.add(segment.turn)
            if turn.prompt_tokens != length:
                yield (
                    f"turn {segment.turn} was sampled from {turn.prompt_tokens} tokens, but "
                    f"{length} are in the ledger before it"
                )
        elif segment.kind is SegmentKind.OBSERVATION:
            before = recorded.get(segment.turn - 1)
            if before is not None and before.observation_tokens != len(segment.train_ids):
                yield (
                    f"segment {index} has {len(segment.train_ids)} tokens, turn {before.turn} "
                    f"records {before.observation_tokens} of its observation"
                )
        length += len(segment.train_ids)
    for number, parts in replies(trajectory).items():
        sampled = sum(len(part.train_ids) for part in parts)
        if number in recorded and recorded[number].response_tokens != sampled:
            yield (
                f"turn {number} records {recorded[number].response_tokens} sampled tokens, "
                f"got {sampled} in the ledger"
            )


def _logprobs(trajectory: Trajectory) -> Iterator[str]:
    for index, segment in enumerate(trajectory.segments):
        values = segment.logprobs
        if all(map(math.isfinite, values)) and max(values, default=0.0) <= LOGPROB_SLACK:
            continue  # quicker than a look at each
        bad = next(v for v in values if not (math.isfinite(v) and v <= LOGPROB_SLACK))
        yield f"segment {index} has a log-probability of {bad!r}"


def _images(trajectory: Trajectory) -> Iterator[str]:
    problem = check_placeholders(trajectory.segments)
    if problem is not None:
        yield problem
    for before, after in pairwise(trajectory.segments):
        turn = next((t for t in trajectory.turns if t.turn == before.turn), None)
        follows = before.kind is SegmentKind.MODEL and after.kind is SegmentKind.OBSERVATION
        if follows and turn is not None and turn.image_count != len(after.images):
            yield (
                f"turn {turn.turn} records {turn.image_count} new images, "
                f"got {len(after.images)} in the ledger"
            )
    shown = [image.sha256 for image in images_of(trajectory.messages)]
    for sequence in trajectory.sequences()[:1]:
        sent = [image.sha256 for segment in sequence for image in segment.images]
        if sent != shown[: len(sent)]:
            yield f"the {len(sent)} images of the ledger are not the first that the messages show"


def _reward(trajectory: Trajectory) -> Iterator[str]:
    unscored = trajectory.is_faulted or trajectory.stop_reason is StopReason.ABORTED
    rewards = [turn.reward for turn in trajectory.turns if turn.reward is not None]
    end = f"an episode that ended by {trajectory.stop_reason}"
    if unscored and trajectory.reward is not None:
        yield f"{end} has no reward, got {trajectory.reward}"
    elif not unscored and trajectory.reward is None:
        yield f"{end} has a reward, got None"
    elif trajectory.reward is not None and not _equal(trajectory.reward, math.fsum(rewards)):
        yield f"the reward is the sum of the turns', {math.fsum(rewards)}, got {trajectory.reward}"
    by_turn = {turn.turn: turn.reward for turn in trajectory.turns}
    for number, parts in replies(trajectory).items():
        expected = [None] * (len(parts) - 1) + [by_turn.get(number)]
        got = [part.reward for part in parts]
        if got != expected:
            yield f"turn {number} records the reward {by_turn.get(number)}, got {got} in the ledger"


def _equal(left: float, right: float) -> bool:
    return math.isfinite(left) and math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)


def _fault(trajectory: Trajectory) -> Iterator[str]:
    if trajectory.is_faulted and trajectory.fault is None:
        yield f"the episode ended by {trajectory.stop_reason}, but no fault is recorded"
    if not trajectory.is_faulted and trajectory.fault is not None:
        yield f"a fault is recorded, but the episode ended by {trajectory.stop_reason}"
    if trajectory.is_faulted and any(any(row.loss_mask) for row in trajectory.steps(merge=True)):
        yield "a faulted episode must not train a token"


def _stop(trajectory: Trajectory) -> Iterator[str]:
    last = trajectory.turns[-1] if trajectory.turns else None
    if trajectory.stop_reason in (StopReason.TERMINATED, StopReason.ENV_TRUNCATED) and (
        last is None or last.reward is None
    ):
        yield f"{trajectory.stop_reason} comes from a completed step, but the last turn has none"
    if trajectory.stop_reason is StopReason.TURN_TOKENS and (
        last is None or last.finish_reason != "length"
    ):
        found = None if last is None else last.finish_reason
        yield f"turn_tokens ends with a reply cut by its length, got finish reason {found!r}"
