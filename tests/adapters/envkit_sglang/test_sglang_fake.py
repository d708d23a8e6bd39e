"""The fake server refuses, cuts, caches and aborts as the real one, which is asked too."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakes.real_servers import PICTURES, ask, until_idle
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_server import FakeSGLang
from fakes.sglang_worker import Live

from envkit.errors import EngineFault, FaultKind, LedgerFault
from envkit.messages import message
from envkit.rollout.engine import FinishReason, GenerateRequest, Sampling
from envkit.tokens import ChatCodec
from envkit_remote import RemoteEngine
from envkit_sglang import SGLangEngine, create_engine


async def post(server: FakeSGLang, body: Any, path: str = "/generate") -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, json=body) as response,
    ):
        raw = await response.read()
        try:
            return response.status, json.loads(raw)
        except ValueError:
            return response.status, raw.decode()


def reply(_request: object) -> list[int]:
    return [20, 21, 22]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": [1], "sampling_params": {"max_tokens": 3}}, "unknown field `max_tokens`"),
        (
            {"input_ids": [1], "sampling_params": {"temperature": "x"}},
            'invalid type: string "x", expected f64',
        ),
        (
            {"input_ids": [1], "sampling_params": {"max_new_tokens": 1.5}},
            "invalid type: floating point `1.5`, expected i64",
        ),
        (
            {"input_ids": [1], "image_data": [{"format": "processor_output"}]},
            "unknown field `format`",
        ),
        ({"input_ids": [1], "image_data": ["a", 3]}, "expected one of the MediaItem shapes"),
    ],
)
async def test_schema_gate_answers_400_with_a_string(body: Any, message: str) -> None:
    async with FakeSGLang(reply) as server:
        status, answer = await post(server, body)
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize(
    "body", [{"input_ids": [1, 2.0]}, {"input_ids": ["a"]}, {"input_ids": [1], "rid": 3}, [1]]
)
async def test_wrong_type_of_a_field_answers_400_as_an_http_exception(body: Any) -> None:
    async with FakeSGLang(reply) as server:
        status, answer = await post(server, body)
    assert status == answer["code"] == 400
    assert answer["message"].startswith("1 validation error:")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Either text, input_ids or input_embeds"),
        ({"input_ids": []}, "cannot be empty"),
        ({"input_ids": [5] * 10}, "longer than the model's context length (10 tokens)"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": 99}}, "maximum context length"),
        ({"input_ids": [5], "sampling_params": {"temperature": -1}}, "got -1.0"),
        ({"input_ids": [5], "sampling_params": {"logit_bias": {"900": 1}}}, "[0, 49], got 900"),
        ({"input_ids": [5], "image_data": ["data:image/png;base64,AAAA"]}, "IMAGE data at index 0"),
    ],
)
async def test_bad_values_answer_400_with_a_message(body: dict[str, Any], message: str) -> None:
    body = {"sampling_params": {"max_new_tokens": 3}, **body}
    async with FakeSGLang(reply, context_length=10, vocabulary_size=50) as server:
        status, answer = await post(server, body)
    assert status == 400
    assert message in answer["error"]["message"]


async def test_unknown_keys_next_to_sampling_params_are_ignored() -> None:
    async with FakeSGLang(reply) as server:
        status, answer = await post(server, {"input_ids": [5], "no_such_key": 1})
    assert status == 200
    assert answer["output_ids"] == [20, 21, 22, 2]
    assert "output_token_logprobs" not in answer["meta_info"]


async def test_stop_token_is_in_the_ids_and_not_in_the_text() -> None:
    async with FakeSGLang(reply) as server:
        _, answer = await post(server, {"input_ids": [5], "return_logprob": True})
    assert answer["text"] == "<20><21><22>"
    assert [entry[1] for entry in answer["meta_info"]["output_token_logprobs"]] == [20, 21, 22, 2]


async def test_health_and_control_routes_answer() -> None:
    async with FakeSGLang(reply) as server, aiohttp.ClientSession(server.url) as session:
        await post(server, {"input_ids": [5, 6, 7]})
        _, again = await post(server, {"input_ids": [5, 6, 7]})
        assert again["meta_info"]["cached_tokens"] == 2
        for path in ("/health", "/health_generate", "/ready", "/flush_cache"):
            assert (await session.get(path)).status == 200
        _, flushed = await post(server, {"input_ids": [5, 6, 7]})
        assert flushed["meta_info"]["cached_tokens"] == 0
        assert "context_length" not in await (await session.get("/model_info")).json()
        assert (await (await session.get("/server_info")).json())["context_length"] == 8192
        workers = await (await session.get("/workers")).json()
        assert workers == {"workers": [{"url": server.url}]}
        loads = await (await session.get("/v1/loads")).json()
        assert loads == {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}
        assert (await post(server, {"mode": "abort"}, "/pause_generation"))[0] == 200
        assert (await session.get("/ready")).status == 503
        assert (await post(server, {}, "/continue_generation"))[0] == 200


async def test_stream_is_cumulative_and_ends_with_done() -> None:
    async with FakeSGLang(reply) as server:
        _, text = await post(server, {"input_ids": [5], "stream": True})
        _, error = await post(server, {"input_ids": [], "stream": True})
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert [len(chunk["output_ids"]) for chunk in chunks] == [1, 2, 3, 4]
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert '"retryable": false' in error
    assert error.endswith("data: [DONE]\n\n")


async def test_text_reply_and_text_prompt_go_through_the_tokenizer() -> None:
    def encode(text: str) -> list[int]:
        return [ord(character) for character in text]

    async with FakeSGLang(lambda _: "ok", encode=encode) as server:
        _, answer = await post(server, {"text": "hello"})
    assert answer["output_ids"] == [ord("o"), ord("k"), 2]
    assert answer["meta_info"]["prompt_tokens"] == 5


async def test_abort_matches_by_prefix_only_from_a_live_rid() -> None:
    async with FakeSGLang(reply) as server:
        for rid in ("ab", "abc", "b"):
            server.worker.live[rid] = Live()
        server.worker.abort("a", abort_all=False)
        assert server.worker.aborted == []
        server.worker.abort("ab", abort_all=False)
        assert server.worker.aborted == ["ab", "abc"]
        server.worker.live.clear()


def test_failure_plan_is_the_same_for_the_same_seed() -> None:
    rates = {Failure.HANG: 0.2, Failure.RESET: 0.3}
    plans = [FailurePlan(script=[Failure.SLOW, None], rates=rates, seed=5) for _ in range(2)]
    drawn = [[plan.draw() for _ in range(200)] for plan in plans]
    assert drawn[0] == drawn[1] == plans[0].drawn
    assert drawn[0][:2] == [Failure.SLOW, None]
    assert {Failure.HANG, Failure.RESET, None} <= set(drawn[0][2:])


@pytest.fixture
def server_kind() -> str:
    return "sglang"


@pytest.mark.sglang
async def test_aborted_queue_has_requests_without_prompt_tokens(
    engine: RemoteEngine, sglang_url: str
) -> None:
    endless = {"ignore_eos": True}
    tasks = [
        asyncio.create_task(
            engine.generate(ask([5, 6, number], number, max_new_tokens=1500, extras=endless))
        )
        for number in range(20)  # the server runs 16 at once
    ]
    await until_idle("sglang", sglang_url, waiting=1)
    for number in reversed(range(20)):  # the queue first, or it would take the places of the others
        await engine.abort(f"{number:032x}")
    generations = await asyncio.wait_for(asyncio.gather(*tasks), 120)
    assert {generation.finish_reason for generation in generations} == {FinishReason.ABORT}
    queued = [generation for generation in generations if generation.prompt_tokens is None]
    assert queued
    assert all(not generation.token_ids for generation in queued)
    await until_idle("sglang", sglang_url)


BODIES: list[Any] = [
    {"input_ids": [5, 2.0]},
    {"input_ids": ["a"]},
    {"input_ids": [5], "sampling_params": {"max_tokens": 3}},
    {"input_ids": [5], "sampling_params": {"temperature": "x"}},
    {"input_ids": [5], "sampling_params": {"max_new_tokens": 1.5}},
    {"input_ids": [5], "sampling_params": {"stop_token_ids": [1.0]}},
    {"input_ids": [5], "image_data": [{"format": "processor_output"}]},
    {"input_ids": [5], "image_data": ["a", 3]},
    {"input_ids": [5], "rid": 3},
    {"input_ids": []},
    {"sampling_params": {"max_new_tokens": 1}},
    {"input_ids": [5], "sampling_params": {"temperature": -1.0}},
    {"input_ids": [5], "sampling_params": {"top_p": 3.0}},
    {"input_ids": [5], "sampling_params": {"logit_bias": {"900000": 1}}},
    {"input_ids": [5] * 9000},
    {"input_ids": [5] * 8000, "sampling_params": {"max_new_tokens": 400}},
    {"input_ids": [5], "no_such_key": 1, "sampling_params": {"max_new_tokens": 1}},
    {"input_ids": [5], "sampling_params": {"max_new_tokens": 0}},
    [5],
]


@pytest.mark.sglang
@pytest.mark.parametrize("body", BODIES, ids=lambda body: json.dumps(body)[:60])
async def test_fake_server_answers_like_the_real_one(
    body: Any, sglang_url: str, sglang_model: str
) -> None:
    config = json.loads((Path(sglang_model) / "config.json").read_text())
    size = config["text_config"]["vocab_size"]
    async with FakeSGLang(lambda _: [20], vocabulary_size=size) as fake:
        ours = await _post(fake.url, body)
    theirs = await _post(sglang_url, body)
    assert ours[0] == theirs[0]
    if theirs[0] != 200:
        assert set(ours[1]) == set(theirs[1])
        is_typed_by_fastapi = "object" in theirs[1]
        if is_typed_by_fastapi:
            assert "validation error" in _reason(ours[1])
            assert "validation error" in _reason(theirs[1])
        else:
            assert _reason(ours[1])[:40] == _reason(theirs[1])[:40]
    else:
        assert set(theirs[1]) == set(ours[1])
        missing = set(theirs[1]["meta_info"]) - set(ours[1]["meta_info"])
        assert not missing


async def _post(url: str, body: Any) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(url) as session,
        session.post("/generate", json=body) as response,
    ):
        return response.status, await response.json()


def _reason(answer: dict[str, Any]) -> str:
    error = answer.get("error", answer)
    return str(error.get("message") if isinstance(error, dict) else error)


@pytest.mark.sglang
async def test_expanded_placeholders_end_in_a_typed_fault_and_never_hang(
    sglang_url: str, sglang_model: str, codec: ChatCodec
) -> None:
    """The last test of this file: a Qwen2.5-VL server keeps the request forever."""
    encoded = codec.encode_prompt([message("user", "What?", [PICTURES[2]])])
    blind = SGLangEngine(sglang_url, timeout_s=8)
    request = GenerateRequest(
        request_id="f" * 32,
        session_id="session",
        wire_ids=encoded.train_ids,
        images=[PICTURES[2]],
        train_length=len(encoded.train_ids),
        sampling=Sampling(max_new_tokens=2),
    )
    with pytest.raises(EngineFault) as caught:
        await blind.generate(request)
    is_newer = "qwen3_vl" in (Path(sglang_model) / "config.json").read_text()
    assert caught.value.kind is (FaultKind.PERMANENT if is_newer else FaultKind.TIMEOUT)
    await blind.aclose()  # the server may have closed its connection
    other = SGLangEngine(sglang_url, timeout_s=8)
    assert (await other.generate(ask([5, 6, 7], max_new_tokens=2))).prompt_tokens == 3
    await other.aclose()
    seeing = create_engine(sglang_model, base_url=sglang_url)
    with pytest.raises(LedgerFault, match="not the expanded train ids"):
        await seeing.generate(request)
    await seeing.aclose()
