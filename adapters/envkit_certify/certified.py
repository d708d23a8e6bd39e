"""The environment of a certification, with facts that several lines need."""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from envkit.certification_hooks import CertificationHooks, StatesChance, StatesHooks
from envkit.checker import CheckReport, examine
from envkit.checker.under_test import CheckedEpisode, EnvUnderTest, oracle_of
from envkit.env import Policy
from envkit.errors import EnvFault, MissingDependencyError, describe
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import Task
from envkit.text import counted
from envkit_certify.blind_report import BlindReport, blind_report
from envkit_certify.forms import Paid, paid_answers
from envkit_certify.lines import CertificateLine, judged
from envkit_certify.process import FreshProcess
from envkit_certify.target import Make

_LONG_EPISODE = 12
_ALSO = re.compile(r".*also breaks: ", re.DOTALL)
"""What precedes the other rules that a problem breaks."""
_PICKED = 3.3
"""Width of the Wilson interval of a policy picked among many, in standard errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to certify and how; sent between processes as JSON."""

    target: str
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    episodes: int = 40
    seed: int = 0
    max_blind: float = 0.05
    """Maximum return of a policy that solves nothing, as a fraction of the oracle's return."""
    golden: Sequence[str] = ()
    policies: Sequence[str] = ()
    """More blind policies, as `module:name`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_seed(self.seed))


class CertifiedEnv(EnvUnderTest):
    """An environment with cached facts that several lines need."""

    def __init__(
        self,
        plan: Plan,
        make: Make,
        replays: FreshProcess,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        super().__init__(env=make(), factory=make, seed=plan.seed, episodes=3)
        self.plan, self.make, self.replays = plan, make, replays
        self._policies = policies
        self.hooks = (
            self.env.certification_hooks()
            if isinstance(self.env, StatesHooks)
            else CertificationHooks()
        )

    @cached_property
    def examined(self) -> CheckReport:
        """What `envkit.check_env` finds."""
        return examine(self)

    def broken(self, rules: Collection[str]) -> list[str]:
        """Return the problems of some of its rules."""
        return [
            problem
            for problem in self.examined.problems
            for named in [{problem.partition(":")[0], *_ALSO.sub("", problem)[:-1].split(", ")}]
            if not named.isdisjoint(rules)
        ]

    @cached_property
    def unplayable(self) -> str | None:
        """Why no episode can start, such as a missing program or server; None if one can."""
        try:
            self.env.reset(seed=self.plan.seed)
        except (MissingDependencyError, EnvFault) as error:
            return describe(error)
        except Exception:  # noqa: BLE001  # any other is a finding of the lines
            return None
        return None

    def close(self) -> None:
        """Close every instance."""
        self.close_made()
        self.env.close()

    @cached_property
    def oracle(self) -> Policy | None:
        """The environment's oracle, if it has one."""
        return oracle_of(self.env)

    @property
    def seeds(self) -> Iterator[int]:
        """The seeds of this certification's episodes."""
        return (
            derive_seed("certify", self.plan.seed, n) % 2**31 for n in range(self.plan.episodes)
        )

    @property
    def few_seeds(self) -> list[int]:
        """Fewer seeds, for policies with many variants."""
        count = 6 if self.env.max_turns <= _LONG_EPISODE else 3
        return list(self.seeds)[:count]

    def known_task(self, seed: int) -> Task | None:
        """Return a seed's task, to save drawing it again; None if that may change the episode."""
        safe = self.env.capabilities.replay_safe
        found = next((e.task for s, e in self.solved if s == seed), None) if safe else None
        return found or None

    @cached_property
    def solved(self) -> list[tuple[int, CheckedEpisode]]:
        """The oracle's episodes with their seeds; empty without an oracle."""
        oracle = self.oracle
        return [] if oracle is None else [(s, self.play(oracle, seed=s)) for s in self.seeds]

    @cached_property
    def paid(self) -> list[Paid]:
        """The oracle's answers that earned a reward."""
        return paid_answers(self.solved)

    @cached_property
    def best_return(self) -> float:
        """The oracle's mean return, or else the hook `best_return`; 1 if neither is above 0."""
        found = [episode.total for _, episode in self.solved]
        mean = math.fsum(found) / len(found) if found else self.hooks.best_return or 1.0
        return mean if mean > 0 else 1.0

    @property
    def limit(self) -> float:
        """Maximum return of a blind policy."""
        chance = float(self.env.chance_level) if isinstance(self.env, StatesChance) else 0.0
        return max(self.plan.max_blind * self.best_return, chance)

    @cached_property
    def blind(self) -> BlindReport:
        """What policies that solve nothing earn."""
        return blind_report(
            self.env,
            episodes=self.plan.episodes,
            seed=self.plan.seed,
            hooks=self.hooks,
            policies=self._policies,
        )

    def judged(
        self,
        name: str,
        returns: Mapping[str, Sequence[float]],
        detail: str,
        problems: Sequence[str],
    ) -> CertificateLine:
        """Return a line about useless replies, which fails if some earn more than the limit.

        Args:
            name: The line's name.
            returns: Returns of episodes, by what was replied.
            detail: What the line's number, the best mean return, is of.
            problems: Other reasons to fail.
        """
        means = {
            said: math.fsum(values) / len(values) for said, values in returns.items() if values
        }
        above = [
            f"{said} earns {mean:.3g}, above the limit {self.limit:.3g}"
            for said, mean in means.items()
            if lower_bound(returns[said]) > self.limit
        ]
        evidence = [
            f"{said}: {mean:.4g} in {counted(len(returns[said]), 'episode')}"
            for said, mean in means.items()
            if mean
        ]
        best = max(means.values(), default=None)
        return judged(name, best, detail, problems=[*problems, *above], evidence=evidence)

    def golden_files(self) -> list[Path]:
        """Return the recordings named by the plan, or else the default one in tests/golden."""
        if self.plan.golden:
            return [Path(name) for name in self.plan.golden]
        name = self.plan.target.removeprefix("envkit/").replace("/", "_")
        path = Path("tests/golden") / f"{name}.json"
        return [path] if ":" not in name and path.is_file() else []


def lower_bound(values: Sequence[float], errors: float = 1.96) -> float:
    """Return the lower end of an interval of the mean, of so many standard errors: 95%."""
    count = len(values)
    if not count:
        return 0.0
    mean = math.fsum(values) / count
    if count == 1:
        return mean if mean <= 0 else 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean - errors * math.sqrt(variance / count)


def earns(values: Sequence[float], limit: float, most: float) -> bool:
    """Return whether the mean of a policy picked among many is above a limit.

    Args:
        values: Returns of its episodes.
        limit: As for the returns.
        most: The return of a solved episode.
    """
    count = len(values)
    if count < 2:
        return False
    most = max(most, *values)
    mean = math.fsum(values) / count
    if min(values) > limit and mean < 0.9 * most and count > 3:
        return True  # a share of the reward for every task
    share, square = min(1.0, max(0.0, mean / most)), _PICKED**2 / count
    spread = _PICKED * math.sqrt(share * (1 - share) / count + square / count / 4)
    return (share + square / 2 - spread) / (1 + square) > limit / most


def as_text(data: object) -> str:
    """Return any data as one line."""
    return data if isinstance(data, str) else json.dumps(cast("Any", data), default=str)
