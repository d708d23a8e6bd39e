"""The record of one episode while it is written."""

import time
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, Final

from envkit.env import Step
from envkit.messages import Message
from envkit.rollout.engine import Generation
from envkit.rollout.setup import EpisodeSpec
from envkit.tasks import Task
from envkit.tokens import Encoded, SanityStatus
from envkit.trajectory.ledger import Ledger
from envkit.trajectory.segment import SegmentKind
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import Trajectory, TurnRecord, observed

_FIRST: Final = TurnRecord(turn=0, prompt_tokens=0)
_BLANK: Final = {
    **{field.name: getattr(_FIRST, field.name) for field in fields(TurnRecord)},
    "step": None,
    "step_hash": None,
}


class TurnDraft(SimpleNamespace):
    """The turn in progress: every field of `TurnRecord`, mutable, and what the environment did."""

    step: Step | None
    step_hash: str | None

    def __init__(self, *, turn: int, prompt_tokens: int, response_tokens: int) -> None:
        super().__init__(**_BLANK)
        self.turn, self.prompt_tokens = turn, prompt_tokens
        self.response_tokens = response_tokens

    def add_generation(self, generation: Generation, seconds: float) -> None:
        """Take over what the engine reported."""
        values: dict[str, Any] = vars(self)
        values["cached_tokens"] = generation.cached_tokens
        if generation.text is None:
            values["response_tokens"] += len(generation.token_ids)
        else:  # nobody has counted the prompt before
            values["prompt_tokens"] = generation.prompt_tokens or 0
            values["response_tokens"] = generation.text_tokens
        values["queue_seconds"] += generation.queue_seconds
        values["generate_seconds"] += seconds
        values["finish_reason"] = generation.finish_reason.value
        values["weight_version"] = generation.weight_version

    def add_observation(self, encoded: Encoded, seconds: float) -> None:
        """Take over what was appended after the reply."""
        vars(self).update(observed(encoded))
        vars(self)["encode_seconds"] += seconds

    def finish(self) -> TurnRecord:
        """Return the record."""
        values: dict[str, Any] = dict(vars(self))
        step: Step | None = values.pop("step")
        values["observation_hash"] = values.pop("step_hash")
        if step is not None:
            info = step.info
            values |= {"info": info, "reward": step.reward, "tool_call": info.get("tool_call")}
            values["parse_error"] = info.get("parse_error")
        return TurnRecord(**values)


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

    def close_turn(self) -> None:
        """File the turn in progress, complete or not."""
        if self.draft is not None:
            self.turns.append(self.draft.finish())
            self.draft = None

    def faulted(self, where: FaultPlace, fault: BaseException) -> None:
        """Note the failure that ends the episode."""
        self.fault = FaultRecord.of(where, fault)

    def add_observation(self, encoded: Encoded, seconds: float) -> None:
        """Append what follows a reply to the ledger, and note it in the reply's turn.

        Without a turn in progress that is the last one: an abort took the observation off the end
        of the ledger, and it is sent now.

        Args:
            encoded: Extends the ledger's sequence or starts one.
            seconds: How long encoding took.
        """
        turn = self.turn + (self.draft is not None)
        if encoded.is_prompt:
            self.ledger.start(encoded, turn=turn)
        else:
            self.ledger.add_observation(encoded, turn=turn)
        if self.draft is not None:
            self.draft.add_observation(encoded, seconds)
        else:
            self.turns[-1] = self.turns[-1].with_observation(encoded, seconds)

    def note_sanity(self, status: SanityStatus) -> None:
        """Note how the tokens that are about to be appended compare with a full render."""
        if self.draft is not None:
            self.draft.sanity = status
        else:
            self.turns[-1] = replace(self.turns[-1], sanity=status)

    def unanswered(self) -> tuple[Message, ...]:
        """Return the messages after the last assistant message."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]["role"] == "assistant":
                return tuple(self.messages[index + 1 :])
        return tuple(self.messages)

    def trajectory(
        self, stop_reason: StopReason, spec: EpisodeSpec, *, env_restarts: int, engine: str
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
            episode_id=spec.episode_id,
            env_id=spec.env_id,
            seed=spec.seed,
            task=self.task,
            group_id=spec.group_id,
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
            metadata=spec.metadata,
        )
