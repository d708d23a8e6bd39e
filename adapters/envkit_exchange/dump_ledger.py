"""Rebuild a ledger from a trainer's flat columns: segments and turns.

A trainer's sample is one row: prompt, response, mask. Only the mask separates replies from
observations, so two replies without an observation between them become one turn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from envkit.errors import StorageError
from envkit.messages import Message, message
from envkit.trajectory import Segment, SegmentKind, TurnRecord

Decode = Callable[[Sequence[int]], str]
"""Converts token ids to text."""
UNKNOWN: Final = ""
"""Finish reason of a reply whose end was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One sample of a dump."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]  # (R,)
    loss_mask: tuple[int, ...]  # (R,)
    logprobs: tuple[float, ...]  # (R,); nan if the dump has none
    weight_versions: tuple[str, ...] = ()
    reward: float | None
    """Reward of the trajectory, given to the last turn."""
    is_cut: bool = False
    """Whether the last reply hit the length limit."""

    def __post_init__(self) -> None:
        """Reject columns of different lengths.

        Raises:
            StorageError: The lengths differ.
        """
        lengths = (len(self.response_ids), len(self.loss_mask), len(self.logprobs))
        if len(set(lengths)) != 1:
            raise StorageError(
                "response ids, loss mask and log-probabilities must have one length, "
                f"got {lengths}; the dump is damaged or from another version"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltLedger:
    """A ledger rebuilt from columns."""

    segments: tuple[Segment, ...]
    turns: tuple[TurnRecord, ...]
    dropped_tokens: int
    """Tokens after the last reply, dropped because a ledger ends with a reply."""


def rebuild(columns: Columns, decode: Decode | None = None) -> RebuiltLedger:
    """Return the ledger of a sample.

    A token belongs to a reply if it is trained or has a nonzero log-probability: trainers also mask
    out sampled tokens, such as those from older weights.

    Args:
        columns: The sample.
        decode: Decodes the texts of the turns; None leaves them empty.
    """
    runs = _runs(columns)
    while runs and not runs[-1].is_model:
        runs = runs[:-1]
    end = runs[-1].end if runs else 0
    prompt = columns.prompt_ids
    if runs and not runs[0].is_model:  # a response that begins with an observation
        prompt, runs = prompt + columns.response_ids[: runs[0].end], runs[1:]
    replies = sum(run.is_model for run in runs)
    versions: Sequence[str | None] = columns.weight_versions
    if len(versions) != replies:
        versions = [versions[0] if len(set(versions)) == 1 else None] * replies
    segments = [_context(SegmentKind.PROMPT, prompt, turn=0)]
    turns: list[TurnRecord] = []
    length = len(prompt)
    for index, run in enumerate(runs):
        ids = columns.response_ids[run.start : run.end]
        if run.is_model:
            is_last = len(turns) + 1 == replies
            segment = _reply(columns, run, turn=len(turns), version=versions[len(turns)])
            reward = (columns.reward if is_last else 0.0) if columns.reward is not None else None
            segments.append(segment.with_reward(reward))
            observed = 0 if is_last else runs[index + 1].end - runs[index + 1].start
            turns.append(
                TurnRecord(
                    turn=segment.turn,
                    prompt_tokens=length,
                    response_tokens=segment.token_count,
                    observation_tokens=observed,
                    response_text="" if decode is None else decode(ids),
                    reward=reward,
                    finish_reason=segment.finish_reason or UNKNOWN,
                    weight_version=segment.weight_version,
                )
            )
        else:
            segments.append(_context(SegmentKind.OBSERVATION, ids, turn=len(turns)))
        length += len(ids)
    return RebuiltLedger(
        segments=tuple(segments) if prompt or runs else (),
        turns=tuple(turns),
        dropped_tokens=len(columns.response_ids) - end,
    )


def conversation(ledger: RebuiltLedger, decode: Decode) -> tuple[Message, ...]:
    """Return the segments after the prompt as messages, decoded one by one."""
    return tuple(
        message(
            "assistant" if segment.kind is SegmentKind.MODEL else "user", decode(segment.train_ids)
        )
        for segment in ledger.segments
        if segment.kind is not SegmentKind.PROMPT
    )


@dataclass(frozen=True, slots=True)
class _Run:
    is_model: bool
    start: int
    end: int


def _runs(columns: Columns) -> list[_Run]:
    flags = [
        bool(mask) or (logprob != 0.0 and not math.isnan(logprob))
        for mask, logprob in zip(columns.loss_mask, columns.logprobs, strict=True)
    ]
    sizes = [(is_model, len(list(group))) for is_model, group in groupby(flags)]
    bounds = [0]
    for _, size in sizes:
        bounds.append(bounds[-1] + size)
    return [_Run(flag, *span) for (flag, _), span in zip(sizes, pairwise(bounds), strict=True)]


def _context(kind: SegmentKind, ids: tuple[int, ...], *, turn: int) -> Segment:
    return Segment(kind=kind, turn=turn, wire_ids=ids, train_ids=ids)


def _reply(columns: Columns, run: _Run, *, turn: int, version: str | None) -> Segment:
    ids = columns.response_ids[run.start : run.end]
    is_last = run.end == len(columns.response_ids)
    return Segment(
        kind=SegmentKind.MODEL,
        turn=turn,
        wire_ids=ids,
        train_ids=ids,
        loss_mask=columns.loss_mask[run.start : run.end],
        logprobs=columns.logprobs[run.start : run.end],
        weight_version=version,
        finish_reason="length" if is_last and columns.is_cut else UNKNOWN,
    )
