"""Rules for every recorded trajectory, checked from the record alone.

`Segment` itself validates lengths, mask values and masks outside model segments.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise

from envkit.errors import LedgerFault
from envkit.messages import images_of
from envkit.trajectory.ledger import unsound_logprob
from envkit.trajectory.projection import shared_prefix
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.sequence import TokenSequence, branch_history
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory, TurnRecord


class Rule(StrEnum):
    """The rule that a problem violates."""

    READABLE = "readable"
    """Every line is a record of a known schema, and the columns of a segment have equal lengths."""
    CERTIFICATE = "certificate"
    """The hash chain of the ledger equals the recorded one."""
    LEDGER = "ledger"
    """A ledger starts with a prompt, ends with a reply and numbers its turns without gaps."""
    TREE = "tree"
    """Every branch starts inside an earlier sequence, a fork starts with its parent's tokens, and
    each sampled token has one owner."""
    PREFIX = "prefix"
    """Every turn's prompt is the whole ledger before it: the recorded lengths agree."""
    LOGPROBS = "logprobs"
    """Log-probabilities are finite and at most 0."""
    IMAGES = "images"
    """The images and placeholders of the ledger and the images of the messages agree."""
    IMAGE_FILES = "image_files"
    """Every image file exists, and its pixels match the hash in its name."""
    REWARD = "reward"
    """Rewards are finite. An episode's reward is the sum of its turns' rewards, and None after a
    fault or an abort."""
    FAULT = "fault"
    """A fault is recorded if and only if infrastructure ended the episode."""
    STOP = "stop"
    """The stop reason agrees with the last turn."""
    GROUP = "group"
    """All episodes of a group started from the same observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A violation of one rule by a trajectory."""

    rule: Rule
    message: str
    line: int | None = None
    """Line of the file, counted from 1; None for a trajectory in memory."""
    episode_id: str | None = None
    """None if the line cannot be read."""

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}[{self.rule}] {self.message}"


_Replies = Mapping[int, Sequence[Segment]]
"""The model segments of each turn."""


def check_trajectory(trajectory: Trajectory) -> tuple[Problem, ...]:
    """Return every violation of a rule; empty if the trajectory is sound.

    `verify_file` also checks files, certificates and groups.
    """
    try:
        sequences, fault = trajectory.sequences(), None
    except LedgerFault as error:
        sequences, fault = (), error
    broken = [] if fault is None else [str(fault)]
    broken += _tree(trajectory, sequences)
    replied = replies(trajectory)
    found = (
        [(Rule.TREE, broken)]
        if broken  # the other rules depend on the sequences
        else [
            (Rule.LEDGER, _ledger(trajectory)),
            (Rule.PREFIX, _prefix(trajectory, sequences, replied)),
            (Rule.LOGPROBS, _logprobs(trajectory)),
            (Rule.IMAGES, _images(trajectory, sequences)),
            (Rule.REWARD, _reward(trajectory, replied)),
            (Rule.FAULT, _fault(trajectory)),
            (Rule.STOP, _stop(trajectory)),
        ]
    )
    return tuple(
        [
            Problem(rule=rule, message=message, episode_id=trajectory.episode_id)
            for rule, messages in found
            for message in messages
        ]
    )


def replies(trajectory: Trajectory) -> dict[int, list[Segment]]:
    """Return the model segments of each turn; an abort splits a reply into several."""
    found: dict[int, list[Segment]] = {}
    for segment in trajectory.segments:
        if segment.kind is SegmentKind.MODEL:
            found.setdefault(segment.turn, []).append(segment)
    return found


def _ledger(trajectory: Trajectory) -> Iterator[str]:
    segments = trajectory.segments
    if segments and segments[0].kind is not SegmentKind.PROMPT:
        yield f"a ledger must start with a prompt, got a segment of kind {segments[0].kind}"
    if segments and segments[-1].kind is SegmentKind.OBSERVATION:
        yield "a ledger must end with a reply, got an observation after the last one"
    numbers = [turn.turn for turn in trajectory.turns]
    if numbers != list(range(len(numbers))):
        yield f"turn records must be numbered from 0 without gaps, got {numbers}"
    calls = [turn.call for turn in trajectory.turns if turn.call is not None]
    if calls and sorted(calls) != list(range(len(numbers))):
        yield f"calls must be numbered from 0 without gaps or not at all, got {calls}"
    upcoming = 0
    after_reply = False
    for index, segment in enumerate(segments):
        is_model = segment.kind is SegmentKind.MODEL
        is_part = is_model and after_reply and segment.turn == upcoming - 1
        if segment.turn != upcoming and not is_part:
            yield f"segment {index} ({segment.kind}) must have turn {upcoming}, got {segment.turn}"
            return
        if is_model:
            upcoming = segment.turn + 1
        after_reply = is_model
    if not trajectory.has_ledger:
        return
    without_reply = len(numbers) - upcoming  # 1 if the engine failed before the first token
    # An episode that could not be resumed keeps the tokens of the reply that an abort cut off.
    without_record = 1 if trajectory.is_faulted else 0
    if not -without_record <= without_reply <= 1:
        yield f"the ledger has {upcoming} replies, but {len(numbers)} turns are recorded"


def _tree(trajectory: Trajectory, sequences: Sequence[TokenSequence]) -> Iterator[str]:
    try:
        for sequence in sequences:
            if sequence.branch is not None:
                branch_history(sequence.branch, trajectory.messages)
    except LedgerFault as fault:
        yield str(fault)
    origin = trajectory.origin
    if origin is None:
        return
    if origin.episode_id == trajectory.episode_id:
        yield "an episode cannot be forked from itself"
    if not 0 < origin.segments <= len(trajectory.segments):
        yield (
            f"a fork must share 1 to {len(trajectory.segments)} segments of its parent, "
            f"got {origin.segments}"
        )
    if not 0 <= origin.turns <= len(trajectory.turns):
        yield f"a fork can share at most {len(trajectory.turns)} turns, got {origin.turns}"
    for index, segment in enumerate(trajectory.segments[: origin.segments]):
        if segment.array("loss_mask").any():
            yield (
                f"segment {index} belongs to episode {origin.episode_id!r} and must have mask 0 "
                "here, or its tokens have two owners"
            )


def _prefix(
    trajectory: Trajectory, sequences: Sequence[TokenSequence], replied: _Replies
) -> Iterator[str]:
    recorded = {turn.turn: turn for turn in trajectory.turns}
    seen = set[int]()
    for number, sequence in enumerate(sequences):
        length = 0
        for index, segment in enumerate(sequence.segments):
            is_own = index >= sequence.at  # shared segments were checked in the parent
            follows_trunk = index == sequence.at and segment.kind is SegmentKind.OBSERVATION
            if is_own and not follows_trunk:  # the turn before it is another sequence's
                problem = _length(recorded, segment, length, seen, (index, number))
                if problem is not None:
                    yield problem
            length += segment.token_count
    for number, parts in replied.items():
        sampled = sum([part.token_count for part in parts])
        if number in recorded and recorded[number].response_tokens != sampled:
            yield (
                f"turn {number} records {recorded[number].response_tokens} sampled tokens, "
                f"got {sampled} in the ledger"
            )


def _length(
    recorded: Mapping[int, TurnRecord],
    segment: Segment,
    length: int,
    seen: set[int],
    place: tuple[int, int],
) -> str | None:
    """Return how a token count in the turn records differs from the ledger; None if none does.

    Args:
        recorded: Turn records by number.
        segment: A segment that its sequence owns.
        length: Tokens of the sequence before it.
        seen: Turns whose prompt was compared; this one is added.
        place: Index of the segment in its sequence, and of the sequence.
    """
    turn = recorded.get(segment.turn)
    if segment.kind is SegmentKind.MODEL and turn is not None and segment.turn not in seen:
        seen.add(segment.turn)
        if turn.prompt_tokens != length:
            return (
                f"turn {segment.turn} was sampled from {turn.prompt_tokens} tokens, but "
                f"{length} are in the ledger before it"
            )
    elif segment.kind is SegmentKind.OBSERVATION:
        before = recorded.get(segment.turn - 1)
        index, number = place
        if before is not None and before.observation_tokens != segment.token_count:
            return (
                f"segment {index} of sequence {number} has {segment.token_count} tokens, but turn "
                f"{before.turn} records {before.observation_tokens} for its observation"
            )
    return None


def _logprobs(trajectory: Trajectory) -> Iterator[str]:
    for index, segment in enumerate(trajectory.segments):
        bad = unsound_logprob(segment)
        if bad is not None:
            yield f"segment {index} has a log-probability of {bad!r}"


def _images(trajectory: Trajectory, sequences: Sequence[TokenSequence]) -> Iterator[str]:
    problem = _placeholders(trajectory.segments)
    if problem is not None:
        yield problem
    starts = {branch.segment for branch in trajectory.branches}
    recorded = {turn.turn: turn for turn in reversed(trajectory.turns)}
    for index, (before, after) in enumerate(pairwise(trajectory.segments), 1):
        if before.kind is not SegmentKind.MODEL or after.kind is not SegmentKind.OBSERVATION:
            continue
        turn = None if index in starts else recorded.get(before.turn)
        if turn is not None and turn.image_count != len(after.images):
            yield (
                f"turn {turn.turn} records {turn.image_count} new images, "
                f"got {len(after.images)} in the ledger"
            )
    shown = [image.sha256 for image in images_of(trajectory.messages)]
    for sequence in sequences[:1]:
        sent = [image.sha256 for segment in sequence.segments for image in segment.images]
        if sent != shown[: len(sent)]:
            yield f"the {len(sent)} images of the ledger are not the first images of the messages"


def _reward(trajectory: Trajectory, replied: _Replies) -> Iterator[str]:
    unscored = trajectory.is_faulted or trajectory.stop_reason is StopReason.ABORTED
    rewards = [turn.reward for turn in trajectory.turns if turn.reward is not None]
    end = f"an episode that ended with {trajectory.stop_reason}"
    if unscored and trajectory.reward is not None:
        yield f"{end} must have no reward, got {trajectory.reward}"
    elif not unscored and trajectory.reward is None:
        yield f"{end} must have a reward, got None"
    elif trajectory.reward is not None and not _equal(trajectory.reward, math.fsum(rewards)):
        yield (
            f"the reward must be the sum of the turns' rewards, {math.fsum(rewards)}, "
            f"got {trajectory.reward}"
        )
    by_turn = {turn.turn: turn.reward for turn in trajectory.turns}
    for number, parts in replied.items():
        expected = [None] * (len(parts) - 1) + [by_turn.get(number)]
        got = [part.reward for part in parts]
        if got != expected:
            yield f"turn {number} records the reward {by_turn.get(number)}, got {got} in the ledger"


def _equal(left: float, right: float) -> bool:
    return math.isfinite(left) and math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)


def _fault(trajectory: Trajectory) -> Iterator[str]:
    if trajectory.is_faulted and trajectory.fault is None:
        yield f"the episode ended with {trajectory.stop_reason}, but no fault is recorded"
    if not trajectory.is_faulted and trajectory.fault is not None:
        yield f"a fault is recorded, but the episode ended with {trajectory.stop_reason}"


def _stop(trajectory: Trajectory) -> Iterator[str]:
    last = trajectory.turns[-1] if trajectory.turns else None
    if trajectory.stop_reason in (StopReason.TERMINATED, StopReason.ENV_TRUNCATED) and (
        last is None or last.reward is None
    ):
        yield f"{trajectory.stop_reason} needs a completed step, but the last turn has none"
    if trajectory.stop_reason is StopReason.TURN_TOKENS and (
        last is None or last.finish_reason != "length"
    ):
        found = None if last is None else last.finish_reason
        yield f"turn_tokens needs a last reply with finish reason 'length', got {found!r}"


def _placeholders(segments: Sequence[Segment]) -> str | None:
    """Return what is wrong with images and placeholders, or None.

    A stored trajectory does not name its placeholder token, so it is inferred from the ids. It is a
    wire id that occurs exactly once per image and nowhere else, and whose expansion turns the
    wire ids into the train ids. Most models repeat it; some expand it to rows and markers.

    Args:
        segments: Segments of one trajectory, in order.
    """
    candidates: set[int] | None = None
    for index, segment in enumerate(segments):
        if not segment.images:
            if segment.stored("train_ids") is not None:
                return f"segment {index} has no images, but its wire ids and train ids differ"
            continue
        fitting = _fitting(segment)
        candidates = fitting if candidates is None else candidates & fitting
        if not candidates:
            return (
                f"segment {index} has {len(segment.images)} images, but no token occurs once per "
                "image in its wire ids and expands them to its train ids"
            )
    if candidates is None:
        return None
    for segment in segments:
        if not segment.images:
            candidates -= set(segment.array("wire_ids").tolist())
    return None if candidates else "the placeholder token occurs in a segment without images"


def _fitting(segment: Segment) -> set[int]:
    """Return the ids that can be the placeholder; only those expanded by repetition if any is."""
    wire, train = segment.wire_ids, segment.train_ids
    occurrences = Counter(wire)
    possible = {
        token
        for token in wire[: shared_prefix(wire, train) + 1]
        if occurrences[token] == len(segment.images)
    }
    if wire == train:
        return possible
    trained, grown = Counter(train), len(train) - len(wire)
    repeated = {
        token
        for token in possible
        # Count first: comparing is slow, and a long prompt has hundreds of candidates.
        if trained[token] - occurrences[token] == grown and _without_runs(token, wire, train)
    }
    return repeated or {token for token in possible if _expands(token, wire, train)}


def _without_runs(token: int, wire: Sequence[int], train: Sequence[int]) -> bool:
    """Whether wire and train are equal once runs of `token` are collapsed to one."""

    def collapse(ids: Sequence[int]) -> list[int]:
        before = chain((None,), ids)
        return [i for i, last in zip(ids, before, strict=False) if i != token or last != token]

    return collapse(wire) == collapse(train)


def _expands(token: int, wire: tuple[int, ...], train: tuple[int, ...]) -> bool:
    """Whether replacing each `token` in wire by one or more ids can give train.

    Both are equal before the first `token`.
    """
    first, *between, last = _split(wire, token)
    position = len(first)
    for chunk in between:
        found = _find(chunk, train, position + 1)
        if found is None:
            return False
        position = found + len(chunk)
    return len(train) - len(last) > position and train[len(train) - len(last) :] == last


def _split(ids: tuple[int, ...], token: int) -> list[tuple[int, ...]]:
    cuts = [-1, *(n for n, value in enumerate(ids) if value == token), len(ids)]
    return [ids[before + 1 : cut] for before, cut in pairwise(cuts)]


def _find(chunk: tuple[int, ...], ids: tuple[int, ...], start: int) -> int | None:
    """Return the first position of the chunk at or after `start`; None if there is none."""
    if not chunk:
        return start
    while True:
        try:
            start = ids.index(chunk[0], start)
        except ValueError:
            return None
        if ids[start : start + len(chunk)] == chunk:
            return start
        start += 1
