"""The turns of an episode as JSON data: messages, actions, images and tokens."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.marks import MAX_MARKS, MAX_TEXT_BYTES, mark_problems, words
from envkit.messages import Message, Part
from envkit.reply import FinishReason
from envkit.toolcalls import parse_tool_calls
from envkit.trajectory.plain import Keep, plain_float, to_plain
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import AGENT, Trajectory, TurnRecord

_JSON: Final = json.JSONDecoder()
_CUTS: Final = {
    StopReason.TURN_TOKENS: "max_tokens_per_turn was reached",
    StopReason.RESPONSE_TOKENS: "max_response_tokens was used up",
    StopReason.SAMPLED_TOKENS: "max_sampled_tokens was used up",
    StopReason.CONTEXT_TOKENS: "max_context_tokens was reached",
}
_OPENINGS: Final = ('[{"', '{"', "[ {", '{ "', "```json")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of an episode by turn."""

    turns: list[dict[str, Any]]
    final: list[dict[str, Any]]
    """The environment's messages after the last reply."""


def conversation(trajectory: Trajectory, keep: Keep) -> Conversation:
    """Return the conversation of an episode.

    Args:
        trajectory: The trajectory to show.
        keep: Called with each image.

    Raises:
        StorageError: JSON cannot represent a free-form part.
    """
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
    for record in records:  # turns without a reply in the messages
        segments = ledger.get(len(turns), ())
        turns.append(_turn(record, None, heard, seen, segments, keep))
        heard = []
    for turn, record in zip(turns, trajectory.turns, strict=False):
        turn["cut"] = cut_words(record, trajectory.stop_reason)
    if AGENT in trajectory.metadata:
        _name_agent(turns)
    return Conversation(turns, heard)


def cut_words(record: TurnRecord, stop: StopReason) -> str | None:
    """Return what cut a reply short, or None for a whole reply.

    Args:
        record: The turn of the reply.
        stop: Why the episode ended.
    """
    if record.finish_reason == FinishReason.ABORT:
        is_stopped = stop is StopReason.ABORTED
        return "the run was stopped" if is_stopped else "the request was aborted"
    if record.finish_reason != FinishReason.LENGTH:
        return None
    # A limit of the episode ends it before the step; max_new_tokens does not.
    has_step = record.reward is not None
    return (
        "max_new_tokens was reached" if has_step else _CUTS.get(stop, "a token limit was reached")
    )


def _name_agent(turns: Sequence[dict[str, Any]]) -> None:
    """Say that an agent asked the model, and which of its replies are not trained."""
    for turn in turns:
        for entry in turn["heard"]:
            if entry["role"] in ("user", "question"):
                entry["role"] = "agent"
        turn["untrained"], turn["purpose"] = turn["purpose"], None


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
    purpose = None if record is None else record.purpose
    if purpose is not None and heard:
        heard[-1]["role"] = "question"
    data: dict[str, Any] = {
        "heard": heard,
        "purpose": purpose,
        "untrained": None,
        "cut": None,
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
    """Return the data that comes from a turn's record."""
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
        "parse_error": to_plain(record.parse_error, "parse_error", keep),
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
    """Return a mark with the hash of its image, if it refers to one."""
    index = mark.get("image")
    on = seen[index] if type(index) is int and 0 <= index < len(seen) else None
    return {**to_plain(mark, "mark", keep), "on": on}


def _by_turn(segments: Sequence[Segment]) -> dict[int, list[Segment]]:
    found: dict[int, list[Segment]] = {}
    for segment in segments:
        found.setdefault(segment.turn, []).append(segment)
    return found


def _tokens(segments: Sequence[Segment]) -> dict[str, Any]:
    """Return a turn's new context tokens and the tokens that the model sampled."""
    context: list[int] = []
    model: list[Segment] = []
    for segment in segments:
        if segment.kind is SegmentKind.MODEL:
            model.append(segment)
        else:
            context += segment.array("train_ids").tolist()
    return {
        "context": context,
        "ids": [i for segment in model for i in segment.array("train_ids").tolist()],
        "mask": [m for segment in model for m in segment.array("loss_mask").tolist()],
        "logprobs": [p for segment in model for p in _logprobs(segment)],
    }


def _logprobs(segment: Segment) -> list[Any]:  # JSON data
    """Return log-probabilities rounded for display, to four decimal places."""
    stored = segment.stored("logprobs")
    if stored is None:
        return [0.0] * segment.token_count
    values = stored.tolist()
    if all(map(math.isfinite, values)):
        return [round(value, 4) for value in values]
    return [plain_float(round(value, 4)) for value in values]


def _message(entry: Message, keep: Keep) -> dict[str, Any]:
    content = entry["content"]
    parts: list[Part] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts:
        if part["type"] == "image":
            keep(part["image"])
    return {
        "role": entry["role"],
        "text": "\n".join(part["text"] for part in parts if part["type"] == "text"),
        "images": [part["image"].sha256 for part in parts if part["type"] == "image"],
    }


def marks_of(info: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the marks in recorded info, each with its "words", and the number left out.

    A mark that violates the contract gets only words, so the page draws nothing for it.
    """
    given = info.get("marks")
    if not isinstance(given, (list, tuple)):  # a record in memory may have a tuple
        return [], 0
    marks = cast("Sequence[Any]", given)
    return [_said(mark) for mark in marks[:MAX_MARKS]], max(0, len(marks) - MAX_MARKS)


def _said(mark: Any) -> dict[str, Any]:  # noqa: ANN401  # what a file holds
    if any(mark_problems([mark])):
        return {"kind": "unreadable", "words": "unreadable mark"}
    return {**mark, "words": words(mark)}


def call_words(given: object) -> str:
    """Return a tool call as text: name and arguments, or JSON if it has an unknown shape."""
    call = to_plain(given, "tool_call", lambda _: None)
    outer = _mapping(call)
    source = _mapping(outer.get("function")) or outer
    if "name" not in source:
        return json.dumps(call, ensure_ascii=False)[:MAX_TEXT_BYTES]
    arguments = source.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {"": arguments}
    shown = ", ".join(
        f"“{v}”" if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
        for v in _mapping(arguments).values()
    )
    return f"{source['name']}({shown})"[:MAX_TEXT_BYTES]


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def thought_of(turn: TurnRecord, *, has_actions: bool) -> str:
    """Return the reply without its actions, which are shown separately."""
    text = turn.response_text
    if not has_actions:
        return text
    parsed = parse_tool_calls(turn.reply)
    if parsed.calls:
        return "\n".join(part for part in (parsed.thinking, parsed.text) if part)
    starts = sorted(at for opening in _OPENINGS if (at := text.find(opening)) >= 0)
    for start in starts:
        begin = text.find("{", start) if text.startswith("```", start) else start
        try:
            _JSON.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        return text[:start].strip()
    return text
