"""Batches whose slowest groups hold them up, for tests of the tail."""

import zlib
from dataclasses import replace
from typing import Any

from fakes.codecs import text_codec
from fakes.faults import ReplayEnv, World, say_turn

from envkit.faults import FaultPlan
from envkit.rollout import (
    FaultPolicy,
    GenerateRequest,
    Generation,
    RolloutConfig,
    RolloutState,
    ScriptedEngine,
    Tail,
    collect,
)
from envkit.trajectory import Trajectory

SLOW_S = 30.0


def is_slow(request: GenerateRequest) -> bool:
    """One group in three: its members see the same first message."""
    assert request.context is not None
    return (
        zlib.crc32(str(request.context.messages[-1 - 2 * request.context.turn]).encode()) % 3 == 0
    )


def latency(request: GenerateRequest) -> float:
    """Hold the second reply of slow groups for longer than any test lasts."""
    assert request.context is not None
    return SLOW_S if is_slow(request) and request.context.turn == 1 else 0.002


class Engine(ScriptedEngine):
    """Has a version of its weights, and may forget its slowness between batches."""

    def __init__(self) -> None:
        super().__init__(text_codec(), say_turn, latency=self._wait_s)
        self.version, self.is_quick = 0, False

    def _wait_s(self, request: GenerateRequest) -> float:
        return 0.001 if self.is_quick else latency(request)

    async def generate(self, request: GenerateRequest) -> Generation:
        return replace(await super().generate(request), weight_version=str(self.version))


async def batch(
    engine: ScriptedEngine, tail: Tail, *, groups: int, size: int = 1, seed: int = 0, **more: Any
) -> tuple[list[Trajectory], RolloutState, World]:
    world = World()
    state = more.pop("state", RolloutState())
    config = RolloutConfig(tail=tail, seed=seed, on_fault=more.pop("on_fault", FaultPolicy.MASK))
    plan = FaultPlan(0.0)
    found = collect(
        lambda: ReplayEnv(world, plan), engine, text_codec(), episodes=groups * size,
        group_size=size, config=config, state=state, **more,
    )  # fmt: skip
    return [one async for one in found], state, world
