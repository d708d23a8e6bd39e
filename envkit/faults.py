"""Planned failures: a pure function of a seed and the call.

Everything that can fail in a test or drill shares one plan: backends, fake servers, engines,
`envkit.wrappers.InjectFaults`. A call is identified by a scope ("step"), a key (the episode, the
turn) and an attempt number. The plan decides what happens to it, and the caller carries it out.
Threads and call order do not matter, so a failing run can be reproduced from its seed.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from envkit.errors import ConfigurationError, FaultKind
from envkit.ranges import at_least
from envkit.seeds import checked_seed, derive_seed

RETRYABLE_KINDS: Final = (FaultKind.TIMEOUT, FaultKind.TRANSIENT, FaultKind.CRASHED)
"""The default kinds of a plan: faults that a retry should survive."""
ANY_SCOPE: Final = "*"
"""Key for all other scopes in a mapping by scope."""
_DRAWS: Final = 2**31
_MAX_LOGGED: Final = 10_000
"""Maximum injected faults that a plan records individually; all are counted."""

Key = tuple[object, ...]
"""Identifies a call within its scope, such as `(seed, turn)`. Keys are compared by the text form
of their parts, so use values that are the same in every process: numbers and strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault injected by a plan."""

    scope: str
    key: Key
    attempt: int
    kind: str


class FaultPlan:
    """Decides what happens to each call: nothing, or a fault of some kind.

    Kinds are names: those of `FaultKind`, or a fake server's own ("garbage", "429"). Copying
    a plan returns the same object, so environments made from one spec share it.
    """

    def __init__(
        self,
        rate: float | Mapping[str, float] = 0.0,
        *,
        seed: int = 0,
        kinds: Sequence[str] | Mapping[str, Sequence[str]] = RETRYABLE_KINDS,
        schedule: Mapping[Key, str] | None = None,
        worst_attempts: int | None = None,
    ) -> None:
        """Create a plan.

        Args:
            rate: Share of the calls that fail, 0 to 1, for all scopes or by scope. A scope that is
                not listed uses the rate of "*", or else 0.
            seed: A different seed makes different calls fail.
            kinds: The kinds to draw from, all equally likely, for all scopes or by scope. A scope
                that is not listed uses the kinds of "*", or else the default.
            schedule: Calls that always fail: `(scope, *key, attempt)` -> kind.
            worst_attempts: Maximum attempts of one call that fail by rate; the next attempt then
                succeeds. None means no limit.

        Raises:
            ConfigurationError: A rate is out of range, a scope has no kinds, a number is < 0, or
                the seed is not an integer.
        """
        self.rates = dict(rate) if isinstance(rate, Mapping) else {ANY_SCOPE: float(rate)}
        self.kinds = (
            {scope: tuple(map(str, names)) for scope, names in kinds.items()}
            if isinstance(kinds, Mapping)
            else {ANY_SCOPE: tuple(map(str, kinds))}
        )
        for scope, share in self.rates.items():
            if not 0 <= share <= 1:
                raise ConfigurationError(f"the rate of {scope!r} must be 0 to 1, got {share}")
        for scope, names in self.kinds.items():
            if not names:
                raise ConfigurationError(f"kinds of {scope!r} must name at least one, got none")
        at_least(0, worst_attempts=worst_attempts)
        self.seed, self.worst_attempts = checked_seed(seed), worst_attempts
        self.schedule = dict(schedule or {})
        self.injected: Counter[str] = Counter()
        """Faults injected so far, by kind."""
        self.log: list[Injected] = []
        """The first ten thousand injected faults, in order."""
        self._attempts: Counter[Key] = Counter()
        self._lock = threading.Lock()

    def decide(self, scope: str, *key: object, attempt: int = 0) -> str | None:
        """Return this call's kind of fault, or None; a pure function that counts nothing."""
        scheduled = self.schedule.get((scope, *key, attempt))
        if scheduled is not None:
            return scheduled
        if self.worst_attempts is not None and attempt >= self.worst_attempts:
            return None
        rate = self.rates.get(scope, self.rates.get(ANY_SCOPE, 0.0))
        if derive_seed("fault", self.seed, scope, *key, attempt) / _DRAWS >= rate:
            return None
        kinds = self.kinds.get(scope) or self.kinds.get(ANY_SCOPE) or RETRYABLE_KINDS
        return str(kinds[self.number("kind", scope, *key, attempt) % len(kinds)])

    def draw(self, scope: str, *key: object, attempt: int | None = None) -> str | None:
        """Decide the fault of a call that is about to happen, and count it.

        Args:
            scope: The operation, such as "step".
            key: Which call it is.
            attempt: Number of earlier attempts of the same call; None lets the plan count them.
        """
        with self._lock:
            if attempt is None:
                attempt = self._attempts[scope, *key]
                self._attempts[scope, *key] += 1
            kind = self.decide(scope, *key, attempt=attempt)
            if kind is not None:
                self.injected[kind] += 1
                if len(self.log) < _MAX_LOGGED:
                    self.log.append(Injected(scope=scope, key=key, attempt=attempt, kind=kind))
        return kind

    def number(self, *parts: object) -> int:
        """Return a 31-bit number derived from the seed, for details such as where to cut."""
        return derive_seed("fault detail", self.seed, *parts)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data, without counts."""
        return {
            "rate": self.rates,
            "seed": self.seed,
            "kinds": {scope: list(names) for scope, names in self.kinds.items()},
            "schedule": [[list(call), kind] for call, kind in self.schedule.items()],
            "worst_attempts": self.worst_attempts,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a plan from `to_json`; it injects the same faults."""
        schedule = {tuple(call): kind for call, kind in data["schedule"]}
        return cls(
            data["rate"],
            seed=data["seed"],
            kinds=data["kinds"],
            schedule=schedule,
            worst_attempts=data["worst_attempts"],
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
