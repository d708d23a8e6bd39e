"""Solvers, rewriters and a selector share an episode over one task of another environment."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, cast

import envkit
from envkit import ranges
from envkit.agents import MultiAgentEnv
from envkit.env import Env, Policy, Turn
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.reply import Reply
from envkit.tasks import Task
from envkit.toolset.result import plain
from envkit_refine.policies import noisy_oracle, oracle
from envkit_refine.prompts import read_choice, rewriter_prompt, selector_prompt

SELECTOR: Final = "selector"
_ROUNDS: Final = 3
_MOST_ROLES: Final = 64
_SOLVED_AT: Final = 1.0
"""Minimum score of a right solution."""
_MAX_SOLUTION_CHARS: Final = 4000
"""Longest solution that later roles read; the rest is truncated."""
_PLAIN: Final[Mapping[str, Mapping[str, Any]]] = {
    "geo3k-v0": {"max_scored_attempts": 0, "zoom": False}
}
"""Arguments that turn off tools, which a single reply cannot use."""


class RefineEnv(MultiAgentEnv):
    """Solve alone, rewrite together, select one.

    Task: a task of the environment `task_env`.
    Roles: `solver-1` ... answer the problem independently; `rewriter-1` ... then see every
        solution and write their own; the `selector` picks one of the rewritten solutions. All see
        the problem's images. A role is skipped if no role before it wrote anything.
    Observation: the problem; then the problem with the solutions, without thoughts and truncated to
        4000 characters.
    Action: solvers and rewriters reply in the form of `task_env`; the selector ends its reply with
        "Judgment: N".
    Reward: each solution scores what `task_env` gives for it as the only reply; the selector gets
        the score of the solution it picked, 0.0 if it picked none. Every role's score is multiplied
        by `correct_weight` if the picked solution scored 1.0 or more, else by
        `incorrect_weight`. A role succeeds if its own solution and the picked one are right. All
        rewards are given at the end of the episode, on the last reply.
    Episode end: after the selector's reply, or when no role is left.
    Source: slime's examples/multi_agent (roles, reward weights); prompts are original.
    """

    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {"noisy-oracle": noisy_oracle}

    def __init__(
        self,
        *,
        task_env: str = "geo3k-v0",
        task_env_kwargs: Mapping[str, Any] | None = None,
        solvers: int = 2,
        rewriters: int = 2,
        correct_weight: float = 1.2,
        incorrect_weight: float = 0.8,
        max_turns: int = _ROUNDS,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment.

        Args:
            task_env: A registered environment whose tasks take one reply.
            task_env_kwargs: Its arguments; its `max_turns` is 1. None turns its tools off, if it
                has a known switch.
            solvers: Number of solvers.
            rewriters: Number of rewriters.
            correct_weight: Factor for all rewards if the picked solution is right.
            incorrect_weight: Factor for all rewards if it is not.
            max_turns: Rounds; with fewer than 3 the later roles do not play.
            render_mode: As for `envkit.Env`.

        Raises:
            ConfigurationError: A number is out of range, or `task_env` does not accept its
                arguments.
            UnknownNameError: No environment has the id `task_env`.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        ranges.within(1, _MOST_ROLES, solvers=solvers, rewriters=rewriters)
        given = _PLAIN.get(task_env, {}) if task_env_kwargs is None else task_env_kwargs
        arguments: dict[str, Any] = {"max_turns": 1, **given}
        try:
            self.inner: Env = envkit.make(task_env, disable_env_checker=True, **arguments)
        except TypeError as error:
            raise ConfigurationError(
                f"task_env {task_env!r} cannot be created with {dict(given)}: {error}"
            ) from error
        if isinstance(self.inner, MultiAgentEnv):
            raise ConfigurationError(f"task_env must have one agent, got {task_env!r}")
        self._solvers = tuple(f"solver-{n}" for n in range(1, solvers + 1))
        self._rewriters = tuple(f"rewriter-{n}" for n in range(1, rewriters + 1))
        self.roles = (*self._solvers, *self._rewriters, SELECTOR)
        self.tasks = self.inner.tasks
        if self.inner.system_prompt is not None:
            self.prompts = dict.fromkeys(self._solvers, self.inner.system_prompt)
        self.capabilities = replace(  # pyright: ignore[reportAttributeAccessIssue]  # instances differ by their task_env
            self.inner.capabilities, snapshot=False
        )
        self._weights = {True: correct_weight, False: incorrect_weight}
        self.default_threshold = _SOLVED_AT * correct_weight
        self._inner_seed = 0
        self._problem, self._pictures = "", tuple[Image, ...]()
        self._scores: dict[str, float] = {}
        self.candidates: tuple[str, ...] = ()
        """Rewriters whose solutions the selector reads, in order."""

    def oracle(self) -> Policy:
        """Return a policy that answers as the oracle of `task_env` and picks the best solution.

        Raises:
            ConfigurationError: `task_env` has no oracle.
        """
        self.inner.oracle()  # raises now if there is none
        return oracle()

    def score_of(self, role: str) -> float:
        """Return the score of a role's solution; 0.0 if there is none."""
        return self._scores.get(role, 0.0)

    def on_reset(self, task: Task) -> Mapping[str, Turn]:
        """Show the problem to every solver."""
        self._inner_seed = int(self.np_random.integers(2**31))
        self._scores, self.candidates = {}, ()
        start = self.inner.reset(seed=self._inner_seed, options={"task": task})
        self.task = self.inner.task
        self._problem = start.observation["text"]
        self._pictures = start.observation["images"]
        return dict.fromkeys(self._solvers, Turn(self._problem, self._pictures))

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        """Score the replies and prompt the roles of the next round."""
        if SELECTOR in replies:
            return self._select(self.replies[SELECTOR])
        for role, reply in self.replies.items():
            self._scores[role] = 0.0 if reply is None else self._score(reply)
        solutions = {
            role: plain(solution, _MAX_SOLUTION_CHARS)
            for role, reply in self.replies.items()
            if reply is not None and (solution := reply.final.strip())
        }
        told = {
            role: Turn("", done=True, info={"score": self._scores[role]})
            for role, reply in replies.items()
            if reply is not None
        }
        return {**told, **self._ask(tuple(solutions), tuple(solutions.values()))}

    def on_end(self) -> Mapping[str, float]:
        """Weight every role's score by the outcome."""
        weight = self._weights[self.score_of(SELECTOR) >= _SOLVED_AT]
        return {role: score * weight for role, score in self._scores.items()}

    def close(self) -> None:
        """Close the inner environment."""
        self.inner.close()

    def _ask(self, authors: tuple[str, ...], solutions: tuple[str, ...]) -> dict[str, Turn]:
        if not solutions:
            return {}
        if authors[0] in self._solvers:
            prompt = rewriter_prompt(self._problem, solutions)
            return dict.fromkeys(self._rewriters, Turn(prompt, self._pictures))
        self.candidates = authors
        return {SELECTOR: Turn(selector_prompt(self._problem, solutions), self._pictures)}

    def _select(self, reply: Reply | None) -> Mapping[str, Turn]:
        chosen = None if reply is None else read_choice(reply.final, len(self.candidates))
        author = None if chosen is None else self.candidates[chosen]
        self._scores[SELECTOR] = 0.0 if author is None else self.score_of(author)
        if reply is None:
            return {}
        error = None if author else f"no line 'Judgment: N' with N from 1 to {len(self.candidates)}"
        info = {"chosen": author, "score": self._scores[SELECTOR], "parse_error": error}
        return {SELECTOR: Turn("", done=True, info=info)}

    def _score(self, reply: Reply) -> float:
        """Return the inner environment's reward for this as the only reply."""
        self.inner.reset(seed=self._inner_seed, options={"task": self.task})
        cast(Env, self.inner.unwrapped).announce(reply)
        return float(self.inner.step(reply.text).reward)
