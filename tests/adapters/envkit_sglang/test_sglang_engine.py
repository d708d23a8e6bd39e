"""The SGLang engine against a strict fake server: requests, answers, checks before sending."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from fakes.remote_requests import BLUE, BLUE_TOKENS, PAD, RED, RED_TOKENS, ask, reply
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_server import FakeSGLang
from PIL import Image as PilImage

from envkit.errors import ConfigurationError, ContractError, EngineFault, FaultKind, LedgerFault
from envkit.images import Image
from envkit.rollout.engine import (
    FinishReason,
    GenerateRequest,
    Generation,
    LogprobKind,
)
from envkit_sglang import SGLangEngine, create_engine


def one_token(_width: int, _height: int) -> int:
    return 1


async def one(server: FakeSGLang, request: GenerateRequest, **options: Any) -> Generation:
    engine = SGLangEngine(server.url, image_token_id=PAD, **options)
    try:
        return await engine.generate(request)
    finally:
        await engine.aclose()


async def test_generate_returns_ids_and_logprobs_with_the_stop_token() -> None:
    async with FakeSGLang(reply) as server:
        generation = await one(server, ask())
    assert generation.token_ids == (20, 21, 22, 2)
    assert len(generation.logprobs) == 4
    assert all(value < 0 for value in generation.logprobs)
    assert generation.finish_reason is FinishReason.STOP
    assert generation.prompt_tokens == 3
    assert generation.weight_version == "default"


async def test_most_probable_tokens_come_with_each_sampled_one() -> None:
    async with FakeSGLang(reply) as server:
        found = (await one(server, replace(ask(), top_logprobs=3))).top_logprobs
        assert server.log[0].payload["top_logprobs_num"] == 3
    assert [[token for token, _ in row] for row in found] == [[0, 1, 2]] * 4


async def test_request_sends_ids_images_budget_and_routing_key_and_never_text() -> None:
    async with FakeSGLang(reply, image_token_id=PAD) as server:
        await one(
            server,
            ask((4, PAD, 5), [RED], length=2 + RED_TOKENS, max_new_tokens=7, top_k=5),
        )
        logged = server.log[0]
    body = logged.payload
    assert body["input_ids"] == [4, PAD, 5]
    assert body["image_data"] == [RED.data_uri()]
    assert "text" not in body
    assert body["return_logprob"] is True
    assert logged.headers["X-SMG-Routing-Key"] == "episode-1"
    assert len(body["rid"]) == 32
    assert body["sampling_params"] == {
        "max_new_tokens": 7,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 5,
        "skip_special_tokens": False,
    }


async def test_request_rids_are_new_and_of_one_width_for_every_request() -> None:
    async with FakeSGLang(reply) as server:
        engine = SGLangEngine(server.url)
        for _ in range(3):
            await engine.generate(ask())
        await engine.aclose()
        rids = [body["rid"] for body in server.payloads()]
    assert len(set(rids)) == 3
    assert {len(rid) for rid in rids} == {32}


async def test_stop_strings_and_stop_ids_end_a_reply_inside_the_ledger() -> None:
    async with FakeSGLang(reply) as server:
        by_string = await one(server, ask(stop=("<21>",)))
        by_id = await one(server, ask(stop_ids=(20,)))
    assert by_string.token_ids == (20, 21)
    assert by_id.token_ids == (20,)


async def test_length_is_reported_when_the_budget_ends_the_reply() -> None:
    async with FakeSGLang(reply) as server:
        generation = await one(server, ask(max_new_tokens=2))
    assert generation.token_ids == (20, 21)
    assert generation.finish_reason is FinishReason.LENGTH


async def test_budget_is_clamped_to_the_context_the_server_reports() -> None:
    async with FakeSGLang(reply, context_length=10) as server:
        await one(server, ask(max_new_tokens=500))
        assert server.payloads()[0]["sampling_params"]["max_new_tokens"] == 7


async def test_prompt_that_fills_the_context_is_refused_with_the_limit_to_set() -> None:
    async with FakeSGLang(reply, context_length=3) as server:
        with pytest.raises(EngineFault, match="max_context_tokens=3") as caught:
            await one(server, ask())
        assert server.payloads() == []
    assert caught.value.kind is FaultKind.PERMANENT


async def test_server_without_facts_is_asked_once_and_still_used() -> None:
    async with FakeSGLang(reply, has_server_info=False) as server:
        engine = SGLangEngine(server.url)
        await asyncio.gather(*(engine.generate(ask(name=f"{n:032x}")) for n in range(20)))
        await engine.aclose()
        assert server.payloads()[0]["sampling_params"]["max_new_tokens"] == 512
        assert server.info_requests == 1


async def test_banned_ids_cannot_be_sampled() -> None:
    async with FakeSGLang(lambda _: [20, PAD, 21]) as server:
        generation = await one(server, ask(banned_ids=(PAD,)))
    assert generation.token_ids == (20, 21, 2)


async def test_images_expand_on_the_server_and_the_prefix_cache_grows() -> None:
    async with FakeSGLang(reply, image_token_id=PAD) as server:
        engine = SGLangEngine(server.url, image_token_id=PAD)
        first = await engine.generate(ask((4, PAD, 5), [RED], length=2 + RED_TOKENS))
        ids = (4, PAD, 5, *first.token_ids, 6, PAD, 7)
        length = 2 + RED_TOKENS + 4 + 2 + BLUE_TOKENS
        second = await engine.generate(ask(ids, [RED, BLUE], length=length))
        await engine.aclose()
    assert first.prompt_tokens == 2 + RED_TOKENS
    assert second.prompt_tokens == length
    assert first.cached_tokens == 0
    assert second.cached_tokens == 2 + RED_TOKENS + 3
    assert second.extras["image_tokens"] == RED_TOKENS + BLUE_TOKENS


@pytest.mark.parametrize(
    ("ids", "images"),
    [((4, PAD, 5), (RED, BLUE)), ((4, 5), (RED,)), ((4, PAD), ()), ((PAD,) * 6, (RED,))],
    ids=["surplus image", "no placeholder", "no image", "expanded ids"],
)
async def test_ids_that_do_not_match_the_images_are_never_sent(
    ids: tuple[int, ...], images: tuple[Image, ...]
) -> None:
    async with FakeSGLang(reply, image_token_id=PAD) as server:
        with pytest.raises(LedgerFault, match="one placeholder"):
            await one(server, ask(ids, images))
        assert server.log == []


@pytest.mark.parametrize("bad", [-1, 100])
async def test_ids_outside_the_vocabulary_are_never_sent(bad: int) -> None:
    async with FakeSGLang(reply, vocabulary_size=100) as server:
        with pytest.raises(LedgerFault, match="tokenizer of the served model"):
            await one(server, ask((4, bad)), vocabulary_size=100)
        assert server.log == []


async def test_other_prompt_length_is_a_ledger_fault() -> None:
    async with FakeSGLang(reply) as server:
        with pytest.raises(LedgerFault, match="prompt of 3 tokens, the ledger has 4") as caught:
            await one(server, ask(length=4))
    assert not caught.value.retryable


async def test_retokenised_prompt_is_found_although_its_length_is_right() -> None:
    async with FakeSGLang(reply) as server:
        server.changed_prompt = [4, 99, 6]
        with pytest.raises(LedgerFault, match="changed the prompt at token 1"):
            await one(server, ask())
        assert (await one(server, ask(), compare_prompts=0)).prompt_tokens == 3


async def test_prompt_ids_are_asked_for_the_first_requests_only() -> None:
    async with FakeSGLang(reply) as server:
        engine = SGLangEngine(server.url, compare_prompts=2)
        for _ in range(4):
            await engine.generate(ask())
        await engine.aclose()
        asked = [bool(body.get("return_prompt_token_ids")) for body in server.payloads()]
    assert asked == [True, True, False, False]


async def test_extras_reach_the_right_place_of_the_body_and_results_come_back() -> None:
    async with FakeSGLang(reply, routed_experts=(2, 2)) as server:
        extras = {"min_p": 0.1, "return_routed_experts": True, "priority": 3}
        generation = await one(server, ask(extras=extras))
        body = server.payloads()[0]
    assert body["sampling_params"]["min_p"] == 0.1
    assert body["priority"] == 3
    assert generation.extras["routed_experts"]
    assert generation.extras["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]


async def test_unknown_extra_is_a_configuration_error_that_lists_the_known_ones() -> None:
    async with FakeSGLang(reply) as server:
        with pytest.raises(ConfigurationError, match=r"got \['max_tokens'\]"):
            await one(server, ask(extras={"max_tokens": 3}))
        assert server.payloads() == []


async def test_weight_version_changes_are_reported() -> None:
    async with FakeSGLang(reply) as server:
        server.settings.weight_version = "7"
        assert (await one(server, ask())).weight_version == "7"


async def test_raw_logprobs_are_refused_where_temperature_matters() -> None:
    async with FakeSGLang(reply, reports_raw_logprobs=True) as server:
        with pytest.raises(EngineFault, match="SGLANG_RETURN_ORIGINAL_LOGPROB") as caught:
            await one(server, ask(temperature=0.7))
        assert (await one(server, ask(temperature=1.0))).token_ids
        assert (await one(server, ask(temperature=0.7), check_logprobs=False)).token_ids
    assert caught.value.kind is FaultKind.PERMANENT


async def test_kind_of_logprobs_is_asked_once() -> None:
    async with FakeSGLang(reply) as server:
        engine = SGLangEngine(server.url)
        assert engine.logprob_kind is LogprobKind.SAMPLED
        await asyncio.gather(
            *(engine.generate(ask(name=f"{n:032x}", temperature=0.5)) for n in range(10))
        )
        await engine.aclose()
        probes = [body for body in server.payloads() if body.get("top_logprobs_num")]
    assert len(probes) == 1


async def test_score_gives_back_the_logprobs_of_sampling() -> None:
    async with FakeSGLang(reply, image_token_id=PAD) as server:
        engine = SGLangEngine(server.url, image_token_id=PAD)
        sampled = await engine.generate(ask((4, PAD, 5), [RED], length=2 + RED_TOKENS))
        scored = await engine.score((4, PAD, 5, *sampled.token_ids), [RED])
        await engine.aclose()
    assert len(scored) == 2 + RED_TOKENS + 4
    assert scored[0] is None
    assert scored[-4:] == sampled.logprobs


async def test_large_images_are_encoded_off_the_event_loop() -> None:
    noise = PilImage.effect_noise((1200, 1200), 90)
    pictures = [Image.from_pil(noise.rotate(90 * turn)) for turn in range(3)]
    waits: list[float] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.001)
            waits.append(loop.time() - before)

    async with FakeSGLang(reply, image_token_id=PAD, count_image_tokens=one_token) as server:
        watcher = asyncio.create_task(watch())
        engine = SGLangEngine(server.url, image_token_id=PAD)
        generation = await engine.generate(ask((PAD, PAD, PAD), pictures))
        await engine.aclose()
        watcher.cancel()
        sent = server.payloads()[0]["image_data"]
    assert generation.prompt_tokens == 3
    assert sent == [picture.data_uri() for picture in pictures]
    assert len(waits) > 5  # the loop kept running while images were encoded


async def test_second_request_of_the_same_id_is_a_contract_error() -> None:
    async with FakeSGLang(reply, first_token_s=0.2) as server:
        engine = SGLangEngine(server.url)
        running = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.05)
        with pytest.raises(ContractError, match="already running"):
            await engine.generate(ask())
        await running
        await engine.aclose()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:3000", "ftp://host", "http://", "http://host/v1", "http://host:port"]
)
def test_bad_address_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url"):
        SGLangEngine(url)


@pytest.mark.parametrize("option", ["timeout_s", "max_connections"])
def test_bad_number_is_a_configuration_error(option: str) -> None:
    settings: dict[str, Any] = {option: 0}
    with pytest.raises(ConfigurationError, match=option):
        SGLangEngine("http://host", **settings)


def test_create_engine_reads_the_models_config(tmp_path: Any) -> None:
    config = {"image_token_id": 7, "text_config": {"vocab_size": 50}, "vocab_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = create_engine(tmp_path, base_url="http://host:1/", timeout_s=5)
    assert engine.base_url == "http://host:1"
    assert engine.name == "sglang"
    with pytest.raises(LedgerFault, match=r"\(7\)"):
        asyncio.run(engine.generate(ask((7, 7), [RED])))
    with pytest.raises(LedgerFault, match="below 50"):
        asyncio.run(engine.generate(ask((50,))))


def test_create_engine_refuses_a_folder_without_a_config(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        create_engine(tmp_path, base_url="http://host:1")


async def test_create_engine_without_a_model_checks_no_counts() -> None:
    async with FakeSGLang(reply, failures=FailurePlan(script=[Failure.SLOW])) as server:
        engine = create_engine(base_url=server.url)
        assert (await engine.generate(ask())).prompt_tokens == 3
        await engine.aclose()
