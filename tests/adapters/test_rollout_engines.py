"""Whole rollouts with real models: in this process, and (marked sglang) on a real server.

Every turn's prompt length and every log-probability is compared with an independent reckoning.
"""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from fakes.models import tiny_model_dir
from fakes.needs import BROWSER
from fakes.playing import collected

import envkit
from envkit.rollout import (
    Engine,
    Limits,
    Sampling,
    role_of,
    rollout_id_of,
)
from envkit.tokens import ChatCodec, load_codec
from envkit.trajectory import SegmentKind, StopReason, Trajectory, save, verify_file
from envkit_remote import RemoteEngine
from envkit_transformers import create_engine

FAMILIES = (
    "computer-use-v0",
    pytest.param("geo3k-v0", marks=pytest.mark.slow),
    pytest.param("search-v0", marks=pytest.mark.slow),
    pytest.param("computer-use-page-v0", marks=[BROWSER.mark, pytest.mark.slow]),
    pytest.param("computer-use-miniwob-v0", marks=[BROWSER.mark, pytest.mark.slow]),
)
AGENTS = {"solvers": 2, "task_env": "geo3k-v0"}
EMBEDDED_TOLERANCE = 1e-4
"""float32 against a teacher-forced forward over the whole trajectory."""
SERVER_TOLERANCE = 2e-3
"""float32, scored by the server itself in one forward over the whole trajectory."""


def geo3k_codec(folder: Any) -> ChatCodec:
    env: Any = envkit.make("geo3k-v0").unwrapped
    return load_codec(folder, tools=env.tools)


async def roll(engine: Engine, codec: ChatCodec, *, turns: int = 3) -> list[Trajectory]:
    """Play geo3k with images; random weights never answer, so every turn is used."""
    return [
        trajectory
        async for trajectory in collected(
            "geo3k-v0",
            engine,
            codec,
            episodes=4,
            group_size=2,
            concurrency=4,
            sampling=Sampling(max_new_tokens=12, seed=1),
            limits=Limits(max_turns=turns, max_context_tokens=2000),
            env_kwargs={"max_turns": turns + 1},
        )
    ]


def check_shape(trajectory: Trajectory) -> None:
    """What must hold of every finished record."""
    assert trajectory.fault is None, trajectory.fault
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert len(trajectory.turns) == 3
    assert len(trajectory.images()) >= 1
    sent = 0
    for segment in trajectory.segments:
        if segment.kind is SegmentKind.MODEL:
            # `play` compared the engine's own count with this one before it continued.
            assert trajectory.turns[segment.turn].prompt_tokens == sent
        sent += len(segment.train_ids)


@pytest.fixture(
    scope="module", params=[pytest.param("qwen2_5_vl", marks=pytest.mark.slow), "qwen3_vl"]
)
def embedded(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    folder = tiny_model_dir(request.param)
    return create_engine(folder, dtype="float32", threads=1), folder


async def test_embedded_rollout_with_images_matches_a_teacher_forced_forward(
    embedded: tuple[Any, Any],
) -> None:
    engine, folder = embedded
    codec = geo3k_codec(folder)
    trajectories = await roll(engine, codec)
    assert len(trajectories) == 4
    model = reference_model(folder)
    for trajectory in trajectories:
        check_shape(trajectory)
        assert any(turn.cached_tokens > 0 for turn in trajectory.turns[1:])
        expected = teacher_forced(model, trajectory, codec.media_ids)
        worst = max(
            abs(a - b)
            for a, b, m in zip(trajectory.logprobs(), expected, trajectory.loss_mask(), strict=True)
            if m
        )
        assert worst < EMBEDDED_TOLERANCE
    await engine.aclose()


async def check_family(
    engine: Engine, folder: Any, env_id: str, run: Path, **kwargs: Any
) -> list[Trajectory]:
    """Play a family, store the run and check it as `envkit verify` does."""
    env: Any = envkit.make(env_id, **kwargs).unwrapped
    codec = load_codec(folder, tools=env.tools)
    trajectories = [
        trajectory
        async for trajectory in collected(
            env_id,
            engine,
            codec,
            episodes=4,
            group_size=2,
            concurrency=4,
            sampling=Sampling(max_new_tokens=12, seed=1),
            limits=Limits(max_turns=3),
            env_kwargs=kwargs,
        )
    ]
    assert [t.fault for t in trajectories] == [None] * len(trajectories)
    assert len({rollout_id_of(t) for t in trajectories}) == 4
    save(trajectories, run)
    report = verify_file(run)
    assert report.problems == ()
    assert report.trained_tokens == sum(sum(t.loss_mask()) for t in trajectories) > 0
    return trajectories


def check_roles(trajectories: list[Trajectory]) -> None:
    """What must hold of episodes with several agents: each record is of one role of one episode."""
    seats = [(rollout_id_of(t), role_of(t)) for t in trajectories]
    assert len(set(seats)) == len(seats)
    assert all(sum(other == rollout for other, _ in seats) > 1 for rollout, _ in seats)
    assert any(t.images() for t in trajectories)


@pytest_asyncio.fixture
async def tiny() -> AsyncGenerator[tuple[Engine, Any]]:
    """An embedded engine, and the folder of its model."""
    folder = tiny_model_dir("qwen3_vl")
    engine = create_engine(folder, dtype="float32", threads=1)
    yield engine, folder
    await engine.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", FAMILIES)
async def test_embedded_rollout_of_a_family_is_verified(
    tiny: tuple[Engine, Any], env_id: str, tmp_path: Path
) -> None:
    played = await check_family(*tiny, env_id, tmp_path / "run.jsonl", max_turns=9)
    assert {t.stop_reason for t in played} == {StopReason.MAX_TURNS}


@pytest.mark.slow
async def test_embedded_rollout_of_several_agents_is_verified(
    tiny: tuple[Engine, Any], tmp_path: Path
) -> None:
    check_roles(await check_family(*tiny, "refine-v0", tmp_path / "run.jsonl", **AGENTS))


@pytest.mark.parametrize("env_id", FAMILIES)
async def test_server_rollout_of_a_family_is_verified(
    engine: RemoteEngine, server_model: str, env_id: str, tmp_path: Path
) -> None:
    played = await check_family(engine, server_model, env_id, tmp_path / "run.jsonl", max_turns=9)
    assert {t.stop_reason for t in played} == {StopReason.MAX_TURNS}


async def test_server_rollout_of_several_agents_is_verified(
    engine: RemoteEngine, server_model: str, tmp_path: Path
) -> None:
    run = tmp_path / "run.jsonl"
    check_roles(await check_family(engine, server_model, "refine-v0", run, **AGENTS))


def reference_model(folder: Any) -> Any:
    """Load the model afresh, with the attention that transformers itself uses."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def teacher_forced(model: Any, trajectory: Trajectory, banned: tuple[int, ...]) -> list[float]:
    """Return the log-probability of every token but the first, in one forward over all of them."""
    ids = torch.tensor([trajectory.train_ids()])
    tensors = {key: torch.as_tensor(value) for key, value in trajectory.tensors().items()}
    model.model.rope_deltas = None
    kinds = (ids == model.config.image_token_id).long()
    logits = (
        model(
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, **tensors
        )
        .logits[0]
        .float()
    )
    logits[:, list(banned)] = float("-inf")
    logprobs = torch.log_softmax(logits[:-1], -1)
    picked = logprobs.gather(1, ids[0, 1:, None])[:, 0]
    return [0.0, *picked.tolist()]


async def test_server_rollout_with_images_matches_the_servers_own_scoring(
    engine: RemoteEngine, server_model: str
) -> None:
    trajectories = await roll(engine, geo3k_codec(server_model))
    assert len(trajectories) == 4
    for trajectory in trajectories:
        check_shape(trajectory)
        scored = await engine.score(trajectory.wire_ids(), trajectory.images())
        assert len(scored) == len(trajectory.train_ids())
        pairs = zip(trajectory.logprobs(), scored, trajectory.loss_mask(), strict=True)
        worst = max(abs(a - (b or 0.0)) for a, b, m in pairs if m)
        assert worst < SERVER_TOLERANCE


async def greedy(
    engine: Engine, codec: ChatCodec, env_id: str, **env_kwargs: Any
) -> list[Trajectory]:
    """Play the same eight episodes at temperature 0, in order."""
    trajectories = [
        trajectory
        async for trajectory in collected(
            env_id,
            engine,
            codec,
            episodes=8,
            concurrency=8,
            sampling=Sampling(max_new_tokens=24, temperature=0.0),
            limits=Limits(max_turns=3),
            env_kwargs=env_kwargs,
            seed=7,
        )
    ]
    assert [one.fault for one in trajectories] == [None] * 8
    return sorted(trajectories, key=lambda one: one.seed or 0)


@pytest.mark.parametrize("env_id", ["canary-v0", "search-v0"], ids=["images", "text"])
async def test_server_and_this_process_give_the_same_greedy_episodes(
    engine: RemoteEngine, server_model: str, env_id: str
) -> None:
    """Same ids and rewards; log-probabilities as in a teacher-forced forward."""
    env: Any = envkit.make(env_id).unwrapped
    codec = load_codec(server_model, tools=env.tools)
    here = create_engine(server_model, dtype="float32", threads=1)
    try:
        ours = await greedy(here, codec, env_id)
    finally:
        await here.aclose()
    theirs = await greedy(engine, codec, env_id)
    assert [one.seed for one in theirs] == [one.seed for one in ours]
    assert [one.train_ids() for one in theirs] == [one.train_ids() for one in ours]
    assert [one.reward for one in theirs] == [one.reward for one in ours]
    model = reference_model(server_model)
    worst = 0.0
    for trajectory in theirs:
        assert bool(trajectory.images()) == (env_id == "canary-v0")
        expected = teacher_forced(model, trajectory, codec.media_ids)
        pairs = zip(trajectory.logprobs(), expected, trajectory.loss_mask(), strict=True)
        worst = max(worst, *(abs(a - b) for a, b, m in pairs if m))
    print(f"{engine.name} {env_id}: {worst:.1e}")  # noqa: T201  # for the table in the docs
    assert worst < SERVER_TOLERANCE
