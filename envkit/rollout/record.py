"""The record of a running episode."""

import time
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from itertools import takewhile
from types import SimpleNamespace
from typing import Any, Final

from envkit.env import Step
from envkit.messages import Message
from envkit.reply import Reply
from envkit.rollout.engine import Generation
from envkit.rollout.setup import EpisodeSpec
from envkit.tasks import Task
from envkit.tokens.encoded import Encoded
from envkit.tokens.sanity import SanityStatus
from envkit.tools import ToolSpec
from envkit.trajectory.ledger import Ledger
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.sequence import TEMPLATE, Origin, branch_history
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.success import with_threshold
from envkit.trajectory.trajectory import (
    Trajectory,
    TurnRecord,
    observed,
    recorded_reply,
)

_FIELDS: Final = fields(TurnRecord)


class TurnDraft(SimpleNamespace):
    """The turn in progress: mutable fields of `TurnRecord`, and the environment's step."""

    step: Step | None
    step_hash: str | None

    def __init__(
        self, *, turn: int, prompt_tokens: int, response_tokens: int = 0, purpose: str | None = None
    ) -> None:
        values = vars(self)
        for one in _FIELDS:
            if one.default is not MISSING:
                values[one.name] = one.default
            elif one.default_factory is not MISSING:
                values[one.name] = one.default_factory()
        self.turn, self.prompt_tokens, self.purpose = turn, prompt_tokens, purpose
        self.response_tokens, self.step, self.step_hash = response_tokens, None, None

    @property
    def reply(self) -> Reply:
        """The reply as the environment takes it."""
        return recorded_reply(self.response_text, self.finish_reason, self.opened)

    def add_generation(self, generation: Generation, seconds: float) -> None:
        """Add the engine's report of a reply."""
        values: dict[str, Any] = vars(self)
        values["cached_tokens"] = generation.cached_tokens
        if generation.text is None:
            values["response_tokens"] += len(generation.token_ids)
        else:  # a text engine, which is the first to count the prompt
            values["prompt_tokens"] = generation.prompt_tokens or 0
            values["response_tokens"] = generation.text_tokens
        values["queue_seconds"] += generation.queue_seconds
        values["generate_seconds"] += seconds
        values["finish_reason"] = generation.finish_reason.value
        values["weight_version"] = generation.weight_version

    def add_observation(self, encoded: Encoded, seconds: float) -> None:
        """Add the fields of the observation that was appended after the reply."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A rewritten history, in the fields of its `Branch`."""

    reason: str = TEMPLATE
    message_count: int | None = None
    history: tuple[int | Message, ...] = ()


class EpisodeRecord:
    """Collects everything that becomes a `Trajectory`."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.messages: list[Message] = []
        """The whole conversation."""
        self.view = self.messages
        """The conversation as the model sees it now; a separate list after a rewrite."""
        self.origin: Origin | None = None
        self.before_question: tuple[int, int, list[Message]] | None = None
        """Segments, turns and messages before the last question of a history policy."""
        self.turns: list[TurnRecord] = []
        self.questions = 0
        """Number of turns that answered a history policy, not the environment."""
        self.draft: TurnDraft | None = None
        self.task: Task = {}
        self.tools: tuple[ToolSpec, ...] | None = None
        """Tools that the model sees; None uses the codec's own."""
        self.reset_info: dict[str, Any] = {}
        self.initial_observation_hash: str | None = None
        self.fault: FaultRecord | None = None
        self.reward_threshold: float | None = None
        self.env_snapshot: bytes | None = None
        self.started = time.perf_counter()

    @property
    def turn(self) -> int:
        """Index of the next reply."""
        return len(self.turns)

    @property
    def played(self) -> int:
        """Number of replies that the environment has answered."""
        # Counted as they come: counting over all turns at each turn is quadratic.
        return len(self.turns) - self.questions

    def say(self, entry: Message) -> None:
        """Add a message to the conversation."""
        self.messages.append(entry)
        if self.view is not self.messages:
            self.view.append(entry)

    def drop_message(self) -> None:
        """Remove the last message."""
        self.messages.pop()
        if self.view is not self.messages:
            self.view.pop()

    def take_over(self, earlier: Trajectory, segments: Sequence[Segment]) -> None:
        """Continue the record of an aborted trajectory.

        Args:
            earlier: The trajectory.
            segments: Its segments, with the processor's outputs.
        """
        self.origin, self.task = earlier.origin, dict(earlier.task)
        self.reset_info = dict(earlier.reset_info)
        self.initial_observation_hash = earlier.initial_observation_hash
        self.turns = [
            turn
            for turn in earlier.turns
            if turn.observation_hash is not None or turn.purpose is not None
        ]
        self.questions = _questions(self.turns)
        self.ledger.replay(segments, earlier.branches)
        self.messages = self.view = list(earlier.messages)
        last = earlier.branches[-1] if earlier.branches else None
        if last is not None and last.message_count is not None and last.history:
            kept = branch_history(last, self.messages)
            # The messages that were said since the rewrite follow it.
            self.view = [*kept, *self.messages[last.message_count :]]
        if self.messages and self.messages[-1]["role"] == "assistant":
            # The answer to a question is whole: the rewrite that it led to comes next.
            if self.turns and self.turns[-1].purpose is not None and not self._is_cut():
                return
            self.drop_message()  # an incomplete reply, which is added again once it is complete

    def _is_cut(self) -> bool:
        """Whether the last reply has no turn record yet."""
        return bool(self.ledger.reply_ids(self.turn))

    def rewrite(self, messages: Sequence[Message], reason: str) -> "Rewrite":
        """Replace the conversation that the model sees; return it for the branch's record."""
        # By identity: two equal messages are two places, and a policy's own copy is neither.
        places = {id(entry): n for n, entry in enumerate(self.messages)}
        history = tuple(places.get(id(entry), entry) for entry in messages)
        self.view = list(messages)
        return Rewrite(reason=reason, message_count=len(self.messages), history=history)

    def close_turn(self) -> None:
        """Record the turn in progress, complete or not."""
        if self.draft is not None:
            self.turns.append(self.draft.finish())
            self.questions += self.draft.purpose is not None
            self.draft = None

    def _drop_question(self) -> None:
        """Remove the last question if nothing followed its answer: a resumed episode asks again.

        The resulting rewrite has no reply yet, so it is not in the record either.
        """
        if self.before_question is None or self.turns[-1].purpose is None:
            return
        segments, turns, self.messages = self.before_question
        del self.ledger.segments[segments:], self.turns[turns:]
        self.questions = _questions(self.turns)

    def faulted(self, where: FaultPlace, fault: BaseException) -> None:
        """Record the failure that ends the episode."""
        self.fault = FaultRecord.of(where, fault)

    def add_observation(
        self, encoded: Encoded, seconds: float, rewrite: "Rewrite | None" = None
    ) -> None:
        """Append an observation to the ledger, and record it in the turn of the reply before it.

        Without a turn in progress, that is the last turn: an abort removed the observation from the
        end of the ledger, and it is sent now.

        Args:
            encoded: Extends the ledger's sequence or starts one.
            seconds: How long encoding took.
            rewrite: The rewritten history, if a policy made the prompt; None if the template did.
        """
        turn = self.turn + (self.draft is not None)
        if encoded.is_prompt:
            rewrite = rewrite or Rewrite()
            self.ledger.start(
                encoded,
                turn=turn,
                reason=rewrite.reason,
                message_count=rewrite.message_count,
                history=rewrite.history,
            )
        else:
            self.ledger.add_observation(encoded, turn=turn)
        if self.draft is not None:
            self.draft.add_observation(encoded, seconds)
        else:
            self.turns[-1] = self.turns[-1].with_observation(encoded, seconds)

    def note_sanity(self, status: SanityStatus) -> None:
        """Record how the tokens to append compare with a full render."""
        if self.draft is not None:
            self.draft.sanity = status
        else:
            self.turns[-1] = replace(self.turns[-1], sanity=status)

    def unanswered(self) -> tuple[Message, ...]:
        """Return the messages after the last assistant message."""
        pending = takewhile(lambda entry: entry["role"] != "assistant", reversed(self.messages))
        return tuple(pending)[::-1]

    def trajectory(
        self, stop_reason: StopReason, spec: EpisodeSpec, *, env_restarts: int, engine: str
    ) -> Trajectory:
        """Return the finished record."""
        self.close_turn()
        if stop_reason is StopReason.ABORTED:
            self._drop_question()
        rewards = {turn.turn: turn.reward for turn in self.turns if turn.reward is not None}
        has_reward = not stop_reason.is_fault and stop_reason is not StopReason.ABORTED
        segments = self.ledger.finished(rewards)
        origin = self.origin
        if origin is not None:  # an abort also removes a shared observation from the end
            origin = replace(origin, segments=min(origin.segments, len(segments)))
        turns = list(self.turns)
        if segments and segments[-1].kind is SegmentKind.MODEL:
            # An observation that was removed from the end does not count as sent.
            last = segments[-1].turn
            turns = [turn.without_observation() if turn.turn == last else turn for turn in turns]
        return Trajectory(
            episode_id=spec.episode_id,
            env_id=spec.env_id,
            seed=spec.seed,
            task=self.task,
            group_id=spec.group_id,
            segments=segments,
            branches=tuple(self.ledger.branches),
            origin=origin,
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
            metadata=with_threshold(spec.metadata, self.reward_threshold),
        )


def _questions(turns: Sequence[TurnRecord]) -> int:
    return sum(turn.purpose is not None for turn in turns)
