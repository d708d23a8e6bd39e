"""Several terms as one reward.

A term's gate is decided before its score is computed. Asynchronous terms whose gates are decided
run concurrently. A term that fails is computed again for a policy that does nothing: if it fails
there too, the grader is at fault, else the episode scores 0.
"""

import inspect
import math
import os
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from weakref import WeakKeyDictionary

from envkit.errors import ConfigurationError, ContractError, EnvFault, UnknownNameError
from envkit.grading import UNGRADED, Grade, UngradedError, asettle, idle_answers, settle
from envkit.messages import message
from envkit.rewards.term import Gate, RewardContext, Score, Term, TermFailure

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Semaphore

_MAX_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""Synchronous scores at a time per event loop, as many as `asyncio.to_thread` would run."""
_places: Final[WeakKeyDictionary["AbstractEventLoop", "Semaphore"]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A reward and its terms."""

    terms: dict[str, float]
    """Weighted scores by name, for `info["reward_terms"]`; 0.0 if a gate was closed."""
    scores: dict[str, float | None]
    """Scores before the weights; None if a gate was closed or `failure` is set."""
    failure: str | None = None
    """Why a term could not be computed for what the policy did, so that all terms are 0.0."""

    @property
    def total(self) -> float:
        """The exactly rounded sum of the terms, independent of their order."""
        return math.fsum(self.terms.values())

    def info(self) -> dict[str, Any]:
        """Return the entries for the turn's info."""
        ungraded = {} if self.failure is None else {UNGRADED: self.failure}
        return {"reward_terms": self.terms, **ungraded}


class Rewards:
    """A sum of terms. Stateless, so any number of episodes may share it."""

    def __init__(self, *terms: Term) -> None:
        """Take the terms in order; a gate names an earlier one.

        Raises:
            ConfigurationError: There are no terms, or two share a name.
            UnknownNameError: A gate does not name an earlier term.
        """
        if not terms:
            raise ConfigurationError("a reward needs at least one term, got none")
        names: list[str] = []
        for term in terms:
            if term.name in names:
                raise ConfigurationError(f"two reward terms are named {term.name!r}")
            if isinstance(term.gate, Gate) and term.gate.term not in names:
                raise UnknownNameError.suggest("earlier reward term", term.gate.term, names)
            names.append(term.name)
        self.terms = terms
        self._identity = os.urandom(8).hex()  # copies in other processes grade alike

    @classmethod
    def of(cls, reward: "Rewards | Score | Term | Sequence[Term]") -> "Rewards":
        """Build rewards from a function or terms; a function's name becomes its term's name.

        Raises:
            ConfigurationError: It is none of these, or the terms are invalid.
        """
        if isinstance(reward, Rewards):
            return reward
        if isinstance(reward, Term):
            return cls(reward)
        if isinstance(reward, Sequence):
            terms = cast(Sequence[Term], reward)
            for term in cast(Sequence[object], reward):
                if not isinstance(term, Term):
                    raise ConfigurationError(
                        f"rewards must be a list of Term, got {type(term).__name__} in it"
                    )
            return cls(*terms)
        if not callable(cast(object, reward)):
            raise ConfigurationError(
                f"a reward must be a function, a Term or Rewards, got {type(reward).__name__}"
            )
        name: str = getattr(reward, "__name__", "reward")
        return cls(Term(name="reward" if name == "<lambda>" else name, score=reward))

    def score(self, context: RewardContext, *, untouched: RewardContext | None = None) -> Reward:
        """Compute every term, for a synchronous environment.

        A term that fails is computed again for `untouched`, once per task. If that works, what the
        policy did made it fail, and every term is 0.0.

        Args:
            context: The finished episode.
            untouched: The same task for a policy that does nothing; its answer is ignored. None
                takes the episode's context without the policy's messages.

        Raises:
            ConfigurationError: A term is asynchronous.
            EnvFault: A term could not be computed for `untouched` either; kind GRADER.
            ContractError: A term did not return a finite number, even for `untouched`.
        """
        try:
            return self._reward(self._scores(context))
        except TermFailure as error:
            failed = error

        def again() -> None:
            last: UngradedError = failed
            for idle in _idle(context, untouched):
                try:
                    if failed.part is failed.term.score:
                        self._one(failed.term, idle)
                    else:
                        _opens(failed.term, idle, {})
                except UngradedError as error:
                    last = error
                else:
                    return
            raise last

        try:
            grade = settle(lambda: _raise(failed), untouched=again, **self._task(failed, context))
        except EnvFault as fault:
            _raise_for(failed, fault)
        return self._zero(grade)

    async def ascore(
        self, context: RewardContext, *, untouched: RewardContext | None = None
    ) -> Reward:
        """Compute every term from an event loop; synchronous scores run on threads.

        Args:
            context: The finished episode.
            untouched: As for `score`.

        Raises:
            EnvFault: A term could not be computed for `untouched` either; kind GRADER. The other
                terms are cancelled.
            ContractError: A term did not return a finite number, even for `untouched`.
        """
        try:
            return self._reward(await self._ascores(context))
        except TermFailure as error:
            failed = error

        async def fail() -> float:
            _raise(failed)

        async def again() -> None:
            last: UngradedError = failed
            for idle in _idle(context, untouched):
                try:
                    if failed.part is failed.term.score:
                        await self._aone(failed.term, idle)
                    else:
                        _opens(failed.term, idle, {})
                except TermFailure as error:
                    last = error
                    if _is_late(error):  # the others would take as long
                        break
                else:
                    return
            raise last

        try:
            grade = await asettle(fail, untouched=again, **self._task(failed, context))
        except EnvFault as fault:
            _raise_for(failed, fault)
        return self._zero(grade)

    def _scores(self, context: RewardContext) -> dict[str, float | None]:
        scores: dict[str, float | None] = {}
        for term in self.terms:
            if term.is_async:
                raise _async_refusal(term)
            scores[term.name] = self._one(term, context) if _opens(term, context, scores) else None
        return scores

    async def _ascores(self, context: RewardContext) -> dict[str, float | None]:
        scores: dict[str, float | None] = {}
        waiting = list(self.terms)
        while waiting:
            wave = [term for term in waiting if _is_decided(term, scores)]
            opened = [term for term in wave if _opens(term, context, scores)]
            values = await self._together(opened, context)
            scores |= {term.name: None for term in wave} | values
            waiting = [term for term in waiting if term.name not in scores]
        return scores

    def _task(self, failed: TermFailure, context: RewardContext) -> dict[str, Any]:
        part = "score" if failed.part is failed.term.score else "gate"
        return {
            "grader": f"{part} of {failed.term.name!r} {self._identity}",
            "task": context.task,
        }

    def _zero(self, grade: Grade) -> Reward:
        return Reward(
            terms={term.name: 0.0 for term in self.terms},
            scores={term.name: None for term in self.terms},
            failure=grade.failure,
        )

    def __deepcopy__(self, memo: dict[int, object]) -> "Rewards":
        return self  # stateless, and a judge's connections cannot be copied

    async def _together(self, terms: Sequence[Term], context: RewardContext) -> dict[str, float]:
        # Lazy, because asyncio would take a fifth of the time of `import envkit`.
        from envkit.threads.workers import gather_or_cancel

        values = await gather_or_cancel([self._aone(term, context) for term in terms])
        return {term.name: value for term, value in zip(terms, values, strict=True)}

    def _one(self, term: Term, context: RewardContext) -> float:
        try:
            value = term.score(context)
            if inspect.iscoroutine(value):
                value.close()  # it never started, and Python would warn
                raise _async_refusal(term)
            return term.checked(value)
        except (Exception, SystemExit) as error:
            raise term.failure(error, term.score) from error

    async def _aone(self, term: Term, context: RewardContext) -> float:
        try:
            if term.is_async:
                return term.checked(await cast(Any, term.score(context)))
            value: object = await _on_a_thread(term, context)
            if isinstance(value, Awaitable):
                value = await cast("Awaitable[object]", value)
            return term.checked(value)
        except (Exception, SystemExit) as error:
            raise term.failure(error, term.score) from error

    def _reward(self, scores: Mapping[str, float | None]) -> Reward:
        weighted = {
            term.name: 0.0 if (score := scores[term.name]) is None else term.weight * score
            for term in self.terms
        }
        return Reward(terms=weighted, scores={term.name: scores[term.name] for term in self.terms})


async def _on_a_thread(term: Term, context: RewardContext) -> object:
    """Call a score on a daemon thread, which may hang without holding up others or the exit.

    Raises:
        DeadlineError: It took longer than `Term.timeout_s`.
    """
    import asyncio

    from envkit.threads.workers import Mailbox, Worker

    loop = asyncio.get_running_loop()
    if loop not in _places:
        _places[loop] = asyncio.Semaphore(_MAX_THREADS)
    caller = copy_context()
    async with _places[loop]:
        worker = Worker(Mailbox())
        try:
            return await worker.call(
                lambda: caller.run(term.score, context), timeout_s=term.timeout_s
            )
        finally:
            worker.stop()


def _is_late(failed: TermFailure) -> bool:
    from envkit.threads.workers import DeadlineError

    return isinstance(failed.__cause__, DeadlineError)


def _async_refusal(term: Term) -> ConfigurationError:
    return ConfigurationError(
        f"reward term {term.name!r} is asynchronous: await ascore(context) in an envkit.AsyncEnv "
        "instead"
    )


def _is_decided(term: Term, scores: Mapping[str, float | None]) -> bool:
    return not isinstance(term.gate, Gate) or term.gate.term in scores


def _opens(term: Term, context: RewardContext, scores: Mapping[str, float | None]) -> bool:
    gate = term.gate
    if gate is None:
        return True
    if isinstance(gate, Gate):
        score = scores[gate.term]
        return score is not None and score >= gate.at_least
    try:
        return bool(gate(context))
    except (Exception, SystemExit) as error:
        raise term.failure(error, gate) from error


def _idle(context: RewardContext, untouched: RewardContext | None) -> Iterator[RewardContext]:
    """Yield contexts of a policy that does nothing but give an answer that can be read."""
    base = context if untouched is None else untouched
    opening = tuple(takewhile(lambda entry: entry["role"] != "assistant", base.messages))
    for answer in idle_answers(base.task):
        yield replace(base, answer=answer, messages=(*opening, message("assistant", answer)))


def _raise(error: Exception) -> NoReturn:
    raise error


def _raise_for(failed: TermFailure, fault: EnvFault) -> NoReturn:
    """Raise what remains of a failure that the policy did not cause."""
    raise failed.__cause__ if isinstance(failed.__cause__, ContractError) else fault
