"""Environments that recover from planned faults, without an engine and without tokens."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fakes.faults import CountingEnv, World

from envkit import rollout
from envkit.faults import FaultPlan
from envkit.reply import Reply
from envkit.rollout.engine import LogprobKind
from envkit.rollout.host import EnvHost
from envkit.rollout.recovery import RecoveringEnv, play_with_restarts
from envkit.rollout.setup import Setup
from envkit.threads.pool import WorkerPool

T = TypeVar("T")
Schedule = Mapping[Any, str]
"""Kinds of faults by call, as in `FaultPlan.schedule`."""


def budget(**changes: Any) -> rollout.RetryBudget:
    """Return a generous budget without pauses."""
    values: dict[str, Any] = {
        "max_env_retries_per_turn": 9,
        "max_env_retries_per_episode": 9,
        "backoff": rollout.Backoff(initial_s=0.0),
        **changes,
    }
    return rollout.RetryBudget(**values)


@asynccontextmanager
async def hosted(
    kind: type[CountingEnv], schedule: Schedule | None = None, **options: Any
) -> AsyncGenerator[tuple[EnvHost, World]]:
    """Yield the host of an environment that fails by plan, and what it did."""
    world, pool, plan = World(), WorkerPool(), FaultPlan(schedule=dict(schedule or {}))
    host = EnvHost(pool, factory=lambda: kind(world, plan, **options))
    try:
        yield host, world
    finally:
        await host.close()
        pool.close()


def recovering(
    host: EnvHost,
    retries: rollout.RetryBudget | None = None,
    *,
    snapshots: dict[int, bytes] | None = None,
    **options: Any,
) -> RecoveringEnv:
    """Return one attempt at the episode "e"."""
    retries = budget() if retries is None else retries
    spec = rollout.EpisodeSpec(episode_id="e", seed=5, snapshots=snapshots)
    return RecoveringEnv(host, retries, spec, **options)


class Sessions:
    """An engine that only notes which sessions end."""

    name = "sessions"
    logprob_kind = LogprobKind.SAMPLED

    def __init__(self, failure: BaseException | None = None) -> None:
        self.ended: list[str] = []
        self._failure = failure

    async def generate(self, request: rollout.GenerateRequest) -> rollout.Generation:
        raise NotImplementedError

    async def abort(self, request_id: str) -> None:
        raise NotImplementedError

    async def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        raise NotImplementedError


async def played(
    host: EnvHost,
    retries: rollout.RetryBudget,
    play: Callable[[RecoveringEnv], Awaitable[T]],
    *,
    engine: Sessions | None = None,
    interrupt: rollout.Interrupt | None = None,
    **options: Any,
) -> T:
    """Play the episode "e", from its start after each restart."""
    setup = Setup(
        engine=engine or Sessions(),
        codec=None,
        limits=rollout.Limits(),
        retries=retries,
        sampling=rollout.Sampling(),
    )
    spec = rollout.EpisodeSpec(episode_id="e", seed=5)
    return await play_with_restarts(
        setup, spec, host, interrupt or rollout.Interrupt(), play, **options
    )


async def three_replies(env: RecoveringEnv) -> tuple[int, list[str]]:
    """Play three replies; return the restarts and the final state."""
    await env.reset()
    for turn in range(2):
        await env.step(Reply(text=f"reply {turn}"))
    last = await env.step(Reply(text="reply 2"))
    return env.restarts, list(last.step.info["history"])


def keys(world: World) -> list[tuple[str, int, int]]:
    """Return the step keys in the order of their use, and check that none was applied twice."""
    assert set(world.steps.values()) <= {1}, "a step key was applied twice"
    return list(world.steps)
