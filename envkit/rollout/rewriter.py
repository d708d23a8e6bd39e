"""Applies the history policy of one episode to its record."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, TypeVar, cast

from envkit.errors import (
    ConfigurationError,
    FaultKind,
    HistoryFault,
    TemplateError,
    describe,
)
from envkit.messages import Message, images_of
from envkit.rollout import history
from envkit.rollout.encoding import EpisodeEncoder
from envkit.rollout.interrupt import CallCutError, Interrupt
from envkit.rollout.limits import observation_stop
from envkit.rollout.policy_call import PolicyCall
from envkit.rollout.record import EpisodeRecord, Rewrite
from envkit.rollout.setup import Setup
from envkit.threads.pool import WorkerPool
from envkit.threads.workers import DeadlineError
from envkit.tokens.encoded import Encoded
from envkit.trajectory.stop import StopReason

T = TypeVar("T")

_OWN: Final = (history.KeepLastImages, history.KeepLastTurns, history.Summarise)


class PolicyAbortedError(Exception):
    """An abort interrupted a call to the policy; the partial record is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The candidate for what follows the last reply: observation, question or rewritten history."""

    encoded: Encoded
    messages: tuple[Message, ...]
    """The environment's messages, with the question if there is one."""
    pending: tuple[Message, ...]
    """The environment's messages."""
    space: int
    """Maximum tokens of the observation for this to fit."""
    rewrite: Rewrite | None = None
    question: history.Question | None = None


class Rewriter:
    """Calls the policy after every observation, and updates what the model sees."""

    def __init__(
        self, setup: Setup, record: EpisodeRecord, pool: WorkerPool, interrupt: Interrupt
    ) -> None:
        self._setup, self._record, self._pool = setup, record, pool
        self._interrupt = interrupt
        self._call: PolicyCall | None = None
        self._shown = record.view
        """The conversation before the last rewrite."""
        self.policy: history.HistoryPolicy | None = None
        """None if everything is appended."""
        self.reason = ""

    def choose(self, env_setting: history.HistorySetting, env_name: str) -> None:
        """Use the rollout's policy, or else the environment's own.

        Raises:
            ConfigurationError: The environment names a policy that does not exist or needs token
                ids that a chat endpoint lacks, or asks the codec to follow the template, which is a
                setting of the rollout.
        """
        setting = self._setup.history
        if setting is None:
            setting = env_setting
            if setting == "rerender":
                raise ConfigurationError(
                    f'{env_name}.history_policy must name a policy, got "rerender", '
                    "which depends on the model: set it in the rollout's configuration"
                )
            history.check_codec(setting, self._setup.codec)
        self.policy = history.history_policy(setting)
        self.reason = "" if self.policy is None else history.policy_name(self.policy)

    async def consult(self, context_tokens: int) -> Rewrite | history.Question | None:
        """Call the policy; return its rewrite or question, or None to append.

        Args:
            context_tokens: Length of the conversation with the new observation; 0 without a ledger.

        Raises:
            HistoryFault: The policy failed, or its result is invalid.
            PolicyAbortedError: An abort interrupted it.
            ConfigurationError: It asks the model a question, but there is no codec to count tokens.
        """
        policy = self.policy
        if policy is None:
            return None
        # A policy of the caller may block, hang or change what it is given: it gets copies and a
        # thread. A subclass is one of these.
        is_own = any(type(policy) is cls for cls in _OWN)
        self._call = call = PolicyCall(
            policy, self.reason, self._view(context_tokens), copies=not is_own
        )
        found = call() if is_own else await self._run(call)
        if isinstance(found, history.Question) and self._setup.codec is None:
            raise ConfigurationError(
                f"history policy {self.reason!r} asks the model a question, which needs an "
                "engine that returns token ids; a chat endpoint takes keep_last_images or "
                "keep_last_turns"
            )
        if found is None or isinstance(found, history.Question):
            return found
        return self._record.rewrite(found, self.reason)

    async def append_text(self) -> StopReason | None:
        """Apply the policy for an engine that returns text; return why the episode ends.

        Raises:
            HistoryFault: As for `consult`.
            PolicyAbortedError: As for `consult`.
            ConfigurationError: As for `consult`.
        """
        await self.consult(0)
        images = len(images_of(self._record.view))
        return observation_stop(
            self._setup.limits, response_tokens=0, context_tokens=0, images=images
        )

    async def next(self, pending: tuple[Message, ...], encoder: EpisodeEncoder) -> Continuation:
        """Return the candidate for what follows the last reply; it may not fit.

        Args:
            pending: The environment's messages, already in the record.
            encoder: The episode's encoder.

        Raises:
            HistoryFault: As for `consult`, or the policy's result cannot be encoded.
            PolicyAbortedError: As for `consult`.
            ConfigurationError: As for `consult`.
        """
        record, messages = self._record, pending
        encoded = await encoder.observation(pending)
        delta = len(encoded.train_ids)
        known = record.ledger.train_length
        length = delta if encoded.is_prompt else known + delta
        tokens = max(0, delta - known) if encoded.is_prompt else delta
        self._shown = record.view
        found = await self.consult(length)
        if isinstance(found, history.Question):
            messages = self._asked(pending, found)
            encoded = await self._encoded(encoder.observation(messages))
        elif found is not None:
            encoded, found = await self._prompt(found, encoder)
        return Continuation(
            encoded=encoded,
            messages=messages,
            pending=pending,
            space=encoder.space(encoded, tokens),
            rewrite=found if isinstance(found, Rewrite) else None,
            question=found if isinstance(found, history.Question) else None,
        )

    def undo(self, unsent: Continuation) -> None:
        """Restore the conversation to before an unsent question or rewrite."""
        self._record.view = self._shown
        if unsent.question is None:
            return
        self._record.drop_message()
        if len(unsent.messages) == len(unsent.pending):
            self._record.say(unsent.pending[-1])

    async def answered(
        self, question: history.Question, answer: str, encoder: EpisodeEncoder
    ) -> Continuation:
        """Return the history rewritten with the answer to a question.

        Raises:
            HistoryFault: As for `next`.
            PolicyAbortedError: As for `next`.
        """
        call = self._call
        assert call is not None  # it asked
        found = await self._run(lambda: call.rewritten(question, answer))
        rewrite = self._record.rewrite(found, self.reason)
        encoded, rewrite = await self._prompt(rewrite, encoder)
        return Continuation(encoded=encoded, messages=(), pending=(), space=0, rewrite=rewrite)

    def _asked(
        self, pending: tuple[Message, ...], question: history.Question
    ) -> tuple[Message, ...]:
        """Add a question to the conversation; return the messages that the model answers."""
        record, last = self._record, pending[-1]
        # Many templates reject two user messages in a row.
        if last["role"] == "user":
            record.drop_message()
            asked = (*pending[:-1], history.with_note(last, question.text))
        else:
            asked = (*pending, Message(role="user", content=question.text))
        record.say(asked[-1])
        return asked

    async def _run(self, call: Callable[[], T]) -> T:
        """Call foreign code on a thread, with the deadline of an environment's step."""
        timeout_s = self._setup.policy_timeout_s
        running = self._pool.run(call, timeout_s=timeout_s)
        try:
            return await self._interrupt.cut(running)
        except DeadlineError as error:
            why = f"{error} (retries.step_timeout_s)"
        except CallCutError as error:
            if self._interrupt.reason is StopReason.ABORTED:
                raise PolicyAbortedError from error
            why = "the episode's deadline (limits.episode_timeout_s) interrupted it"
        raise HistoryFault(f"history policy {self.reason!r} failed: {why}", kind=FaultKind.TIMEOUT)

    async def _encoded(self, encoding: Awaitable[Encoded]) -> Encoded:
        """Encode the policy's result; a failure is a fault of the policy."""
        try:
            return await encoding
        except Exception as error:
            raise HistoryFault(
                f"the result of history policy {self.reason!r} cannot be encoded: {describe(error)}"
            ) from error

    async def _prompt(self, rewrite: Rewrite, encoder: EpisodeEncoder) -> tuple[Encoded, Rewrite]:
        """Encode the rewritten conversation, if necessary with tool messages as user messages."""
        try:
            encoded = await self._encoded(encoder.prompt())
        except HistoryFault as fault:
            view = self._record.view
            has_tools = any(entry["role"] == "tool" for entry in view)
            if not has_tools or not isinstance(fault.__cause__, TemplateError):
                raise
            # Some templates, such as gpt-oss's, accept a tool message only after a structured call,
            # which a recorded reply does not have.
            rewrite = self._record.rewrite([_as_user(entry) for entry in view], self.reason)
            encoded = await self._encoded(encoder.prompt())
        return replace(encoded, is_prompt=True), rewrite

    def _view(self, context_tokens: int) -> history.HistoryView:
        record = self._record
        return history.HistoryView(
            opening=tuple(takewhile(lambda entry: entry["role"] != "assistant", record.messages)),
            messages=tuple(record.view),
            context_tokens=context_tokens,
            turn=record.played + (record.draft is not None),
        )


def _as_user(entry: Message) -> Message:
    """Return a tool message as a user message, and any other one unchanged."""
    if entry["role"] != "tool":
        return entry
    call_keys = ("name", "tool_call_id")
    kept = {key: value for key, value in entry.items() if key not in call_keys}
    return cast("Message", {**kept, "role": "user"})
