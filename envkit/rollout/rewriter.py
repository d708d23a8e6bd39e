"""Applies the history policy of one episode to its record."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from envkit.env import Env
from envkit.errors import ConfigurationError, HistoryFault, describe
from envkit.messages import Message
from envkit.rollout.history import (
    HistoryView,
    KeepLastImages,
    KeepLastTurns,
    Question,
    Summarise,
    applied,
    check_codec,
    checked_history,
    history_policy,
    policy_name,
    with_note,
)
from envkit.rollout.record import EpisodeRecord, Rewrite
from envkit.rollout.setup import Setup
from envkit.threads.pool import WorkerPool

_QUICK: Final = (KeepLastImages, KeepLastTurns, Summarise)


class Rewriter:
    """Asks the policy after every observation, and keeps what the model sees up to date."""

    def __init__(self, setup: Setup, env: Env, record: EpisodeRecord, pool: WorkerPool) -> None:
        """Take the rollout's policy, or the environment's own.

        Raises:
            ConfigurationError: The environment names a policy that does not exist or needs token
                ids that a chat endpoint lacks, or asks the codec to follow the template, which is a
                setting of the rollout.
        """
        self._setup, self._record, self._pool = setup, record, pool
        setting = setup.history
        if setting is None:
            setting = env.history_policy
            if setting == "rerender":
                raise ConfigurationError(
                    f'{type(env).__name__}.history_policy must name a policy, got "rerender", '
                    "which depends on the model: set it in the rollout's configuration"
                )
            check_codec(setting, setup.codec)
        self.policy = history_policy(setting)
        """None where everything is appended."""
        self.reason = "" if self.policy is None else policy_name(self.policy)

    async def consult(self, context_tokens: int) -> Rewrite | Question | None:
        """Return what the policy makes of the conversation; None to append to it.

        Args:
            context_tokens: Its length with the new observation; 0 without a ledger.

        Raises:
            HistoryFault: The policy failed, or its result is invalid.
            ConfigurationError: It asks the model something, and no codec counts its tokens.
        """
        policy = self.policy
        if policy is None:
            return None
        view = self._view(context_tokens)
        if isinstance(policy, _QUICK):
            found = applied(policy, view)
        else:  # somebody's code may take long
            found = await self._pool.computing.run(lambda: applied(policy, view))
        if isinstance(found, Question):
            if self._setup.codec is None:
                raise ConfigurationError(
                    f"history policy {self.reason!r} asks the model a question, which needs an "
                    "engine that returns token ids; a chat endpoint takes keep_last_images or "
                    "keep_last_turns"
                )
            return found
        return None if found is None else self._record.rewrite(found, self.reason)

    def asked(self, pending: tuple[Message, ...], question: Question) -> tuple[Message, ...]:
        """Add a question to the conversation; return the messages that the model answers.

        It joins a user message, since many templates refuse two of them in a row.
        """
        record, last = self._record, pending[-1]
        self._view_before = self._view(0)
        if last["role"] == "user":
            record.unsay()
            asked = (*pending[:-1], with_note(last, question.text))
        else:
            asked = (*pending, Message(role="user", content=question.text))
        record.say(asked[-1])
        return asked

    def take_back(self, pending: tuple[Message, ...], asked: Sequence[Message]) -> None:
        """Remove a question from the conversation."""
        self._record.unsay()
        if len(asked) == len(pending):
            self._record.say(pending[-1])

    async def answered(self, question: Question, text: str) -> Rewrite:
        """Rewrite the history with the answer to a question.

        Raises:
            HistoryFault: As for `consult`.
        """
        policy, view = self.policy, self._view_before
        assert policy is not None  # it asked

        def rewritten() -> tuple[Message, ...]:
            try:
                found = question.rewrite(text)
            except Exception as error:
                raise HistoryFault(
                    f"history policy {self.reason!r} failed: {describe(error)}"
                ) from error
            return checked_history(policy, view, found)

        return self._record.rewrite(await self._pool.computing.run(rewritten), self.reason)

    def _view(self, context_tokens: int) -> HistoryView:
        record = self._record
        return HistoryView(
            opening=tuple(takewhile(lambda entry: entry["role"] != "assistant", record.messages)),
            messages=tuple(record.view),
            context_tokens=context_tokens,
            turn=record.played + (record.draft is not None),
        )
