"""What only SGLang does, against a real server: what the fake server stands on."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakes.real_servers import PICTURES, ask, until_idle
from fakes.sglang_server import FakeSGLang

from envkit.errors import EngineFault, FaultKind, LedgerFault
from envkit.messages import message
from envkit.rollout.engine import FinishReason, GenerateRequest, Sampling
from envkit.tokens import ChatCodec
from envkit_remote import RemoteEngine
from envkit_sglang import SGLangEngine, create_engine

pytestmark = pytest.mark.sglang


@pytest.fixture
def server_kind() -> str:
    return "sglang"


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
    await asyncio.gather(*(engine.abort(f"{number:032x}") for number in range(20)))
    generations = await asyncio.wait_for(asyncio.gather(*tasks), 60)
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
