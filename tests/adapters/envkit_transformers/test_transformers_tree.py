"""Forks and rewritten histories on the embedded engine: what its cache keeps, and equal numbers."""

import asyncio
from statistics import fmean
from typing import ClassVar

import pytest
from fakes.branching import Screens
from fakes.embedded import folder_of, largest_error, make_engine

from envkit.rollout import (
    AtTurns,
    ByEntropy,
    EpisodeSpec,
    GenerateRequest,
    Generation,
    Player,
    RolloutConfig,
    play_tree,
)
from envkit.tokens import ChatCodec, load_codec
from envkit.trajectory import SegmentKind, Trajectory
from envkit_transformers.engine import TransformersEngine

TOLERANCE = 1e-4


class Kept:
    """Keeps requests and answers of the engine that it hands them to."""

    seen: ClassVar[list[tuple[GenerateRequest, Generation]]] = []

    def __init__(self, engine: TransformersEngine) -> None:
        generate = engine.generate

        async def keep(request: GenerateRequest) -> Generation:
            answer = await generate(request)
            self.seen.append((request, answer))
            return answer

        self.seen.clear()
        engine.generate = keep


def player_of(kind: str, history: object) -> tuple[Player, TransformersEngine, ChatCodec]:
    engine, codec = make_engine(kind), load_codec(folder_of(kind))
    config = RolloutConfig.from_mapping(
        {"history": history, "sampling": {"max_new_tokens": 8, "seed": 5}}
    )
    return Player(engine, codec, config), engine, codec


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.slow
async def test_fork_takes_its_parents_cache_and_samples_from_the_same_numbers(
    images: bool,
) -> None:
    kind = "qwen2_5_vl" if images else "llama"
    player, engine, _ = player_of(kind, "keep")
    kept = Kept(engine)
    leaves = await play_tree(
        lambda: Screens(max_turns=4, images=images),
        player,
        branching=AtTurns(turns=(1, 3)),
        spec=EpisodeSpec(seed=7),
    )
    assert [leaf.fault for leaf in leaves] == [None] * 4
    for leaf in leaves[1:]:
        first = leaf.own_turns[0]
        assert first.cached_tokens >= first.prompt_tokens - 1 > 20
    async with asyncio.timeout(10):  # its thread frees the sessions
        while engine.stats.sessions:
            await asyncio.sleep(0.001)
    assert engine.stats.held_tokens == 0
    for request, answer in kept.seen:
        if answer.token_ids:
            assert largest_error(kind, request, answer) < TOLERANCE
    await player.aclose()
    await engine.aclose()


@pytest.mark.slow
async def test_by_entropy_forks_the_least_certain_turn_of_a_model() -> None:
    player, engine, _ = player_of("llama", "keep")
    trunk, fork = await play_tree(
        lambda: Screens(max_turns=4), player, branching=ByEntropy(forks=1), spec=EpisodeSpec(seed=7)
    )
    await player.aclose()
    await engine.aclose()
    assert fork.origin is not None
    logprobs = {
        one.turn: fmean(one.logprobs) for one in trunk.segments if one.kind is SegmentKind.MODEL
    }
    assert fork.origin.turns == min(logprobs, key=lambda turn: logprobs[turn])


async def sampled(kind: str, history: object) -> tuple[Trajectory, Kept]:
    player, engine, _ = player_of(kind, history)
    kept = Kept(engine)
    (trajectory,) = await player.play(Screens(images=True), EpisodeSpec(seed=7))
    await player.aclose()
    await engine.aclose()
    return trajectory, kept


async def test_rewritten_history_takes_the_shared_beginning_from_the_cache() -> None:
    history = {"keep_last_images": {"keep": 1, "drop_at": 2}}
    trajectory, kept = await sampled("qwen2_5_vl", history)
    assert trajectory.fault is None, trajectory.fault
    assert len(trajectory.branches) == 2
    for branch in trajectory.branches:
        turn = trajectory.turns[trajectory.segments[branch.segment].turn]
        assert 0 < turn.cached_tokens < turn.prompt_tokens
    for request, answer in kept.seen:
        if answer.token_ids:
            assert largest_error("qwen2_5_vl", request, answer) < TOLERANCE
