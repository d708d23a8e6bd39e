"""Scripted policies for the roles: an oracle, and one that is right with a given probability."""

import random
from dataclasses import replace
from typing import Any, Final

from envkit import ranges
from envkit.agents import MultiAgentEnv, by_role
from envkit.env import Policy, PolicyContext

_WRONG: Final = "I could not work it out."
_SELECTOR: Final = "selector"


def oracle() -> Policy:
    """Return a policy that answers as the inner oracle does and picks the best solution."""
    return by_role(_right)


def noisy_oracle(p: float = 0.5) -> Policy:
    """Return a policy whose roles are each right with probability p and guess otherwise.

    It depends only on the context's seed, so an episode can be replayed.

    Args:
        p: Probability, 0 to 1.

    Raises:
        ConfigurationError: It is out of range.
    """
    ranges.within(0, 1, p=p)

    def write(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
        rng = random.Random(f"refine noisy oracle {context.seed}")
        if rng.random() < p:
            return _right(env, role, context)
        game: Any = env
        if role == _SELECTOR:
            return f"One of them it must be.\nJudgment: {rng.randint(1, len(game.candidates) + 1)}"
        return _WRONG

    return by_role(write)


def _right(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
    game: Any = env  # a RefineEnv, which imports this module
    if role == _SELECTOR:
        candidates: tuple[str, ...] = game.candidates
        best = max(range(len(candidates)), key=lambda n: game.score_of(candidates[n]))
        return f"I compared the final answers.\nJudgment: {best + 1}"
    inner: Policy = game.inner.oracle()
    return inner(replace(context, env=game.inner, turn=0))
