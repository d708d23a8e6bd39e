"""One episode of a report: its data for the script, and its row in the list."""

import json
from dataclasses import dataclass
from html import escape
from typing import Any

from envkit.images import Image
from envkit.messages import Message, Part, text_of
from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.checks import Problem, check_trajectory
from envkit.trajectory.plain import plain_float, to_plain
from envkit.trajectory.record import TURN_FIELDS, Keep
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import Trajectory

_EXCERPT = 140


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What a report shows of one trajectory."""

    data: str
    """JSON that is safe inside a script element."""
    row: str
    """A table row."""
    images: tuple[Image, ...]
    """In the order of their first use."""
    token_ids: frozenset[int]
    is_broken: bool
    """Whether a rule or the certificate does not hold."""


def draw_episode(
    trajectory: Trajectory, recorded: Certificate | None, *, index: int, number: int
) -> Episode:
    """Prepare one trajectory.

    Args:
        trajectory: What to show.
        recorded: The certificate of its file; None for a trajectory in memory.
        index: Of the episode in the report, from 0.
        number: What to call it: its line in the file.

    Raises:
        StorageError: A free-form part holds what JSON cannot.
    """
    images: dict[Image, None] = {}
    problems = check_trajectory(trajectory)
    certificate = _certificate(trajectory, recorded)
    is_broken = bool(problems) or certificate["kind"] == "bad"

    def keep(image: Image) -> None:
        images.setdefault(image)

    data = {
        "number": number,
        "kind": ending_kind(trajectory),
        "certificate": certificate,
        "problems": [{"rule": p.rule.value, "message": p.message} for p in problems],
        **_facts(trajectory, keep),
        "messages": [_message(entry, keep) for entry in trajectory.messages],
        "turns": [
            {name: to_plain(getattr(turn, name), name, keep) for name in TURN_FIELDS}
            for turn in trajectory.turns
        ],
        "segments": [_segment(segment, keep) for segment in trajectory.segments],
    }
    ids = frozenset[int]().union(*(segment.train_ids for segment in trajectory.segments))
    return Episode(
        data=safe_json(data),
        row=_row(trajectory, problems, index=index, number=number, is_broken=is_broken),
        images=tuple(images),
        token_ids=ids,
        is_broken=is_broken,
    )


def safe_json(data: object) -> str:
    """Return JSON in which nothing can end a script element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def safe_html(text: str) -> str:
    """Return text for HTML; lone surrogates, which UTF-8 cannot hold, become question marks."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def ending_kind(trajectory: Trajectory) -> str:
    """Return the colour of a trajectory's ending: "good", "warn" or "bad"."""
    if trajectory.is_faulted:
        return "bad"
    return "warn" if trajectory.stop_reason.is_truncation or trajectory.reward is None else "good"


def _facts(trajectory: Trajectory, keep: Keep) -> dict[str, Any]:
    fault = trajectory.fault
    return {
        "episode_id": trajectory.episode_id,
        "env_id": trajectory.env_id,
        "engine": trajectory.engine,
        # As text: JavaScript rounds integers above 2^53.
        "seed": None if trajectory.seed is None else str(trajectory.seed),
        "group_id": trajectory.group_id,
        "reward": to_plain(trajectory.reward, "reward", keep),
        "stop_reason": trajectory.stop_reason.value,
        "fault": None
        if fault is None
        else {"where": fault.where, "kind": fault.kind, "message": fault.message},
        "duration_seconds": to_plain(trajectory.duration_seconds, "duration_seconds", keep),
        "env_restarts": trajectory.env_restarts,
        "task": to_plain(trajectory.task, "task", keep),
        "reset_info": to_plain(trajectory.reset_info, "reset_info", keep),
        "metadata": to_plain(trajectory.metadata, "metadata", keep),
    }


def _certificate(trajectory: Trajectory, recorded: Certificate | None) -> dict[str, str]:
    found = certify(trajectory)
    difference = None if recorded is None else recorded.difference(found)
    if difference is not None:
        return {"seal": found.seal, "status": f"broken: {difference}", "kind": "bad"}
    status, kind = ("computed now", "") if recorded is None else ("verified", "good")
    return {"seal": found.seal, "status": status, "kind": kind}


def _message(entry: Message, keep: Keep) -> dict[str, Any]:
    content = entry["content"]
    parts: list[dict[str, str]] = []
    spoken: list[Part] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    for part in spoken:
        if part["type"] == "image":
            keep(part["image"])
            parts.append({"image": part["image"].sha256})
        else:
            parts.append({"text": part["text"]})
    calls = to_plain(entry.get("tool_calls"), "tool_calls", keep)
    return {"role": entry["role"], "parts": parts, "tool_calls": calls}


def _segment(segment: Segment, keep: Keep) -> dict[str, Any]:
    for image in segment.images:
        keep(image)
    is_model = segment.kind is SegmentKind.MODEL
    return {
        "kind": segment.kind.value,
        "turn": segment.turn,
        "wire": len(segment.wire_ids),
        "ids": list(segment.train_ids),
        "mask": list(segment.loss_mask) if is_model else [],
        "logprobs": [plain_float(round(value, 4)) for value in segment.logprobs]
        if is_model
        else [],
        "images": [image.sha256 for image in segment.images],
        "weight_version": segment.weight_version,
    }


def _row(
    trajectory: Trajectory,
    problems: tuple[Problem, ...],
    *,
    index: int,
    number: int,
    is_broken: bool,
) -> str:
    turns = trajectory.turns
    marks = (
        ("fault", "bad", trajectory.is_faulted),
        ("broken", "bad", is_broken),
        ("parse error", "warn", any(turn.parse_error is not None for turn in turns)),
        ("retry", "warn", any(turn.env_retries or turn.engine_retries for turn in turns)),
        ("restart", "warn", trajectory.env_restarts > 0),
    )
    badges = "".join(f'<span class="badge {kind}">{name}</span>' for name, kind, on in marks if on)
    images = sum(len(segment.images) for segment in trajectory.segments)
    excerpt = _excerpt(trajectory)
    search = " ".join(
        (
            trajectory.episode_id,
            trajectory.group_id or "",
            excerpt,
            "" if trajectory.fault is None else trajectory.fault.message,
            *(problem.message for problem in problems),
        )
    )
    reward = "" if trajectory.reward is None else f"{trajectory.reward:g}"
    ending = trajectory.stop_reason.value
    values = {
        "index": str(index),
        "number": str(number),
        "search": search.lower(),
        "stop": ending,
        "marked": "1" if badges else "",
        "reward": reward,
        "turns": str(len(turns)),
        "tokens": str(trajectory.token_count),
        "seconds": f"{trajectory.duration_seconds:.6g}",
    }
    attributes = " ".join(f'data-{name}="{safe_html(value)}"' for name, value in values.items())
    return (
        f'<tr {attributes}><td class="n"><a href="#e{index}">{number}</a></td>'
        f'<td class="task">{safe_html(excerpt)}</td><td class="n">{reward or "none"}</td>'
        f'<td><span class="badge {ending_kind(trajectory)}">{ending}</span></td>'
        f'<td class="n">{len(turns)}</td>'
        f'<td class="n">{trajectory.token_count:,}</td><td class="n">{images}</td>'
        f'<td class="n">{trajectory.duration_seconds:.2f}</td><td>{badges}</td></tr>'
    )


def _excerpt(trajectory: Trajectory) -> str:
    asked = next((text_of(m) for m in trajectory.messages if m["role"] == "user"), "")
    role = trajectory.metadata.get("role")
    whose = f"{role}: " if isinstance(role, str) else ""
    text = whose + " ".join((asked or trajectory.episode_id).split())
    return text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"
