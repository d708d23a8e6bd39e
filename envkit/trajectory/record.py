"""A trajectory as one JSON object, and back.

Every column of the ledger is written out, masks and zeros too: a reader in any language needs no
rule to rebuild it. Processor tensors are not written; they are recomputed from the images.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final, cast

from envkit.errors import StorageError
from envkit.images import Image
from envkit.messages import Message, check_message
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.fields import Fields
from envkit.trajectory.plain import plain_float, to_plain
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import FaultRecord, Trajectory
from envkit.trajectory.turn import TurnRecord

SCHEMA: Final = 1
"""Version of the object's shape; raised when an older reader would misread it."""

Keep = Callable[[Image], None]


def encode(trajectory: Trajectory, certificate: Certificate, keep: Keep) -> dict[str, Any]:
    """Return the trajectory as strict JSON data.

    Args:
        trajectory: What to write.
        certificate: Of this trajectory.
        keep: Called with every image; the record refers to it by hash.

    Raises:
        StorageError: A value in a free-form part that JSON cannot hold.
    """
    snapshot = trajectory.env_snapshot
    fault = trajectory.fault
    return {
        "schema": SCHEMA,
        "episode_id": trajectory.episode_id,
        "env_id": trajectory.env_id,
        "seed": trajectory.seed,
        "group_id": trajectory.group_id,
        "task": to_plain(trajectory.task, "task", keep),
        "reward": to_plain(trajectory.reward, "reward", keep),
        "stop_reason": trajectory.stop_reason.value,
        "fault": None
        if fault is None
        else {"where": fault.where, "kind": fault.kind, "message": fault.message},
        "reset_info": to_plain(trajectory.reset_info, "reset_info", keep),
        "initial_observation_hash": trajectory.initial_observation_hash,
        "env_restarts": trajectory.env_restarts,
        "duration_seconds": plain_float(trajectory.duration_seconds),
        "engine": trajectory.engine,
        "env_snapshot": None if snapshot is None else base64.b64encode(snapshot).decode("ascii"),
        "metadata": to_plain(trajectory.metadata, "metadata", keep),
        "segments": [
            _encode_segment(segment, f"segments[{n}]", keep)
            for n, segment in enumerate(trajectory.segments)
        ],
        "turns": [
            _encode_turn(turn, f"turns[{n}]", keep) for n, turn in enumerate(trajectory.turns)
        ],
        "messages": [
            to_plain(entry, f"messages[{n}]", keep) for n, entry in enumerate(trajectory.messages)
        ],
        "certificate": {
            "algorithm": certificate.algorithm,
            "links": list(certificate.links),
            "seal": certificate.seal,
        },
    }


def decode(row: object, image: Callable[[str], Image]) -> tuple[Trajectory, Certificate]:
    """Return the trajectory and its recorded certificate, which is not compared here.

    Args:
        row: JSON data.
        image: Gives the image of a hash.

    Raises:
        StorageError: Another schema, or a field that is missing or has the wrong type.
        LedgerFault: A segment whose columns do not line up.
    """
    fields = Fields.of(row, "", image)
    _check_schema(fields)
    fault = fields.optional_child("fault")
    stop_reason = fields.text("stop_reason")
    if stop_reason not in set(StopReason):
        raise StorageError(f"stop_reason must be one of {[*StopReason]}, got {stop_reason!r}")
    trajectory = Trajectory(
        episode_id=fields.text("episode_id"),
        env_id=fields.text("env_id"),
        seed=fields.optional_integer("seed"),
        group_id=fields.optional_text("group_id"),
        task=fields.mapping("task"),
        reward=fields.optional_number("reward"),
        stop_reason=StopReason(stop_reason),
        fault=None if fault is None else _decode_fault(fault),
        reset_info=fields.mapping("reset_info"),
        initial_observation_hash=fields.optional_text("initial_observation_hash"),
        env_restarts=fields.integer("env_restarts"),
        duration_seconds=fields.number("duration_seconds"),
        engine=fields.text("engine"),
        env_snapshot=_decode_snapshot(fields.optional_text("env_snapshot")),
        metadata=fields.mapping("metadata"),
        segments=tuple(_decode_segment(child) for child in fields.children("segments")),
        turns=tuple(_decode_turn(child) for child in fields.children("turns")),
        messages=tuple(_decode_message(child) for child in fields.children("messages")),
    )
    recorded = fields.child("certificate")
    certificate = Certificate(
        algorithm=recorded.text("algorithm"),
        links=recorded.texts("links"),
        seal=recorded.text("seal"),
    )
    return trajectory, certificate


def _check_schema(fields: Fields) -> None:
    schema = fields.integer("schema")
    if schema > SCHEMA:
        raise StorageError(
            f"the record has schema {schema}, this envkit reads up to {SCHEMA}; "
            "upgrade with: pip install -U envkit-rl"
        )
    if schema < 1:
        raise StorageError(f"schema must be at least 1, got {schema}")


def _encode_segment(segment: Segment, where: str, keep: Keep) -> dict[str, Any]:
    for image in segment.images:
        keep(image)
    return {
        "kind": segment.kind.value,
        "turn": segment.turn,
        "wire_ids": list(segment.wire_ids),
        "train_ids": list(segment.train_ids),
        "loss_mask": list(segment.loss_mask),
        "logprobs": [plain_float(value) for value in segment.logprobs],
        "images": [image.sha256 for image in segment.images],
        "reward": to_plain(segment.reward, f"{where}.reward", keep),
        "weight_version": segment.weight_version,
        "finish_reason": segment.finish_reason,
        "extras": to_plain(segment.extras, f"{where}.extras", keep),
    }


def _decode_segment(fields: Fields) -> Segment:
    kind = fields.text("kind")
    if kind not in set(SegmentKind):
        raise StorageError(f"{fields.where}.kind must be one of {[*SegmentKind]}, got {kind!r}")
    return Segment(
        kind=SegmentKind(kind),
        turn=fields.integer("turn"),
        wire_ids=fields.integers("wire_ids"),
        train_ids=fields.integers("train_ids"),
        loss_mask=fields.integers("loss_mask"),
        logprobs=fields.floats("logprobs"),
        images=tuple(fields.image(sha256) for sha256 in fields.texts("images")),
        reward=fields.optional_number("reward"),
        weight_version=fields.optional_text("weight_version"),
        finish_reason=fields.optional_text("finish_reason"),
        extras=fields.mapping("extras"),
    )


_TURN_NUMBERS: Final = (
    "turn",
    "prompt_tokens",
    "cached_tokens",
    "response_tokens",
    "observation_tokens",
    "image_count",
    "image_bytes",
    "queue_seconds",
    "generate_seconds",
    "env_seconds",
    "encode_seconds",
    "engine_retries",
    "resamples",
)
_TURN_TEXTS: Final = ("response_text", "finish_reason")
_TURN_OPTIONAL_TEXTS: Final = ("parse_error", "weight_version", "observation_hash")
_TURN_PLAIN: Final = ("env_retries", "tool_call", "reward", "info")
TURN_FIELDS: Final = (*_TURN_NUMBERS, *_TURN_TEXTS, *_TURN_OPTIONAL_TEXTS, *_TURN_PLAIN)


def _encode_turn(turn: TurnRecord, where: str, keep: Keep) -> dict[str, Any]:
    return {name: to_plain(getattr(turn, name), f"{where}.{name}", keep) for name in TURN_FIELDS}


def _decode_turn(fields: Fields) -> TurnRecord:
    return TurnRecord(
        turn=fields.integer("turn"),
        prompt_tokens=fields.integer("prompt_tokens"),
        cached_tokens=fields.integer("cached_tokens"),
        response_tokens=fields.integer("response_tokens"),
        observation_tokens=fields.integer("observation_tokens"),
        image_count=fields.integer("image_count"),
        image_bytes=fields.integer("image_bytes"),
        queue_seconds=fields.number("queue_seconds"),
        generate_seconds=fields.number("generate_seconds"),
        env_seconds=fields.number("env_seconds"),
        encode_seconds=fields.number("encode_seconds"),
        env_retries=fields.counts("env_retries"),
        engine_retries=fields.integer("engine_retries"),
        resamples=fields.integer("resamples"),
        response_text=fields.text("response_text"),
        tool_call=fields.anything("tool_call"),  # what an environment's author put into `info`
        parse_error=fields.anything("parse_error"),
        reward=fields.optional_number("reward"),
        finish_reason=fields.text("finish_reason"),
        weight_version=fields.optional_text("weight_version"),
        info=fields.mapping("info"),
        observation_hash=fields.optional_text("observation_hash"),
    )


def _decode_fault(fields: Fields) -> FaultRecord:
    return FaultRecord(
        where=fields.text("where"), kind=fields.text("kind"), message=fields.text("message")
    )


def _decode_message(fields: Fields) -> Message:
    return check_message(cast("Message", fields.all()), source=fields.where)


def _decode_snapshot(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise StorageError(f"env_snapshot is no base64: {error}") from error
