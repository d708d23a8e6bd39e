"""One episode of a report: all of it as data for the script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envkit.images import Image
from envkit.messages import Message, Part
from envkit.report.facts import EpisodeFacts, ending_kind, episode_facts
from envkit.report.markup import pack
from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.checks import check_trajectory
from envkit.trajectory.plain import Keep, plain_float, to_plain
from envkit.trajectory.record import write_fields
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What a page shows of one trajectory."""

    facts: EpisodeFacts
    packed: str
    """Everything, for the script's `unpack`."""
    images: tuple[Image, ...]
    """In the order of their first use."""
    token_ids: frozenset[int]
    """Whose text the page shows; empty where it shows none."""
    is_broken: bool
    """Whether a rule or the certificate does not hold."""


def draw_episode(
    trajectory: Trajectory, recorded: Certificate | None, *, number: int, with_tokens: bool = False
) -> Episode:
    """Prepare one trajectory.

    Args:
        trajectory: What to show.
        recorded: The certificate of its file; None for a trajectory in memory.
        number: What to call it: its line in the file.
        with_tokens: Whether to collect `Episode.token_ids`.

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
        "kind": ending_kind(trajectory.stop_reason, trajectory.reward),
        "certificate": certificate,
        "problems": [{"rule": p.rule.value, "message": p.message} for p in problems],
        **_parts(trajectory, keep),
        "messages": [_message(entry, keep) for entry in trajectory.messages],
        "turns": [write_fields(turn, "turn", keep) for turn in trajectory.turns],
        "segments": [_segment(segment, keep) for segment in trajectory.segments],
    }
    segments = trajectory.segments if with_tokens else ()
    return Episode(
        facts=episode_facts(trajectory, problems, number=number, is_broken=is_broken),
        packed=pack(data),
        images=tuple(images),
        token_ids=frozenset[int]().union(*(segment.train_ids for segment in segments)),
        is_broken=is_broken,
    )


def _parts(trajectory: Trajectory, keep: Keep) -> dict[str, Any]:
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
        "ids": segment.train_ids,
        "mask": segment.loss_mask if is_model else [],
        "logprobs": _rounded(segment.logprobs) if is_model else [],
        "images": [image.sha256 for image in segment.images],
        "weight_version": segment.weight_version,
    }


def _rounded(values: Sequence[float]) -> list[Any]:  # JSON data
    """Return log-probabilities as a page shows them: four places after the point."""
    if all(map(math.isfinite, values)):
        return [round(value, 4) for value in values]
    return [plain_float(round(value, 4)) for value in values]
