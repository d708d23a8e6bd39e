"""Check that an environment keeps the contract: Gymnasium's rules and envkit's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

import gymnasium

from envkit.checker import conduct, promises
from envkit.checker.problems import Note, Problem, mistakes, raised
from envkit.checker.under_test import Codec, EnvUnderTest, Skip
from envkit.env import Env
from envkit.errors import ContractError, shown
from envkit.seeds import checked_seed
from envkit.text import counted

__all__ = ["CheckReport", "Codec", "check_env"]

Rule = Callable[[EnvUnderTest], Iterator[str | Problem | Note]]

_RULES: Final[MappingProxyType[str, Rule]] = MappingProxyType(
    {
        "gymnasium": conduct.gymnasium_rule,
        "order of calls": conduct.order_rule,
        "replies": conduct.replies_rule,
        "tools": conduct.tools_rule,
        "tasks": conduct.tasks_rule,
        "budgets": conduct.budget_rule,
        "determinism": promises.determinism_rule,
        "independence": promises.independence_rule,
        "snapshot": promises.snapshot_rule,
        "replay": promises.replay_rule,
        "prefix": promises.prefix_rule,
        "oracle": promises.oracle_rule,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport:
    """What the rules found; prints as a list of rules if none is broken."""

    name: str
    """The environment's id, or its class if it was not made by id."""
    passed: tuple[str, ...]
    """The rules that passed."""
    skipped: tuple[tuple[str, str], ...]
    """The rules that do not apply, each with the reason."""
    turns: int
    """Number of turns played."""
    notes: tuple[tuple[str, str], ...] = ()
    """What rules went by, each with its rule."""
    problems: tuple[str, ...] = ()
    """One line per mistake; each begins with its rule. `check_env` raises them."""

    def __repr__(self) -> str:
        """Return one line per rule, as `check_env` prints them."""
        lines = [f"{self.name} keeps the contract ({counted(self.turns, 'turn')} played)"]
        notes = dict(self.notes)
        lines += [
            f"  passed   {rule}" + (f": {notes[rule]}" if rule in notes else "")
            for rule in self.passed
        ]
        lines += [f"  skipped  {rule}: {reason}" for rule, reason in self.skipped]
        return "\n".join(lines)


PROMISES: Final = frozenset({"determinism", "independence", "snapshot", "replay"})
"""Rules that compare two plays."""


def examine(subject: EnvUnderTest) -> CheckReport:
    """Play an environment through every rule of the contract and return the results."""
    plain = subject.env
    name = type(plain).__name__ if plain.spec is None else plain.spec.id
    passed: list[str] = []
    skipped: list[tuple[str, str]] = []
    problems: list[tuple[str, Problem]] = []
    notes: list[tuple[str, str]] = []
    for rule, check in _RULES.items():
        try:
            told = _run(check, subject)
        except Skip as reason:
            skipped.append((rule, str(reason)))
            continue
        found = [entry for entry in told if isinstance(entry, Problem)]
        notes += [(rule, entry.text) for entry in told if isinstance(entry, Note)]
        problems += [(rule, problem) for problem in found]
        if not found:
            passed.append(rule)
    return CheckReport(
        name=name,
        passed=tuple(passed),
        skipped=tuple(skipped),
        turns=subject.turns,
        notes=tuple(notes),
        problems=tuple(mistakes(problems)),
    )


def check_env(
    env: gymnasium.Env[Any, Any],
    *,
    factory: Callable[[], Env] | None = None,
    seed: int = 0,
    episodes: int = 3,
    codec: Codec | None = None,
    max_observation_pixels: int | None = None,
    max_observation_tokens: int | None = None,
) -> CheckReport:
    """Play an environment through every rule of the contract.

    Rules: Gymnasium's own checker; a step before reset or after the end is rejected; no reply
    raises and every value has the contract's type; info is JSON data; tool schemas and tasks
    survive JSON; and, where the environment declares them, determinism down to image bytes,
    independent instances, snapshots that continue byte by byte, exact replay, and an oracle that
    solves its tasks.

    Args:
        env: The environment, wrapped or not. It is reset but not closed.
        factory: Makes another instance. None uses `env.spec`, or a deep copy without one.
        seed: The first seed to play.
        episodes: Number of seeds for testing declared capabilities.
        codec: Adds the rule that prompts only grow; needed for a token budget.
        max_observation_pixels: Maximum pixels per observation; None is unlimited.
        max_observation_tokens: Maximum tokens per observation; None is unlimited.

    Raises:
        ConfigurationError: The seed is not an integer of at least 0.
        ContractError: Lists every problem found.
    """
    plain = cast(Any, env.unwrapped) if isinstance(env, gymnasium.Env) else env  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may pass anything
    if not isinstance(plain, Env):
        raise ContractError(
            f"check_env needs an instance of envkit.Env, such as envkit.make('canary-v0'), "
            f"got {shown(plain)}"
        )
    subject = EnvUnderTest(
        env=plain,
        factory=factory,
        seed=checked_seed(seed),
        episodes=episodes,
        codec=codec,
        max_pixels=max_observation_pixels,
        max_tokens=max_observation_tokens,
    )
    found = examine(subject)
    if found.problems:
        ways = counted(len(found.problems), "way")
        listed = "".join(f"\n  - {problem}" for problem in found.problems)
        raise ContractError(f"{found.name} breaks the contract in {ways}:{listed}")
    return found


def _run(check: Rule, subject: EnvUnderTest) -> list[Problem | Note]:
    """Return the problems and notes of a rule; an exception counts as a problem.

    Raises:
        Skip: The rule does not apply and found no problem.
    """
    found: list[Problem | Note] = []
    skipped: Skip | None = None
    try:
        for told in check(subject):
            problem = Problem(text=told, cause=told) if isinstance(told, str) else told
            if problem not in found:
                found.append(problem)
    except Skip as reason:
        skipped = reason
    except Exception as error:  # noqa: BLE001  # an environment under check may raise anything
        found.append(raised(error, stops_rule=True))
    try:
        subject.close_made()
    except Exception as error:  # noqa: BLE001  # as above
        found.append(raised(error, "close() must not raise, even when called twice: "))
    if skipped is not None and not found:
        raise skipped
    return found
