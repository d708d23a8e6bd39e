"""The vLLM engine against a strict fake server: what vLLM alone does.

The rules of all remote engines are in tests/adapters/envkit_remote/test_remote_engine.py.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from fakes.remote_requests import BLUE, BLUE_TOKENS, PAD, RED, RED_TOKENS, ask, reply
from fakes.sglang_failures import Failure, FailurePlan
from fakes.virtual_time import outlast, skip
from fakes.vllm_server import FakeVLLM
from fakes.waiting import until

from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.rollout.engine import GenerateRequest
from envkit_remote import RemoteEngine, RoutedEngine
from envkit_vllm import VLLMEngine, create_engine


def seeing(**sampling: Any) -> GenerateRequest:
    return ask((4, PAD, 5), [RED], length=2 + RED_TOKENS, **sampling)


@asynccontextmanager
async def engine_for(server: FakeVLLM, **options: Any) -> AsyncGenerator[VLLMEngine]:
    engine = VLLMEngine(server.url, image_token_id=PAD, **options)
    try:
        yield engine
    finally:
        await engine.aclose()


async def test_request_writes_out_every_parameter_and_names_images_by_their_pixels() -> None:
    async with FakeVLLM(reply, image_token_id=PAD) as server, engine_for(server) as engine:
        request = seeing(max_new_tokens=7, banned_ids=(PAD,), stop_ids=(2,), stop=("x",), seed=3)
        await engine.generate(replace(request, top_logprobs=3))
        body = server.requests[-1]
    assert body["token_ids"] == [4, PAD, 5]
    assert body["content_parts"] == [
        {"type": "image_url", "uuid": RED.sha256, "url": RED.data_uri()}
    ]
    assert body["return_token_ids"] is True
    assert server.sessions[-1] == "episode-1"
    assert body["sampling_params"] == {
        "max_tokens": 7,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "logprobs": 3,
        "stop_token_ids": [2],
        "skip_special_tokens": False,
        "detokenize": True,
        "stop": ["x"],
        "seed": 3,
        "logit_bias": {str(PAD): -100.0},
    }


async def test_expanded_ids_that_slip_through_are_found_by_their_length() -> None:
    async with FakeVLLM(reply, image_token_id=PAD) as server:
        engine = VLLMEngine(server.url, compare_prompts=0)  # does not know the placeholder
        request = ask((PAD,) * RED_TOKENS, [RED])
        with pytest.raises(LedgerFault, match=f"prompt of {2 * RED_TOKENS - 1} tokens"):
            await engine.generate(request)
        await engine.aclose()


async def test_image_is_sent_once_and_then_by_name() -> None:
    async with FakeVLLM(reply, image_token_id=PAD) as server, engine_for(server) as engine:
        first = await engine.generate(seeing())
        ids = (4, PAD, 5, *first.token_ids, 6, PAD, 7)
        length = 2 + RED_TOKENS + 4 + 2 + BLUE_TOKENS
        second = await engine.generate(ask(ids, [RED, BLUE], length=length))
        parts = server.requests[-1]["content_parts"]
    assert [sorted(part) for part in parts] == [["type", "uuid"], ["type", "url", "uuid"]]
    assert second.prompt_tokens == length
    assert second.cached_tokens == 8  # whole blocks of 4 among the 11 that were seen


async def test_forgotten_image_is_sent_again_within_the_same_attempt() -> None:
    async with FakeVLLM(reply, image_token_id=PAD) as server, engine_for(server) as engine:
        await engine.generate(seeing())
        await server.stop()
        await server.start()  # with an empty cache
        sent = len(server.requests)
        assert (await engine.generate(seeing())).prompt_tokens == 2 + RED_TOKENS
        assert ["url" in body["content_parts"][0] for body in server.requests[sent:]] == [
            False,
            True,
        ]
        await engine.generate(seeing())
        assert "url" not in server.requests[-1]["content_parts"][0]


async def test_server_without_an_image_cache_gets_bytes_after_two_misses() -> None:
    async with (
        FakeVLLM(reply, image_token_id=PAD, has_image_cache=False) as server,
        engine_for(server) as engine,
    ):
        for _ in range(6):
            assert (await engine.generate(seeing())).prompt_tokens == 2 + RED_TOKENS
        parts = [body["content_parts"][0] for body in server.requests]
        named = ["url" not in part for part in parts]
    assert named.count(True) == 2


@pytest.mark.parametrize("sampling", [{"temperature": 0.5}, {"top_p": 0.9}, {"banned_ids": (9,)}])
async def test_raw_logprobs_are_refused_where_they_would_differ(sampling: dict[str, Any]) -> None:
    async with FakeVLLM(reply, is_processed=False) as server, engine_for(server) as engine:
        with pytest.raises(EngineFault, match="--logprobs-mode processed_logprobs") as caught:
            await engine.generate(ask(**sampling))
        assert (await engine.generate(ask())).token_ids  # plain sampling at temperature 1
    assert caught.value.kind is FaultKind.PERMANENT


async def test_server_without_scale_out_says_which_flag_is_missing() -> None:
    async with FakeVLLM(reply, is_scaled_out=False) as server, engine_for(server) as engine:
        with pytest.raises(EngineFault, match="--enable-scale-out") as caught:
            await engine.generate(ask())
    assert not caught.value.retryable


async def test_unknown_adapter_is_refused() -> None:
    async with FakeVLLM(reply) as server, engine_for(server) as engine:
        with pytest.raises(EngineFault, match="`poet` does not exist"):
            await engine.generate(ask(extras={"model": "poet"}))
        assert server.requests[-1]["model"] == "poet"


async def test_reply_across_a_weight_update_has_the_last_version_and_the_spans() -> None:
    async with FakeVLLM(reply, token_s=30) as server, engine_for(server) as engine:
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: server.running == 1)  # it has sampled the first token
        server.settings.weight_version, server.settings.token_s = "7", 0.0
        skip(30)
        generation = await running
    assert generation.weight_version == "7"
    spans = generation.extras["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "7"]


@pytest.mark.parametrize(
    ("healthy", "kind", "is_unavailable"),
    [(True, FaultKind.PERMANENT, False), (False, FaultKind.CRASHED, True)],
)
async def test_health_decides_what_an_internal_error_means(
    healthy: bool, kind: FaultKind, is_unavailable: bool
) -> None:
    plan = FailurePlan(script=[Failure.INTERNAL])
    async with (
        FakeVLLM(reply, failures=plan) as server,
        engine_for(server, max_connections=1) as engine,
    ):
        server.is_healthy = healthy
        with pytest.raises(EngineFault, match="answered 500") as caught:
            await engine.generate(ask())
        assert (caught.value.kind, caught.value.is_unavailable) == (kind, is_unavailable)
        server.is_healthy = True
        assert (await engine.generate(ask())).token_ids  # over its own connection


async def test_paused_server_times_out_and_the_request_is_aborted() -> None:
    plan = FailurePlan(script=[Failure.HANG])
    async with FakeVLLM(reply, failures=plan) as server:
        async with engine_for(server, timeout_s=60) as engine:
            with pytest.raises(EngineFault, match="/pause") as caught:
                await outlast(engine.generate(ask()), 60, begun=lambda: server.requests)
        assert len(server.aborts) == 1
    assert caught.value.kind is FaultKind.TIMEOUT


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": [20, 21, 22]},
        {"token_ids": None},
        {"logprobs": {"content": [{"token_id": 20, "logprob": -9999.0}]}, "token_ids": [20]},
        {"logprobs": {"content": [{"token_id": 20, "logprob": math.inf}]}, "token_ids": [20]},
        {"logprobs": None},
        {"logprobs": "x"},
        {"logprobs": [0]},
        {"logprobs": "x", "token_ids": []},
        {"logprobs": {"content": [{"token_id": "20", "logprob": 0.0}]}},
        {"finish_reason": "error"},
        {"finish_reason": None},
        {"weight_versions": [{"version": "1"}]},
        {"weight_versions": 7},
    ],
    ids=lambda change: json.dumps(change)[:50],
)
async def test_answer_that_contradicts_itself_is_a_fault(change: dict[str, Any]) -> None:
    async with FakeVLLM(reply) as server, engine_for(server) as engine:
        server.changes = change
        with pytest.raises((EngineFault, LedgerFault)) as caught:
            await engine.generate(ask())
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "change",
    [
        {"completion_tokens": 3},
        {"prompt_tokens": 4},
        {"prompt_tokens": None},
        {"prompt_tokens": -1},
        {"completion_tokens": 10**4000},
        {"prompt_tokens": 10**4000},
    ],
    ids=lambda change: str(change)[:30],
)
async def test_wrong_counts_are_a_fault(change: dict[str, Any]) -> None:
    async with FakeVLLM(reply) as server, engine_for(server) as engine:
        server.usage_changes = change
        with pytest.raises((EngineFault, LedgerFault)) as caught:
            await engine.generate(ask())
    assert len(str(caught.value)) < 500


async def test_cached_tokens_are_zero_where_the_server_does_not_count() -> None:
    async with FakeVLLM(reply, has_details=False) as server, engine_for(server) as engine:
        await engine.generate(ask((4, 5, 6, 7, 8, 3)))
        generation = await engine.generate(ask((4, 5, 6, 7, 8, 3)))
    assert generation.cached_tokens == 0


async def test_flags_say_what_is_missing() -> None:
    bare = FakeVLLM(reply, is_processed=False, has_details=False)
    async with bare as server, engine_for(server) as engine:
        found = {row.flag: row.is_set for row in await engine.flags()}
    assert found == {
        "--enable-scale-out": True,
        "--logprobs-mode processed_logprobs": False,
        "--enable-prompt-tokens-details": False,
        "VLLM_SERVER_DEV_MODE=1": False,
    }
    closed = FakeVLLM(reply, is_scaled_out=False, is_development=True)
    async with closed as server, engine_for(server) as engine:
        found = {row.flag: row.is_set for row in await engine.flags()}
    assert found == {"--enable-scale-out": False, "VLLM_SERVER_DEV_MODE=1": True}


def test_create_engine_takes_one_address_or_several() -> None:
    one = create_engine(base_url="http://host:1/")
    assert isinstance(one, RemoteEngine)
    several = create_engine(base_url="http://host:1, http://host:2")
    assert isinstance(several, RoutedEngine)
    assert several.base_url == "http://host:1,http://host:2"
    listed = create_engine(base_url=["http://host:1", "http://host:2"])
    assert listed.base_url == several.base_url
    for bad in ("http://host:1,http://host:1", "http://host:1,", "", []):
        with pytest.raises(ConfigurationError):
            create_engine(base_url=bad)
