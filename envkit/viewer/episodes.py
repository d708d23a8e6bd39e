"""One episode as JSON data: what its page shows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envkit.errors import ImageError, StorageError
from envkit.images import Image
from envkit.messages import Message, Part
from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.checks import check_trajectory
from envkit.trajectory.image_folder import ImageFolder
from envkit.trajectory.plain import Keep, plain_float, to_plain
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import Trajectory, TurnRecord
from envkit.viewer.pictures import picture_size
from envkit.viewer.rows import EpisodeRow, episode_row, title_of
from envkit.viewer.words import call_words, marks_of, thought_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One trajectory, ready to be shown."""

    row: EpisodeRow
    data: dict[str, Any]
    """JSON data; see `episode`."""
    images: tuple[Image, ...]
    """In the order of their first use."""
    token_ids: frozenset[int] = field(repr=False)
    """Every train id, for the vocabulary."""

    @property
    def is_broken(self) -> bool:
        """Whether a rule or the certificate does not hold."""
        return "broken" in self.row.flags


def episode(
    trajectory: Trajectory,
    recorded: Certificate | None,
    *,
    number: int,
    folder: ImageFolder | None = None,
) -> Episode:
    """Prepare one trajectory for its page.

    The conversation is a list of sequences, each with the sequence it branches from ("parent", its
    index) and the turn where it does ("branch_turn"). Today there is one, without a parent.

    Args:
        trajectory: What to show.
        recorded: The certificate of its file; None for a trajectory in memory.
        number: Its line in the file, from 1.
        folder: Where its images' files are; None for images in memory.

    Raises:
        StorageError: A free-form part holds what JSON cannot.
    """
    images: dict[Image, None] = {}

    def keep(image: Image) -> None:
        images.setdefault(image)

    problems = check_trajectory(trajectory)
    certificate = _certificate(trajectory, recorded)
    is_broken = bool(problems) or certificate["kind"] == "bad"
    data = {
        "number": number,
        "title": title_of(trajectory),
        **_head(trajectory, keep),
        "certificate": certificate,
        "problems": [{"rule": one.rule.value, "message": one.message} for one in problems],
        "sequences": [{"parent": None, "branch_turn": None, **_sequence(trajectory, keep)}],
    }
    data["sizes"] = {one.sha256: size for one in images if (size := _size(one, folder))}
    return Episode(
        row=episode_row(trajectory, number=number, problems=problems, is_broken=is_broken),
        data=data,
        images=tuple(images),
        token_ids=frozenset[int]().union(*(s.train_ids for s in trajectory.segments)),
    )


def _head(trajectory: Trajectory, keep: Keep) -> dict[str, Any]:
    fault = trajectory.fault
    return {
        "id": trajectory.episode_id,
        "env": trajectory.env_id,
        "engine": trajectory.engine,
        "seed": None if trajectory.seed is None else str(trajectory.seed),
        "group": trajectory.group_id,
        "reward": to_plain(trajectory.reward, "reward", keep),
        "stop": trajectory.stop_reason.value,
        "fault": None
        if fault is None
        else {"where": fault.where, "kind": fault.kind, "message": fault.message},
        "seconds": to_plain(trajectory.duration_seconds, "duration_seconds", keep),
        "restarts": trajectory.env_restarts,
        "task": to_plain(trajectory.task, "task", keep),
        "reset_info": to_plain(trajectory.reset_info, "reset_info", keep),
        "metadata": to_plain(trajectory.metadata, "metadata", keep),
        "has_ledger": trajectory.has_ledger,
    }


def _certificate(trajectory: Trajectory, recorded: Certificate | None) -> dict[str, str]:
    found = certify(trajectory)
    difference = None if recorded is None else recorded.difference(found)
    if difference is not None:
        return {"seal": found.seal, "status": f"broken: {difference}", "kind": "bad"}
    status, kind = ("computed now", "") if recorded is None else ("verified", "good")
    return {"seal": found.seal, "status": status, "kind": kind}


def _sequence(trajectory: Trajectory, keep: Keep) -> dict[str, Any]:
    """Return the conversation: its turns, and what the environment said after the last reply."""
    heard: list[dict[str, Any]] = []
    seen: list[str] = []
    turns: list[dict[str, Any]] = []
    records = iter(trajectory.turns)
    ledger = _by_turn(trajectory.segments)
    for entry in trajectory.messages:
        if entry["role"] != "assistant":
            heard.append(_message(entry, keep))
            seen += heard[-1]["images"]
            continue
        turns.append(
            _turn(next(records, None), entry, heard, seen, ledger.get(len(turns), ()), keep)
        )
        heard = []
    for record in records:  # a turn whose reply is not among the messages
        segments = ledger.get(len(turns), ())
        turns.append(_turn(record, None, heard, seen, segments, keep))
        heard = []
    return {"turns": turns, "final": heard, "pictures": seen}


def _turn(
    record: TurnRecord | None,
    entry: Message | None,
    heard: list[dict[str, Any]],
    seen: Sequence[str],
    segments: Sequence[Segment],
    keep: Keep,
) -> dict[str, Any]:
    spoken = None if entry is None else _message(entry, keep)
    calls: list[dict[str, Any]] = to_plain((entry or {}).get("tool_calls") or [], "calls", keep)
    data: dict[str, Any] = {
        "heard": heard,
        "shown": seen[-1] if seen else None,
        "reply": spoken["text"] if spoken else record.response_text if record else "",
        "images": spoken["images"] if spoken else [],
        "calls": [call_words(call) for call in calls],
        "tokens": _tokens(segments),
    }
    if record is None:
        return {**data, "marks": [], "words": data["calls"], "thought": data["reply"]}
    return {**data, **_recorded(record, data["calls"], seen, keep)}


def _recorded(
    record: TurnRecord, calls: list[str], seen: Sequence[str], keep: Keep
) -> dict[str, Any]:
    """Return what the rollout recorded of a turn."""
    marks, left_out = marks_of(record.info)
    words = [mark["words"] for mark in marks]
    if not words and record.parse_error is None:
        words = calls or ([] if record.tool_call is None else [call_words(record.tool_call)])
    info = {k: v for k, v in record.info.items() if k not in _SHOWN_ELSEWHERE}
    return {
        "reply": record.response_text,
        "thought": thought_of(record, has_actions=bool(words)),
        "marks": [_placed(mark, seen, keep) for mark in marks],
        "marks_left_out": left_out,
        "words": words,
        "reward": to_plain(record.reward, "reward", keep),
        "terms": to_plain(record.info.get("reward_terms") or {}, "reward_terms", keep),
        "info": to_plain(info, "info", keep),
        "parse_error": record.parse_error,
        "times": {part: plain_float(round(s, 6)) for part, s in record.seconds.items()},
        "finish": record.finish_reason,
        "version": record.weight_version,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "observation_tokens": record.observation_tokens,
        "engine_retries": record.engine_retries,
        "resamples": record.resamples,
        "env_retries": dict(record.env_retries),
        "neutralised": record.neutralised,
        "sanity": record.sanity,
        "agent": to_plain(record.info.get("agent"), "agent", keep),
    }


_SHOWN_ELSEWHERE = frozenset({"marks", "reward_terms", "parse_error", "tool_call", "turn", "agent"})


def _placed(mark: Mapping[str, Any], seen: Sequence[str], keep: Keep) -> dict[str, Any]:
    """Return a mark with the name of the image it is on if it names one."""
    index = mark.get("image")
    on = seen[index] if type(index) is int and 0 <= index < len(seen) else None
    return {**to_plain(mark, "mark", keep), "on": on}


def _by_turn(segments: Sequence[Segment]) -> dict[int, list[Segment]]:
    found: dict[int, list[Segment]] = {}
    for segment in segments:
        found.setdefault(segment.turn, []).append(segment)
    return found


def _tokens(segments: Sequence[Segment]) -> dict[str, Any]:
    """Return a turn's tokens: those of its context and those that the model sampled."""
    context = [i for s in segments if s.kind is not SegmentKind.MODEL for i in s.train_ids]
    model = [segment for segment in segments if segment.kind is SegmentKind.MODEL]
    return {
        "context": context,
        "ids": [i for segment in model for i in segment.train_ids],
        "mask": [m for segment in model for m in segment.loss_mask],
        "logprobs": [p for segment in model for p in _rounded(segment.logprobs)],
    }


def _message(entry: Message, keep: Keep) -> dict[str, Any]:
    content = entry["content"]
    parts: list[Part] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts:
        if part["type"] == "image":
            keep(part["image"])
    return {
        "role": entry["role"],
        "text": "\n".join(_texts(parts)),
        "images": [part["image"].sha256 for part in parts if part["type"] == "image"],
    }


def _texts(parts: Sequence[Part]) -> Iterator[str]:
    return (part["text"] for part in parts if part["type"] == "text")


def _size(image: Image, folder: ImageFolder | None) -> tuple[int, int] | None:
    """Return width and height; None for an image that cannot be read."""
    try:
        return picture_size(image, folder)
    except (ImageError, StorageError):
        return None


def _rounded(values: Sequence[float]) -> list[Any]:  # JSON data
    """Return log-probabilities as a page shows them: four places after the point."""
    if all(map(math.isfinite, values)):
        return [round(value, 4) for value in values]
    return [plain_float(round(value, 4)) for value in values]
