"""The record of one episode while it is written."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit.env import Step
from envkit.errors import Fault
from envkit.messages import Message
from envkit.rollout.engine import Generation
from envkit.tasks import Task
from envkit.tokens.encoded import Encoded
from envkit.trajectory.ledger import Ledger
from envkit.trajectory.segment import SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import FaultRecord, Trajectory
from envkit.trajectory.turn import TurnRecord


@dataclass(kw_only=True)
class TurnDraft:
    """What is known of the turn in progress."""

    turn: int
    prompt_tokens: int
    cached_tokens: int = 0
    response_tokens: int = 0
    observation_tokens: int = 0
    image_count: int = 0
    image_bytes: int = 0
    queue_seconds: float = 0.0
    generate_seconds: float = 0.0
    env_seconds: float = 0.0
    encode_seconds: float = 0.0
    env_retries: Mapping[str, int] = field(default_factory=dict[str, int])
    engine_retries: int = 0
    resamples: int = 0
    response_text: str = ""
    finish_reason: str = ""
    weight_version: str | None = None
    step: Step | None = None
    step_hash: str | None = None

    def add_generation(self, generation: Generation, seconds: float) -> None:
        """Take over what the engine reported."""
        self.cached_tokens = generation.cached_tokens
        self.response_tokens += len(generation.token_ids)
        self.queue_seconds += generation.queue_seconds
        self.generate_seconds += seconds
        self.engine_retries += generation.retries
        self.finish_reason = generation.finish_reason.value
        self.weight_version = generation.weight_version

    def add_observation(self, encoded: Encoded, seconds: float) -> None:
        """Take over what was appended after the reply."""
        self.observation_tokens = len(encoded.train_ids)
        self.image_count = len(encoded.images)
        self.image_bytes = sum(len(image.png_bytes()) for image in encoded.images)
        self.encode_seconds += seconds

    def finish(self) -> TurnRecord:
        """Return the record."""
        step = self.step
        info: Mapping[str, Any] = {} if step is None else step.info
        return TurnRecord(
            turn=self.turn,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            response_tokens=self.response_tokens,
            observation_tokens=self.observation_tokens,
            image_count=self.image_count,
            image_bytes=self.image_bytes,
            queue_seconds=self.queue_seconds,
            generate_seconds=self.generate_seconds,
            env_seconds=self.env_seconds,
            encode_seconds=self.encode_seconds,
            env_retries=dict(self.env_retries),
            engine_retries=self.engine_retries,
            resamples=self.resamples,
            response_text=self.response_text,
            tool_call=info.get("tool_call"),
            parse_error=info.get("parse_error"),
            reward=None if step is None else step.reward,
            finish_reason=self.finish_reason,
            weight_version=self.weight_version,
            info=info,
            observation_hash=self.step_hash,
        )


class EpisodeRecord:
    """Everything that becomes a `Trajectory`."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.messages: list[Message] = []
        self.turns: list[TurnRecord] = []
        self.draft: TurnDraft | None = None
        self.task: Task = {}
        self.reset_info: dict[str, Any] = {}
        self.initial_observation_hash: str | None = None
        self.fault: FaultRecord | None = None
        self.env_snapshot: bytes | None = None
        self.started = time.perf_counter()

    @property
    def turn(self) -> int:
        """Index of the next reply."""
        return len(self.turns)

    @property
    def image_count(self) -> int:
        """Images in the context."""
        return len(self.ledger.images)

    def close_turn(self) -> None:
        """File the turn in progress, complete or not."""
        if self.draft is not None:
            self.turns.append(self.draft.finish())
            self.draft = None

    def faulted(self, where: str, fault: Exception) -> None:
        """Note the failure that ends the episode."""
        kind = fault.kind.value if isinstance(fault, Fault) else "permanent"
        self.fault = FaultRecord(where=where, kind=kind, message=str(fault))

    def unanswered(self) -> tuple[Message, ...]:
        """Return the messages behind the last assistant message."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]["role"] == "assistant":
                return tuple(self.messages[index + 1 :])
        return tuple(self.messages)

    def trajectory(
        self,
        stop_reason: StopReason,
        *,
        episode_id: str,
        env_id: str,
        seed: int | None,
        group_id: str | None,
        env_restarts: int,
        engine: str,
        metadata: Mapping[str, Any],
    ) -> Trajectory:
        """Return the finished record."""
        self.close_turn()
        rewards = {turn.turn: turn.reward for turn in self.turns if turn.reward is not None}
        has_reward = not stop_reason.is_fault and stop_reason is not StopReason.ABORTED
        segments = self.ledger.finished(rewards)
        turns = list(self.turns)
        if segments and segments[-1].kind is SegmentKind.MODEL:
            # An observation that was taken off the end does not count as sent.
            last = segments[-1].turn
            turns = [turn.without_observation() if turn.turn == last else turn for turn in turns]
        return Trajectory(
            episode_id=episode_id,
            env_id=env_id,
            seed=seed,
            task=self.task,
            group_id=group_id,
            segments=segments,
            turns=tuple(turns),
            messages=tuple(self.messages),
            reward=float(sum(rewards.values())) if has_reward else None,
            stop_reason=stop_reason,
            fault=self.fault,
            reset_info=self.reset_info,
            initial_observation_hash=self.initial_observation_hash,
            env_restarts=env_restarts,
            duration_seconds=time.perf_counter() - self.started,
            engine=engine,
            env_snapshot=self.env_snapshot,
            metadata=metadata,
        )
