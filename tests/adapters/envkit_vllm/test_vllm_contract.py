"""What only vLLM does, against real servers, also without our flags: what the fake stands on."""

import asyncio
import importlib
import json
import os
import re
import signal
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from fakes.playing import collected
from fakes.real_servers import PICTURES, Conversation, ask, until_idle
from fakes.vllm_server import FakeVLLM

from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.images import Image
from envkit.messages import message
from envkit.rollout.engine import FinishReason, GenerateRequest, Sampling
from envkit.tokens import ChatCodec, load_codec
from envkit_remote import RemoteEngine
from envkit_trl import DiskWeightTransfer
from envkit_vllm import VLLMEngine, create_engine

pytestmark = pytest.mark.vllm

ENDLESS = {"ignore_eos": True}


@pytest.fixture
def server_kind() -> str:
    return "vllm"


def with_pictures(
    codec: ChatCodec, images: tuple[Image, ...], *, length: int = 0, **sampling: Any
) -> GenerateRequest:
    encoded = codec.encode_prompt([message("user", "What?", images)])
    return GenerateRequest(
        request_id="f" * 32,
        session_id="session",
        wire_ids=encoded.wire_ids,
        images=images,
        train_length=length or len(encoded.train_ids),
        sampling=Sampling(max_new_tokens=2, **sampling),
    )


async def post(url: str, path: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession(url) as session, session.post(path, json=body) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text


async def until_sampling(url: str) -> None:
    """Wait until some tokens were sampled since now."""
    first: float | None = None
    async with asyncio.timeout(60), aiohttp.ClientSession(url) as session:
        while True:
            async with session.get("/metrics") as response:
                lines = (await response.text()).splitlines()
            count = sum(
                float(line.split()[-1])
                for line in lines
                if line.startswith("vllm:generation_tokens_total{")
            )
            first = count if first is None else first
            if count > first + 2:
                return
            await asyncio.sleep(0.05)


async def test_flags_of_the_server_are_found(engine: RemoteEngine) -> None:
    assert all(row.is_set for row in await engine.flags())


async def test_expanded_ids_are_found_by_the_length_of_the_prompt(
    vllm_url: str, codec: ChatCodec
) -> None:
    """The server expands the first placeholder once more and answers 200."""
    encoded = codec.encode_prompt([message("user", "What?", [PICTURES[2]])])
    blind = VLLMEngine(vllm_url, compare_prompts=0)
    request = GenerateRequest(
        request_id="f" * 32,
        session_id="session",
        wire_ids=encoded.train_ids,
        images=[PICTURES[2]],
        train_length=len(encoded.train_ids),
        sampling=Sampling(max_new_tokens=2),
    )
    with pytest.raises(LedgerFault, match="the server saw a prompt of"):
        await blind.generate(request)
    await blind.aclose()


async def test_image_that_the_server_has_travels_by_name_and_a_lost_one_is_sent_again(
    vllm_url: str, vllm_model: str, codec: ChatCodec
) -> None:
    engine = Counting(vllm_url, compare_prompts=0)
    first = await engine.generate(with_pictures(codec, PICTURES))
    named = await engine.generate(with_pictures(codec, PICTURES))
    assert engine.sent[1] < 5000 < engine.sent[0]
    assert (await post(vllm_url, "/reset_mm_cache", {}))[0] == 200
    again = await engine.generate(with_pictures(codec, PICTURES))
    assert len(engine.sent) == 4
    assert engine.sent[3] > 5000
    assert named.prompt_tokens == first.prompt_tokens == again.prompt_tokens
    await engine.aclose()


async def test_request_after_an_internal_error_finds_a_new_connection(
    vllm_url: str, codec: ChatCodec
) -> None:
    """The server closes the connection after a 500; a pooled one would be reset."""
    blind = VLLMEngine(vllm_url, max_connections=1)
    encoded = codec.encode_prompt([message("user", "What?")])
    request = GenerateRequest(
        request_id="f" * 32,
        session_id="session",
        wire_ids=encoded.wire_ids,
        images=[PICTURES[0]],
        train_length=len(encoded.wire_ids),
        sampling=Sampling(max_new_tokens=2),
    )
    for _ in range(3):
        with pytest.raises(EngineFault, match="answered 500") as caught:
            await blind.generate(request)
        assert caught.value.kind is FaultKind.PERMANENT  # the health page answers
        assert not caught.value.is_unavailable
        assert (await blind.generate(ask([5, 6, 7], max_new_tokens=2))).prompt_tokens == 3
    await blind.aclose()


async def test_aborted_queue_returns_no_tokens(engine: RemoteEngine, vllm_url: str) -> None:
    tasks = [
        asyncio.create_task(
            engine.generate(ask([5, 6, number], number, max_new_tokens=4000, extras=ENDLESS))
        )
        for number in range(20)  # the server runs 16 at once
    ]
    await until_idle("vllm", vllm_url, waiting=1)
    for number in reversed(range(20)):  # a queued one must not get a place that becomes free
        await engine.abort(f"{number:032x}")
    generations = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert {generation.finish_reason for generation in generations} == {FinishReason.ABORT}
    assert any(not generation.token_ids for generation in generations)
    await until_idle("vllm", vllm_url)


async def test_adapter_is_named_in_the_extras_and_an_unknown_one_is_permanent(
    engine: RemoteEngine, vllm_model: str
) -> None:
    named = await engine.generate(ask([5, 6], max_new_tokens=1, extras={"model": vllm_model}))
    assert len(named.token_ids) == 1
    with pytest.raises(EngineFault, match="no-such-adapter") as caught:
        await engine.generate(ask([5, 6], extras={"model": "no-such-adapter"}))
    assert caught.value.kind is FaultKind.PERMANENT


async def test_weight_version_changes_within_a_reply(engine: RemoteEngine, vllm_url: str) -> None:
    running = asyncio.create_task(
        engine.generate(ask([5, 6, 7], max_new_tokens=600, extras=ENDLESS))
    )
    await until_sampling(vllm_url)
    status, _ = await post(vllm_url, "/update_weight_version", {"new_version": "seven"})
    assert status == 200
    crossing = await running
    try:
        assert crossing.weight_version == "seven"
        spans = crossing.extras["weight_versions"]
        assert [span["version"] for span in spans] == ["default", "seven"]
        assert spans[-1]["end"] == len(crossing.token_ids)
        after = await engine.generate(ask([5, 6], max_new_tokens=2))
        assert after.weight_version == "seven"
        assert "weight_versions" not in after.extras
    finally:
        await post(vllm_url, "/update_weight_version", {"new_version": "default"})


async def test_greedy_reply_is_the_same_with_and_without_a_cached_prefix(
    engine: RemoteEngine, codec: ChatCodec
) -> None:
    talk = Conversation(codec, engine)
    for picture in (PICTURES[0], PICTURES[1], PICTURES[0]):
        await talk.turn("And this?", [picture], temperature=0.0)
    request = GenerateRequest(
        request_id="e" * 32,
        session_id="again",
        wire_ids=talk.wire[: -len(talk.replies[-1][1].token_ids)],
        images=talk.images,
        train_length=talk.replies[-1][0],
        sampling=Sampling(
            max_new_tokens=12,
            temperature=0.0,
            banned_ids=codec.media_ids,
            stop_ids=codec.stop_ids,
            extras={"cache_salt": uuid.uuid4().hex},
        ),
    )
    fresh = await engine.generate(request)
    assert fresh.cached_tokens == 0 < talk.replies[-1][1].cached_tokens
    assert fresh.token_ids == talk.replies[-1][1].token_ids
    assert fresh.logprobs == pytest.approx(talk.replies[-1][1].logprobs, abs=1e-5)


async def test_send_weights_by_disk_changes_what_the_server_samples(
    engine: RemoteEngine, vllm_url: str, vllm_model: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForImageTextToText

    ids = (5, 6, 7, 8)
    before = await engine.score(ids)
    model: Any = AutoModelForImageTextToText.from_pretrained(vllm_model)
    original = {name: value.clone() for name, value in model.state_dict().items()}
    send_weights = DiskWeightTransfer(vllm_url, tmp_path / "weights", server="vllm")
    with torch.no_grad():
        for parameter in model.get_output_embeddings().parameters():
            parameter.mul_(2.0)
    await send_weights(model, "11")
    try:
        assert (await engine.generate(ask(ids, max_new_tokens=1))).weight_version == "11"
        changed = await engine.score(ids)
    finally:
        model.load_state_dict(original)
        await send_weights(model, "default")
    assert max(abs((a or 0.0) - (b or 0.0)) for a, b in zip(before, changed, strict=True)) > 0.1
    assert await engine.score(ids) == pytest.approx(before, abs=1e-6)


class Counting(VLLMEngine):
    """Notes how many bytes each request has."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sent: list[int] = []
        post = self._http.post

        async def counted(path: str, body: bytes, **options: Any) -> Any:
            if path.endswith("generate"):
                self.sent.append(len(body))
            return await post(path, body, **options)

        self._http.post = counted  # type: ignore[method-assign]


BODIES: list[Any] = [
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "logprobs": 0}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "no_such_key": 1}, "nor_this": 2},
    {"token_ids": [5], "sampling_params": {"max_tokens": 0}},
    {"token_ids": [], "sampling_params": {"max_tokens": 1}},
    {"token_ids": [-1], "sampling_params": {"max_tokens": 1}},
    {"token_ids": [900_000], "sampling_params": {"max_tokens": 1}},
    {"token_ids": ["a"], "sampling_params": {"max_tokens": 1}},
    {"token_ids": [5]},
    {"sampling_params": {"max_tokens": 1}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "top_k": None}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "top_p": 3.0}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "temperature": -1.0}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "temperature": 3.0}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "logprobs": 30}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "stop_token_ids": [900_000]}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "stop": ["a"], "detokenize": False}},
    {"token_ids": [5], "sampling_params": {"max_tokens": 1, "logit_bias": {"900000": 1.0}}},
    {"token_ids": [5] * 8192, "sampling_params": {"max_tokens": 1}},
    {"token_ids": [5] * 9000, "sampling_params": {"max_tokens": 1}},
    {"token_ids": [5], "model": "no-such", "sampling_params": {"max_tokens": 1}},
    {
        "token_ids": [5],
        "sampling_params": {"max_tokens": 1},
        "content_parts": [{"type": "image_url", "uuid": "never-seen"}],
    },
    {
        "token_ids": [5],
        "sampling_params": {"max_tokens": 1},
        "content_parts": [{"type": "image_url", "url": "data:image/png;base64,AAAA", "uuid": "x"}],
    },
    {
        "token_ids": [5, 6],
        "return_token_ids": True,
        "sampling_params": {"max_tokens": 2, "logprobs": 0, "prompt_logprobs": 0},
    },
    [5],
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: json.dumps(body)[:60])
async def test_fake_server_answers_like_the_real_one(
    body: Any, vllm_url: str, vllm_model: str
) -> None:
    config = json.loads((Path(vllm_model) / "config.json").read_text())
    size = config["text_config"]["vocab_size"]
    async with FakeVLLM(
        lambda _: [20], vocabulary_size=size, image_token_id=config["image_token_id"]
    ) as fake:
        ours = await post(fake.url, "/inference/v1/generate", body)
    theirs = await post(vllm_url, "/inference/v1/generate", body)
    assert ours[0] == theirs[0], theirs
    if theirs[0] == 200:
        assert set(theirs[1]) == set(ours[1])
        assert set(theirs[1]["choices"][0]) == set(ours[1]["choices"][0])
        assert set(theirs[1]["usage"]) == set(ours[1]["usage"])
    else:
        assert set(theirs[1]["error"]) == set(ours[1]["error"])
        assert ours[1]["error"]["message"][:25] == theirs[1]["error"]["message"][:25]


SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def bare_server(
    vllm_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[tuple[str, Path]]:
    """Address and log of a server with the token route and nothing else."""
    for folder in ("servers", "contracts"):
        monkeypatch.syspath_prepend(str(SCRIPTS / folder))
    server: Any = importlib.import_module("server")
    log = tmp_path / "server.log"
    flags = ("--enable-scale-out",)
    with server.running_server(server.VLLM, Path(vllm_model), log, flags=flags) as url:
        yield url, log


async def test_bare_server_is_refused_before_an_episode_and_its_death_is_a_crash(
    bare_server: tuple[str, Path], vllm_model: str
) -> None:
    url, log = bare_server
    engine = create_engine(vllm_model, base_url=url, timeout_s=120)
    missing = {row.flag for row in await engine.flags() if not row.is_set}
    assert missing == {"--logprobs-mode processed_logprobs", "--enable-prompt-tokens-details"}

    codec = load_codec(vllm_model)
    episodes = collected("canary-v0", engine, codec, episodes=2, sampling=Sampling(temperature=0.7))
    with pytest.raises(ConfigurationError, match="--logprobs-mode processed_logprobs"):
        await anext(episodes)

    await engine.aclose()
    engine = create_engine(vllm_model, base_url=url, timeout_s=120, check_logprobs=False)
    running = asyncio.create_task(
        engine.generate(ask([5, 6, 7], 1, max_new_tokens=4000, extras={"ignore_eos": True}))
    )
    await asyncio.sleep(1.0)
    found = re.findall(r"EngineCore pid=(\d+)", log.read_text(errors="replace"))
    os.kill(int(found[-1]), signal.SIGKILL)
    with pytest.raises(EngineFault) as caught:
        await running
    assert (caught.value.kind, caught.value.is_unavailable) == (FaultKind.CRASHED, True), (
        caught.value
    )
    with pytest.raises(EngineFault) as caught:
        await engine.probe()
    assert caught.value.is_unavailable
    await engine.aclose()
