"""Planned failures of an environment, to test that a set-up survives them."""

import time
from collections.abc import Sequence
from typing import Any, Final

from envkit.env import Observation
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.faults import ANY_SCOPE, RETRYABLE_KINDS, FaultPlan
from envkit.ranges import at_least
from envkit.seeds import checked_seed
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper

DELAY: Final = "delay"
"""The call succeeds `delay_s` later; a delay longer than the deadline is a hang."""
_KINDS: Final = (*(kind.value for kind in FaultKind), DELAY)


class InjectFaults(EnvWrapper):
    """Raises the faults of a `FaultPlan` from `reset` and `step`, as a real backend would.

    Scopes are "reset" and "step"; the keys are `(seed,)` and `(seed, turn)`, so the same seed gets
    the same faults in every run. Half of the failed steps take effect before they fail, as if the
    answer were lost on the way back. A retry must not play them twice. The attempt number is the
    rollout's if it has one; otherwise the plan counts attempts.

    Successful calls are unchanged.
    """

    def __init__(
        self,
        env: AnyEnv,
        plan: FaultPlan | None = None,
        *,
        rate: float = 0.1,
        seed: int = 0,
        kinds: Sequence[str] = RETRYABLE_KINDS,
        delay_s: float = 0.05,
    ) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            plan: Decides which calls fail. Its kinds are those of `FaultKind` and "delay". Share
                one plan between the instances of a rollout. None builds one from `rate`, `seed`
                and `kinds`.
            rate: Share of the calls that fail.
            seed: A different seed fails different calls.
            kinds: The kinds of fault to draw from.
            delay_s: Seconds that a "delay" takes.

        Raises:
            ConfigurationError: A kind is not a fault of environments, or the delay is negative.
        """
        plan = plan if plan is not None else FaultPlan(rate, seed=seed, kinds=kinds)
        super().__init__(env, plan=plan, delay_s=delay_s)
        drawn = {
            kind
            for scope in ("reset", "step", ANY_SCOPE)
            for kind in (*plan.kinds.get(scope, ()), *plan.schedule.values())
        }
        if unknown := sorted(drawn - set(_KINDS)):
            raise ConfigurationError(
                f"InjectFaults knows the kinds {list(_KINDS)}, got {unknown}; "
                "give the plan kinds by scope if servers share it"
            )
        at_least(0, delay_s=delay_s)
        self.plan, self.delay_s = plan, delay_s
        self._seed: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode, or fail as planned.

        Raises:
            EnvFault: The plan injects a fault.
        """
        self._seed = seed = None if seed is None else checked_seed(seed)
        self._fail(self.plan.draw("reset", seed), f"reset with seed {seed}")
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply, or fail before or after it.

        Raises:
            EnvFault: The plan injects a fault.
        """
        key = (self._seed, self.inner.turn)
        step_key = self.inner.step_key
        attempt = None if step_key is None else step_key.attempt
        kind = self.plan.draw("step", *key, attempt=attempt)
        is_lost_answer = self.plan.number("lost answer", *key, attempt) % 2 == 1
        where = f"turn {key[1]} of seed {key[0]}"
        if not is_lost_answer:
            self._fail(kind, where)
        answer = self.env.step(action)
        if is_lost_answer:
            self._fail(kind, f"{where}, after the step")
        return answer

    def _fail(self, kind: str | None, where: str) -> None:
        if kind == DELAY:
            time.sleep(self.delay_s)
        elif kind is not None:
            raise EnvFault(f"injected fault {kind!r} at {where}", kind=FaultKind(kind))
