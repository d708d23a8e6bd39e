"""Environments and players of tests that fork episodes under attack."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from fakes.templates import make_codec
from fakes.virtual_time import skip_from_thread

from envkit import rollout
from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.tasks import Task
from envkit.trajectory import Trajectory

ONE_RETRY = rollout.RetryBudget(
    max_env_retries_per_turn=1, max_episode_restarts=0, backoff=rollout.Backoff(initial_s=0.001)
)
NO_RETRY = rollout.RetryBudget(max_env_retries_per_turn=0, max_episode_restarts=0)

Trouble = Callable[["Sums"], None]


class Sums(Env):
    """Adds the digits of the replies; what the next resets bring can be planned."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)
    trouble: ClassVar[dict[str, list[Trouble]]] = {}
    """By the place of a call, such as "turn 1": what the next calls there do first."""

    def __init__(self, *, max_turns: int = 4) -> None:
        super().__init__(max_turns=max_turns)
        self.total = 0

    def on_reset(self, task: Task) -> Turn:
        self.total = 0
        self._meet("reset")
        return Turn("Say a digit.", info={"deep": {"list": [0]}})

    def on_turn(self, response_text: str) -> Turn:
        self.total += int(response_text)
        self._meet(f"turn {self.turn}")
        done = self.turn + 1 == self.max_turns
        return Turn(
            f"The sum is {self.total}.",
            reward=self.total / 10 if done else 0.0,
            done=done,
            info={"deep": {"list": [self.total]}},
        )

    def _meet(self, place: str) -> None:
        waiting = self.trouble.get(place)
        if waiting:
            waiting.pop(0)(self)


class SavedSums(Sums):
    """Can be saved, but not replayed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, snapshot=True)

    def get_state(self) -> dict[str, Any]:
        return {"total": self.total}

    def set_state(self, state: dict[str, Any]) -> None:
        self._meet("restore")
        self.total = state["total"]


class SlowSums(Sums):
    """Blames a slow step on the reply."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, replay_safe=True, on_step_timeout="truncate"
    )


def nothing(_: Sums) -> None:
    """Let a call pass."""


def fails(kind: FaultKind) -> Trouble:
    """Return a call that fails."""

    def call(_: Sums) -> None:
        raise EnvFault(f"planned {kind}", kind=kind)

    return call


def drifts(env: Sums) -> None:
    """Make the environment give another answer than before."""
    env.total += 1


def outlasts(seconds: float) -> Trouble:
    """Return a call that takes long by the clock of the running event loop."""
    loop = asyncio.get_running_loop()
    return lambda _: skip_from_thread(loop, seconds)


@contextmanager
def planned(place: str, *calls: Trouble) -> Generator[None]:
    """Plan what the next calls of a place do."""
    Sums.trouble[place] = list(calls)
    try:
        yield
    finally:
        Sums.trouble.clear()


def digit(context: PolicyContext) -> str:
    """Say a digit that differs between the branches of a tree."""
    return str((context.seed + 3 * context.turn) % 10)


def make_player(
    *,
    retries: rollout.RetryBudget = NO_RETRY,
    latency: Callable[[rollout.GenerateRequest], float] | None = None,
    isolation: Literal["none", "process"] = "none",
    **settings: Any,
) -> rollout.Player:
    """Return a player of a scripted engine."""
    codec = make_codec("qwen3")
    config = rollout.RolloutConfig(retries=retries, isolation=isolation, **settings)
    return rollout.Player(rollout.ScriptedEngine(codec, digit, latency=latency), codec, config)


async def grow(
    env: Any = Sums, *, player: rollout.Player | None = None, **options: Any
) -> tuple[Trajectory, ...]:
    """Play a tree; the default has four leaves, from forks before turns 1 and 2."""
    player = player or make_player()
    options.setdefault("branching", rollout.AtTurns(turns=(1, 2)))
    options.setdefault("spec", rollout.EpisodeSpec(seed=7, episode_id="tree"))
    try:
        return await rollout.play_tree(env, player, **options)
    finally:
        await player.aclose()
