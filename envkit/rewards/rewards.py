"""Several terms as one reward.

A term's gate is decided before its score is computed. Asynchronous terms whose gates are decided
run concurrently.
"""

import inspect
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.rewards.context import RewardContext
from envkit.rewards.term import Gate, Score, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A reward and its terms."""

    terms: dict[str, float]
    """Weighted scores by name, for `info["reward_terms"]`; 0.0 if a gate was closed."""
    scores: dict[str, float | None]
    """Scores before the weights; None if a gate was closed."""

    @property
    def total(self) -> float:
        """The exactly rounded sum of the terms, independent of their order."""
        return math.fsum(self.terms.values())


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

    def score(self, context: RewardContext) -> Reward:
        """Compute every term, for a synchronous environment.

        Raises:
            ConfigurationError: A term is asynchronous.
            EnvFault: A term could not be computed; kind GRADER.
            ContractError: A term did not return a finite number.
        """
        scores: dict[str, float | None] = {}
        for term in self.terms:
            if term.is_async:
                raise _async_refusal(term)
            scores[term.name] = self._one(term, context) if _opens(term, context, scores) else None
        return self._reward(scores)

    async def ascore(self, context: RewardContext) -> Reward:
        """Compute every term from an event loop; synchronous scores run on threads.

        Raises:
            EnvFault: A term could not be computed; kind GRADER. The other terms are cancelled.
            ContractError: A term did not return a finite number.
        """
        scores: dict[str, float | None] = {}
        waiting = list(self.terms)
        while waiting:
            wave = [term for term in waiting if _is_decided(term, scores)]
            opened = [term for term in wave if _opens(term, context, scores)]
            values = await self._together(opened, context)
            scores |= {term.name: None for term in wave} | values
            waiting = [term for term in waiting if term.name not in scores]
        return self._reward(scores)

    def __deepcopy__(self, memo: dict[int, object]) -> "Rewards":
        return self  # stateless, and a judge's connections cannot be copied

    async def _together(self, terms: Sequence[Term], context: RewardContext) -> dict[str, float]:
        import asyncio  # lazy: it would take a fifth of the time of `import envkit`

        if not terms:
            return {}
        tasks = [asyncio.ensure_future(self._aone(term, context)) for term in terms]
        try:
            values = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return {term.name: value for term, value in zip(terms, values, strict=True)}

    def _one(self, term: Term, context: RewardContext) -> float:
        try:
            value = term.score(context)
            if inspect.iscoroutine(value):
                value.close()  # it never started, and Python would warn
                raise _async_refusal(term)
            return term.checked(value)
        except Exception as error:
            raise term.failure(error) from error

    async def _aone(self, term: Term, context: RewardContext) -> float:
        import asyncio

        from envkit.threads.workers import outcome

        try:
            if term.is_async:
                return term.checked(await cast(Any, term.score(context)))
            value, error = await asyncio.to_thread(outcome, lambda: term.score(context))
            if error is not None:
                raise error
            return term.checked(await value if isinstance(value, Awaitable) else value)
        except Exception as error:
            raise term.failure(error) from error

    def _reward(self, scores: Mapping[str, float | None]) -> Reward:
        weighted = {
            term.name: 0.0 if (score := scores[term.name]) is None else term.weight * score
            for term in self.terms
        }
        return Reward(terms=weighted, scores={term.name: scores[term.name] for term in self.terms})


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
    except Exception as error:
        raise term.failure(error) from error
