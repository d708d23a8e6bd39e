"""Convert a trajectory to a sample of an Inspect log.

The formats follow inspect_ai 0.3.285: `EvalSample` and `EvalSampleSummary` in
inspect_ai/log/_log.py, chat messages in inspect_ai/model/_chat_message.py. Long contents are stored
once, as attachments that messages refer to, like `condense_sample` in inspect_ai/log/_condense.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final, cast

from envkit.images import Image
from envkit.messages import Message
from envkit.text import utf8
from envkit.trajectory import StopReason, Trajectory
from envkit.trajectory.plain import to_plain
from envkit.trajectory.trajectory import role_of

SCORER: Final = "reward"
"""Name of a sample's only score."""
_IMAGE_NOTE: Final = "[image]"
_SHOWN_INPUT: Final = 2000
"""Maximum characters of a text in a summary; a viewer loads all summaries at once."""
_STOPS: Final[Mapping[str, str]] = {"length": "max_tokens", "stop": "stop"}
_LIMITS: Final[Mapping[StopReason, str]] = {
    StopReason.ENV_TRUNCATED: "turn",
    StopReason.MAX_TURNS: "turn",
    StopReason.TURN_TOKENS: "token",
    StopReason.RESPONSE_TOKENS: "token",
    StopReason.SAMPLED_TOKENS: "token",
    StopReason.CONTEXT_TOKENS: "context",
    StopReason.MAX_IMAGES: "context",
    StopReason.MAX_SEQUENCES: "turn",
    StopReason.EPISODE_TIMEOUT: "time",
    StopReason.STEP_TIMEOUT: "time",
    StopReason.ABORTED: "operator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An episode in Inspect's format."""

    record: dict[str, Any]
    """The whole `EvalSample`."""
    summary: dict[str, Any]
    """Its `EvalSampleSummary`."""
    usage: Mapping[str, int]
    """Token counts, by Inspect's names."""


@dataclass(slots=True)
class _Attachments:
    """A sample's images by hash, each stored once."""

    uris: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, image: Image) -> str:
        """Return the reference that replaces the image in a message."""
        self.uris.setdefault(image.sha256, image.data_uri())
        return f"attachment://{image.sha256}"


def sample_of(trajectory: Trajectory, *, sample_id: str, epoch: int) -> Sample:
    """Return a trajectory as a sample.

    Args:
        trajectory: Finished, faulted or aborted.
        sample_id: Id of the task, shared by the episodes of a group.
        epoch: Number of the episode in its group, from 1.

    Raises:
        StorageError: The metadata cannot be written as JSON.
    """
    kept = _Attachments()
    messages = _messages(trajectory, kept)
    usage, model = _usage(trajectory), model_of(trajectory)
    seconds = trajectory.duration_seconds
    common: dict[str, Any] = {
        "id": sample_id,
        "epoch": epoch,
        "target": _target(trajectory.task),
        "metadata": _metadata(trajectory),
        "scores": _scores(trajectory),
        "model_usage": {model: usage},
        "total_time": seconds,
        "working_time": seconds - sum(turn.queue_seconds for turn in trajectory.turns),
        "uuid": trajectory.episode_id,
        "turn_count": len(trajectory.turns),
    }
    if choices := _choices(trajectory.task):
        common["choices"] = choices
    first = next((n for n, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    record = {
        **common,
        "input": messages[:first],
        "messages": messages,
        "output": _output(trajectory, messages, model, usage),
        "attachments": kept.uris,
    }
    summary = {**common, "completed": True, "message_count": len(messages)}
    summary["input"] = _brief_input(messages[:first])
    fault, limit = trajectory.fault, _LIMITS.get(trajectory.stop_reason)
    if fault is not None:
        message = utf8(f"{fault.where} ({fault.kind}): {fault.message}")
        trace = utf8(fault.traceback or message)
        record["error"] = {"message": message, "traceback": trace, "traceback_ansi": trace}
        summary["error"] = message
    elif limit is not None:
        reached = _reached(trajectory, limit)
        why = f"envkit: {trajectory.stop_reason.value}"
        record["limit"] = {"type": limit, "limit": reached, "reason": why}
        summary |= {"limit": limit, "limit_reason": why}
    return Sample(record=record, summary=summary, usage=usage)


def model_of(trajectory: Trajectory) -> str:
    """Return the model as `engine/model`, with only the folder name of local weights."""
    model: object = trajectory.metadata.get("model")
    engine = trajectory.engine or "unknown"
    if engine == "scripted" or not isinstance(model, str) or not model:
        return engine
    return f"{engine}/{PurePath(model).name if PurePath(model).is_absolute() else model}"


def _messages(trajectory: Trajectory, kept: _Attachments) -> list[dict[str, Any]]:
    """Return the conversation, with the calls that the environment parsed from each reply."""
    written: list[dict[str, Any]] = []
    call: Mapping[str, Any] | None = None
    turn = 0
    for number, entry in enumerate(trajectory.messages):
        shown: dict[str, Any] = {
            "id": f"{trajectory.episode_id}-{number}",
            "role": entry["role"],
            "content": _content(entry, kept),
        }
        if entry["role"] == "assistant":
            call = trajectory.turns[turn].tool_call if turn < len(trajectory.turns) else None
            turn += 1
            shown |= {"source": "generate", "model": model_of(trajectory)}
            if call is not None:
                shown["tool_calls"] = [_call(call, turn)]
        elif entry["role"] == "tool" and call is not None:
            made = _call(call, turn)
            shown |= {"tool_call_id": made["id"], "function": made["function"]}
        written.append(shown)
    return written


def _content(entry: Message, kept: _Attachments) -> str | list[dict[str, str]]:
    content = entry["content"]
    if isinstance(content, str):
        return utf8(content)
    return [
        {"type": "text", "text": utf8(part["text"])}
        if part["type"] == "text"
        else {"type": "image", "image": kept.add(part["image"])}
        for part in content
    ]


def _call(call: Mapping[str, Any], turn: int) -> dict[str, Any]:
    """Return a call with an id unique in the episode, since models restart counting per reply."""
    arguments: Any = call.get("arguments")
    return {
        "id": utf8(f"turn{turn}-{call.get('id') or 'call'}"),
        "type": "function",
        "function": utf8(str(call.get("name") or "unknown")),
        "arguments": _plain(cast("Mapping[str, Any]", arguments))
        if isinstance(arguments, Mapping)
        else {},
    }


def _output(
    trajectory: Trajectory,
    messages: Sequence[dict[str, Any]],
    model: str,
    usage: Mapping[str, int],
) -> dict[str, Any]:
    replies = [entry for entry in messages if entry["role"] == "assistant"]
    if not replies:
        return {"model": model}
    last = trajectory.turns[-1].finish_reason if trajectory.turns else ""
    content = replies[-1]["content"]
    return {
        "model": model,
        "choices": [{"message": replies[-1], "stop_reason": _STOPS.get(last, "unknown")}],
        "completion": content if isinstance(content, str) else "",
        "usage": usage,
    }


def _usage(trajectory: Trajectory) -> dict[str, int]:
    """Return the tokens that the engine received and sampled, over all turns."""
    read = sum(turn.prompt_tokens for turn in trajectory.turns)
    written = sum(turn.response_tokens for turn in trajectory.turns)
    cached = sum(turn.cached_tokens for turn in trajectory.turns)
    return {
        "input_tokens": read - cached,
        "output_tokens": written,
        "total_tokens": read + written,
        "input_tokens_cache_read": cached,
    }


def _scores(trajectory: Trajectory) -> dict[str, Any] | None:
    """Return the reward as a score; None without a reward, which Inspect counts as unscored."""
    if trajectory.reward is None:
        return None
    terms: dict[str, float] = {}
    answer: object = None
    for turn in trajectory.turns:
        answer = turn.info.get("answer", answer)
        earned: object = turn.info.get("reward_terms")
        for name, value in cast(
            "Mapping[str, Any]", earned if isinstance(earned, Mapping) else {}
        ).items():
            if isinstance(value, int | float):
                terms[utf8(str(name))] = terms.get(name, 0.0) + value
    said = utf8(answer) if isinstance(answer, str) else None
    return {SCORER: {"value": trajectory.reward, "answer": said, "metadata": terms}}


def _metadata(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "env_id": trajectory.env_id,
        "seed": None if trajectory.seed is None else str(trajectory.seed),
        "group_id": trajectory.group_id,
        "role": role_of(trajectory),
        "stop_reason": trajectory.stop_reason.value,
        "env_restarts": trajectory.env_restarts,
        "trained_tokens": trajectory.trained_token_count,
        "initial_observation_hash": trajectory.initial_observation_hash,
        "turn_rewards": [turn.reward for turn in trajectory.turns],
        "envkit": _plain(trajectory.metadata),
    }


def _reached(trajectory: Trajectory, limit: str) -> float:
    """Return the count that reached the limit; the record does not hold the limit itself."""
    if limit == "time":
        return trajectory.duration_seconds
    if limit in ("token", "context"):
        return trajectory.token_count
    return len(trajectory.turns)


def _target(task: Mapping[str, Any]) -> str:
    answer = task.get("answer")
    return utf8(str(answer)) if isinstance(answer, str | int | float) else ""


def _choices(task: Mapping[str, Any]) -> list[str] | None:
    choices = task.get("choices")
    if not isinstance(choices, list):
        return None
    return [utf8(str(choice)) for choice in cast("list[Any]", choices)]


def _brief_input(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the opening without images, truncated."""
    brief: list[dict[str, Any]] = []
    for entry in messages:
        content = entry["content"]
        if not isinstance(content, str):
            content = "\n".join(part.get("text", _IMAGE_NOTE) for part in content)
        brief.append({"role": entry["role"], "content": content[:_SHOWN_INPUT]})
    return brief


def _plain(value: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON
    return to_plain(value, "metadata", lambda _: None)
