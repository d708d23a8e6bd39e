"""Trainers' adapters with `envkit: {workers: N}`, on a fake of Ray and without the trainers."""

import asyncio
import sys
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from fakes.ray_cluster import FakeRay
from fakes.ray_players import codec_of
from fakes.sglang_server import FakeSGLang
from transformers import AutoTokenizer

from envkit.errors import ConfigurationError
from envkit.rollout import (
    EnvSource,
    EpisodeSpec,
    Interrupt,
    Limits,
    RolloutConfig,
    Sampling,
)
from envkit.trajectory import SegmentKind, StopReason, Trajectory
from envkit_ray import RayPlayer
from envkit_skyrl.remote import WorkerRecipe
from envkit_slime.engine import META
from envkit_slime.runtime import Runtime
from envkit_verl.shared import SharedRollout

ECHO = EnvSource("toy-echo-v0")
WRONG = text_codec().encode_reply("omega")


@dataclass
class State:
    aborted: bool = False
    tokenizer: Any = None
    processor: Any = None


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    register_toys()
    fake = FakeRay()
    fake.initialized = True  # as in a trainer's rollout process
    monkeypatch.setitem(sys.modules, "ray", fake)  # pyright: ignore[reportArgumentType]
    return fake


def runtime(server: FakeSGLang) -> Runtime:
    folder = str(tiny_model_dir("llama"))
    state: Any = State(tokenizer=AutoTokenizer.from_pretrained(folder))
    return Runtime(Namespace(hf_checkpoint=folder), state, server.url, {})


def summary(one: Trajectory) -> tuple[Any, ...]:
    return one.train_ids(), one.loss_mask(), one.reward, one.seed, len(one.turns)


@pytest.mark.slow
async def test_slime_plays_on_workers_what_it_plays_by_itself(ray: FakeRay) -> None:
    spec = EpisodeSpec(
        seed=4,
        episode_id="session-1",
        group_id="0",
        limits=Limits(max_turns=2),
        sampling=Sampling(max_new_tokens=16),
    )
    async with FakeSGLang(lambda _: WRONG) as server:
        shared = runtime(server)
        here = await shared.player(RolloutConfig())
        there = await shared.player(RolloutConfig(workers=2))
        assert isinstance(there, RayPlayer)
        assert await shared.player(RolloutConfig(workers=2)) is there
        (alone,) = await here.play(ECHO, spec)
        (one,) = await there.play(ECHO, spec)
        await shared.aclose()
    assert summary(one) == summary(alone)
    replies = [part for part in one.segments if part.kind is SegmentKind.MODEL]
    assert [part.extras[META]["completion_tokens"] for part in replies] == [len(WRONG)] * 2
    assert (ray.joined, ray.shutdowns) == ([], 0)
    assert all(actor.is_killed for actor in ray.actors)


@pytest.mark.slow
async def test_slime_s_abort_reaches_the_workers(ray: FakeRay) -> None:
    async with FakeSGLang(lambda _: WRONG, first_token_s=600.0) as server:
        shared = runtime(server)
        player = await shared.player(RolloutConfig(workers=1))
        interrupt = Interrupt()
        episode = asyncio.create_task(player.play(ECHO, interrupt=interrupt))
        async with asyncio.timeout(120):
            while not server.payloads():
                await asyncio.sleep(0.01)
            interrupt.fire()
            (one,) = await episode
        await shared.aclose()
    assert one.stop_reason is StopReason.ABORTED


@dataclass
class Client:
    """Answers every request with a word; pickles like SkyRL's client."""

    model_name: str = "base"
    weight_version: int = 0

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        ids = list(WRONG)
        return {
            "response_ids": [ids],
            "stop_reasons": ["stop"],
            "response_logprobs": [[-0.1] * len(ids)],
        }

    async def render_chat_completion(self, request_payload: Any) -> Any:
        raise AssertionError("a text model renders nothing")

    async def finish_session(self, session_id: str) -> None:
        pass


async def test_skyrl_s_workers_follow_the_trainer_s_weight_version(ray: FakeRay) -> None:
    client = Client(weight_version=3)
    recipe = WorkerRecipe(
        client=client,
        engine={"model": None, "image_token_id": None, "timeout_s": 60.0, "cache_salt": None},
        make_codec=partial(codec_of, "llama"),
        config=RolloutConfig(limits=Limits(max_turns=1)),
        imports=(),
    )
    config = RolloutConfig(workers=1)
    player = RayPlayer(recipe, config, follows=lambda: client.weight_version)
    try:
        (first,) = await player.play(ECHO)
        client.weight_version = 4
        versions = [first.turns[0].weight_version]
        async with asyncio.timeout(120):
            while versions[-1] == "3":
                (one,) = await player.play(ECHO)
                versions.append(one.turns[0].weight_version)
    finally:
        await player.aclose()
    assert (versions[0], versions[-1]) == ("3", "4")


def test_verl_refuses_its_own_workers() -> None:
    parts: Any = Namespace()
    with pytest.raises(ConfigurationError, match=r"raise rollout\.agent\.num_workers"):
        SharedRollout(parts, {"workers": 2})
