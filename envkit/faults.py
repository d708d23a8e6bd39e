"""Planned failures: which call fails, and how, as a pure function of a seed and the call.

One plan is shared by whatever can fail in a test or a drill: backends, fake servers, engines,
`envkit.wrappers.InjectFaults`. A call is named by a scope ("step"), a key (the episode, the turn)
and the number of its attempt. The plan says what happens to it; the caller makes it happen. Threads
and the order of calls change nothing, so a failing run is played again from its seed.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from envkit.errors import ConfigurationError, FaultKind
from envkit.seeds import derive_seed

RETRYABLE_KINDS: Final = (FaultKind.TIMEOUT, FaultKind.TRANSIENT, FaultKind.CRASHED)
"""What a plan draws from by default: faults that a retry is expected to survive."""
ANY_SCOPE: Final = "*"
"""In a mapping by scope: every scope that is not named."""
_DRAWS: Final = 2**31
_KEPT: Final = 10_000
"""Injected faults that a plan remembers one by one; all are counted."""

Key = tuple[object, ...]
"""Names a call within its scope, such as `(seed, turn)`; told apart by the text form of its parts,
so these must be the same in every process: numbers and strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault that a plan dealt out."""

    scope: str
    key: Key
    attempt: int
    kind: str


class FaultPlan:
    """Decides what happens to each call: nothing, or a fault of some kind.

    Kinds are names: those of `FaultKind`, or a fake server's own ("garbage", "429"). A copy of a
    plan is the plan itself, so that environments made from one spec share it.
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
        """Make a plan.

        Args:
            rate: Share of the calls that fail, 0 to 1, for all scopes or by scope. A scope that is
                not named takes the rate of "*", or else 0.
            seed: Another seed fails other calls.
            kinds: What to draw from, each as likely as the others, for all scopes or by scope. A
                scope that is not named takes the kinds of "*", or else the default.
            schedule: Calls that fail for certain: `(scope, *key, attempt)` -> kind.
            worst_attempts: How many attempts of one call may fail by rate; every call then ends
                well within one attempt more. None is unlimited.

        Raises:
            ConfigurationError: A rate out of range, a scope without kinds, or a negative number.
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
        if worst_attempts is not None and worst_attempts < 0:
            raise ConfigurationError(f"worst_attempts must be at least 0, got {worst_attempts}")
        self.seed, self.worst_attempts = seed, worst_attempts
        self.schedule = dict(schedule or {})
        self.injected: Counter[str] = Counter()
        """Faults dealt out so far, by kind."""
        self.log: list[Injected] = []
        """The first ten thousand of them, in the order they came."""
        self._attempts: Counter[Key] = Counter()
        self._lock = threading.Lock()

    def decide(self, scope: str, *key: object, attempt: int = 0) -> str | None:
        """Return the kind of fault of this call, or None; a pure function that counts nothing."""
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
        """Decide for a call that is about to happen, and count what it gets.

        Args:
            scope: What is called, such as "step".
            key: Which call it is.
            attempt: How often the same call was tried before; None lets the plan count it.
        """
        with self._lock:
            if attempt is None:
                attempt = self._attempts[scope, *key]
                self._attempts[scope, *key] += 1
            kind = self.decide(scope, *key, attempt=attempt)
            if kind is not None:
                self.injected[kind] += 1
                if len(self.log) < _KEPT:
                    self.log.append(Injected(scope=scope, key=key, attempt=attempt, kind=kind))
        return kind

    def number(self, *parts: object) -> int:
        """Return a 31-bit number of the plan's seed, for a detail such as the place of a cut."""
        return derive_seed("fault detail", self.seed, *parts)

    def to_json(self) -> dict[str, Any]:
        """Return what rebuilds the plan, as JSON data; counts are left out."""
        return {
            "rate": self.rates,
            "seed": self.seed,
            "kinds": {scope: list(names) for scope, names in self.kinds.items()},
            "schedule": [[list(call), kind] for call, kind in self.schedule.items()],
            "worst_attempts": self.worst_attempts,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a plan from `to_json`; it deals out the same faults."""
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
