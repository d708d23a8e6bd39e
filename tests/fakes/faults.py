"""Failure injection for rollouts: an environment and an engine that obey a `FaultPlan`."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import EngineFault, EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind
from envkit.rollout.scripted import ScriptedEngine
from envkit.tasks import Task

HANG_S = 1.5
"""How long a hung call takes: longer than the deadlines of the tests that use it."""


class World:
    """What outlives every environment: counts of what was really done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.steps: Counter[tuple[str, int, int]] = Counter()
        self.open_envs = 0
        self.built = 0
        self.resets = 0
        self.saved = 0
        """Snapshots that were asked for."""
        self.restored = 0
        """Restores that were asked for."""
        self.hang: Callable[[], object] = partial(time.sleep, HANG_S)
        """What a call does that is to be late."""

    def enter(self) -> int:
        """Count a new environment and return its number."""
        with self._lock:
            self.open_envs += 1
            self.built += 1
            return self.built

    def leave(self) -> None:
        """Count an environment that was closed."""
        with self._lock:
            self.open_envs -= 1

    def applied(self, key: tuple[str, int, int]) -> None:
        """Count one application of a step."""
        with self._lock:
            self.steps[key] += 1


class CountingEnv(Env):
    """Three turns; each answer lists every reply that the state holds.

    A step that was applied twice, or lost, shows in `info["history"]` of the last one.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, snapshot=True, replay_safe=True, deterministic=True
    )

    def __init__(
        self, world: World, plan: FaultPlan, *, turns: int = 3, after: bool = True
    ) -> None:
        super().__init__(max_turns=turns + 2)
        self._world, self._plan, self._turns = world, plan, turns
        self._after = after
        self._serial = world.enter()
        self._resets = 0
        self._open = True
        self.history: list[str] = []

    def on_reset(self, task: Task) -> Turn:
        self._resets += 1
        self._world.resets += 1
        self._fail("reset", self._serial, attempt=self._resets)
        self.history = []
        return Turn(f"count to {self._turns}, start at {int(self.np_random.integers(1000))}")

    def on_turn(self, response_text: str) -> Turn:
        key = self.step_key
        assert key is not None
        self._world.applied((key.episode_id, key.turn, key.attempt))
        if self._after:  # the step takes effect, and then the answer is lost: the nasty case
            self.history.append(response_text)
            self._fail("step", key.episode_id, key.turn, attempt=key.attempt)
        else:
            self._fail("step", key.episode_id, key.turn, attempt=key.attempt)
            self.history.append(response_text)
        done = len(self.history) >= self._turns
        return Turn(
            f"{len(self.history)} so far",
            reward=1.0 if done else 0.0,
            done=done,
            info={"history": list(self.history)},
        )

    def get_state(self) -> dict[str, Any]:
        self._world.saved += 1
        self._fail("save", len(self.history), attempt=self._world.saved)
        return {"history": self.history}

    def set_state(self, state: dict[str, Any]) -> None:
        self._world.restored += 1
        self._fail("restore", attempt=self._world.restored)
        self.history = list(state["history"])

    def close(self) -> None:
        if self._open:
            self._open = False
            self._world.leave()

    def _fail(self, scope: str, *key: object, attempt: int) -> None:
        kind = self._plan.draw(scope, *key, attempt=attempt)
        if kind == "timeout":
            self._world.hang()
        elif kind is not None:
            raise EnvFault(f"injected {kind} at {scope} {key}", kind=FaultKind(kind))


class ReplayEnv(CountingEnv):
    """Recovers by replay: no snapshot."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)


class SavedEnv(CountingEnv):
    """Recovers from a snapshot alone: no replay."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=True, deterministic=True)


class FragileEnv(CountingEnv):
    """Declares nothing: a lost step loses the episode."""

    capabilities: ClassVar[Capabilities] = Capabilities()


class FaultyEngine(ScriptedEngine):
    """A scripted engine whose calls fail by plan."""

    def __init__(self, codec: Any, policy: Any, plan: FaultPlan, **options: Any) -> None:
        super().__init__(codec, policy, **options)
        self._plan = plan
        self.running = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        assert request.context is not None
        call = (request.session_id, request.context.turn)
        self.running += 1
        try:
            kind = self._plan.draw("engine", *call)
            if kind is not None:
                await asyncio.sleep(0)
                raise EngineFault(f"injected {kind}", kind=FaultKind(kind))
            return await super().generate(request)
        finally:
            self.running -= 1


class RawEngine(ScriptedEngine):
    """Claims raw log-probabilities."""

    @property
    def logprob_kind(self) -> LogprobKind:
        return LogprobKind.RAW


def say_turn(context: PolicyContext) -> str:
    """Policy: a reply that names its turn."""
    return f"reply {context.turn} of seed {context.seed % 997}"
