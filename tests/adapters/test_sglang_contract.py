"""The SGLang engine against a real server: what the fake server stands on.

Run by `make contract-sglang`, which starts the servers. The model is tiny and random, so replies
mean nothing; ids, counts, log-probabilities and errors are real.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from fakes.sglang_server import FakeSGLang
from PIL import Image as PilImage

from envkit.errors import EngineFault, FaultKind, LedgerFault
from envkit.images import Image
from envkit.messages import message
from envkit.rollout.engine import (
    FinishReason,
    GenerateRequest,
    Generation,
    LogprobKind,
    Sampling,
)
from envkit.tokens import ChatCodec
from envkit_sglang import SGLangEngine, create_engine
from envkit_transformers.loading import load_processor

pytestmark = pytest.mark.sglang

# Sampling decodes with a cache and leaves banned ids out; scoring runs over the whole text at once.
# In float32 on this model the two differ by up to 5.2e-5, nearly all of it from the bans.
LOGPROB_TOLERANCE = 2e-4
PICTURES = (
    Image.from_pil(PilImage.new("RGB", (320, 240), "red")),
    Image.from_pil(PilImage.effect_noise((200, 333), 80)),
    Image.from_pil(PilImage.new("RGB", (64, 64), "blue")),
)


class Conversation:
    """A ledger in two lists, grown turn by turn."""

    def __init__(self, codec: ChatCodec, engine: SGLangEngine) -> None:
        self.codec, self.engine = codec, engine
        self.wire: list[int] = []
        self.train: list[int] = []
        self.images: list[Image] = []
        self.replies: list[tuple[int, Generation]] = []

    async def turn(self, text: str, images: Sequence[Image] = (), **sampling: Any) -> Generation:
        said = [message("user", text, images)]
        if self.replies:
            last = self.replies[-1][1].token_ids
            encoded = self.codec.encode_observation(said, sampled_ids=last)
        else:
            encoded = self.codec.encode_prompt(said)
        self.wire.extend(encoded.wire_ids)
        self.train.extend(encoded.train_ids)
        self.images.extend(images)
        settings: dict[str, Any] = {"max_new_tokens": 12, **sampling}
        generation = await self.engine.generate(
            GenerateRequest(
                request_id=f"{len(self.replies):032x}",
                session_id="conversation",
                wire_ids=self.wire,
                images=self.images,
                train_length=len(self.train),
                sampling=Sampling(
                    banned_ids=self.codec.media_ids, stop_ids=self.codec.stop_ids, **settings
                ),
            )
        )
        self.replies.append((len(self.train), generation))
        self.wire.extend(generation.token_ids)
        self.train.extend(generation.token_ids)
        return generation


@pytest.fixture(scope="module")
def codecs() -> dict[str, ChatCodec]:
    return {}


@pytest.fixture
def codec(codecs: dict[str, ChatCodec], sglang_model: str) -> ChatCodec:
    if sglang_model not in codecs:
        codecs[sglang_model] = ChatCodec(load_processor(sglang_model))
    return codecs[sglang_model]


@pytest_asyncio.fixture
async def engine(sglang_url: str, sglang_model: str) -> AsyncGenerator[SGLangEngine]:
    made = create_engine(sglang_model, base_url=sglang_url, timeout_s=120, compare_prompts=1000)
    yield made
    await made.aclose()


def ask(ids: Sequence[int], name: int = 0, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"{name:032x}",
        session_id="session",
        wire_ids=ids,
        images=(),
        train_length=len(ids),
        sampling=Sampling(**sampling),
    )


async def until_idle(url: str, *, waiting: int | None = None) -> None:
    """Wait until nothing runs, or until at least so many requests wait."""
    async with asyncio.timeout(60), aiohttp.ClientSession(url) as session:
        while True:
            async with session.get("/v1/loads?include=core") as response:
                load = (await response.json())["loads"][0]
            if waiting is None and not load["num_running_reqs"] + load["num_waiting_reqs"]:
                return
            if waiting is not None and load["num_waiting_reqs"] >= waiting:
                return
            await asyncio.sleep(0.1)


async def test_server_tells_its_health_and_its_limits(engine: SGLangEngine) -> None:
    health = await engine.health()
    assert health.healthy, health.detail
    assert health.info is not None
    assert health.info.version == "0.5.23"
    assert health.info.context_length == 8192
    assert health.info.max_prompt_length is not None


async def test_every_turn_with_images_has_the_expanded_prompt_length(
    codec: ChatCodec, engine: SGLangEngine
) -> None:
    talk = Conversation(codec, engine)
    cached: list[int] = []
    for turn, picture in enumerate(PICTURES):
        generation = await talk.turn(f"Picture {turn}, what is it?", [picture])
        assert generation.prompt_tokens == talk.replies[-1][0]
        cached.append(generation.cached_tokens)
    await talk.turn("And all of them?")
    assert cached[1] >= talk.replies[0][0]
    assert cached[2] >= talk.replies[1][0]
    assert len(talk.train) - len(talk.wire) > 100


async def test_scoring_the_ledger_gives_the_sampled_logprobs(
    codec: ChatCodec, engine: SGLangEngine
) -> None:
    talk = Conversation(codec, engine)
    for turn, picture in enumerate(PICTURES[:2]):
        await talk.turn(f"Picture {turn}?", [picture])
    await talk.turn("No picture now.")
    scored = await engine.score(talk.wire, talk.images)
    assert len(scored) == len(talk.train)
    for start, generation in talk.replies:
        again = scored[start : start + len(generation.logprobs)]
        assert again == pytest.approx(generation.logprobs, abs=LOGPROB_TOLERANCE)


async def test_pictures_change_what_the_model_samples(
    codec: ChatCodec, engine: SGLangEngine
) -> None:
    values: list[float] = []
    for picture in PICTURES:
        encoded = codec.encode_prompt([message("user", "What?", [picture])])
        scored = await engine.score((*encoded.wire_ids, 100), [picture])
        assert len(scored) == len(encoded.train_ids) + 1
        values.append(scored[-1] or 0.0)
    assert len({round(value, 3) for value in values}) == 3


async def test_ids_that_retokenising_would_change_are_kept(
    codec: ChatCodec, engine: SGLangEngine
) -> None:
    encoded = codec.encode_prompt([message("user", "", [PICTURES[0]])])
    letters = [token for letter in " colour hello" for token in codec.encode_reply(letter)]
    ids = (*encoded.wire_ids, *letters)
    assert list(codec.encode_reply(" colour hello")) != letters
    request = GenerateRequest(
        request_id="f" * 32,
        session_id="session",
        wire_ids=ids,
        images=[PICTURES[0]],
        train_length=len(encoded.train_ids) + len(letters),
        sampling=Sampling(max_new_tokens=2),
    )
    assert (await engine.generate(request)).prompt_tokens == request.train_length


async def test_stop_token_is_sampled_and_reported(engine: SGLangEngine, codec: ChatCodec) -> None:
    bias = {"logit_bias": {str(codec.stop_ids[0]): 1000.0}}
    generation = await engine.generate(ask([5, 6, 7], stop_ids=codec.stop_ids, extras=bias))
    assert generation.token_ids == (codec.stop_ids[0],)
    assert generation.finish_reason is FinishReason.STOP


async def test_banned_id_is_never_sampled(engine: SGLangEngine) -> None:
    favourite = {"logit_bias": {"700": 1000.0}}
    free = await engine.generate(ask([5, 6, 7], max_new_tokens=3, extras=favourite))
    banned = await engine.generate(
        ask([5, 6, 7], max_new_tokens=3, extras=favourite, banned_ids=(700,))
    )
    assert free.token_ids == (700, 700, 700)
    assert 700 not in banned.token_ids


async def test_stop_string_keeps_its_tokens(engine: SGLangEngine, codec: ChatCodec) -> None:
    word = codec.encode_reply(" end")[0]
    generation = await engine.generate(
        ask([5, 6], max_new_tokens=9, stop=("end",), extras={"logit_bias": {str(word): 1000.0}})
    )
    assert generation.token_ids == (word,)


async def test_logprobs_are_of_the_sampled_distribution(engine: SGLangEngine) -> None:
    """A temperature other than 1 makes the engine ask the server, which must say SAMPLED."""
    hot = await engine.generate(ask([5, 6, 7], max_new_tokens=8, temperature=3.0))
    scored = await engine.score((5, 6, 7, *hot.token_ids))
    differences = [
        abs(ours - (theirs or 0.0)) for ours, theirs in zip(hot.logprobs, scored[3:], strict=True)
    ]
    assert engine.logprob_kind is LogprobKind.SAMPLED
    assert max(differences) > 0.05


async def test_budget_is_clamped_to_the_servers_context(engine: SGLangEngine) -> None:
    generation = await engine.generate(
        ask([5] * 8170, max_new_tokens=10**6, extras={"ignore_eos": True})
    )
    assert generation.finish_reason is FinishReason.LENGTH
    assert 1 <= len(generation.token_ids) <= 22
    with pytest.raises(EngineFault, match="max_context_tokens=8192"):
        await engine.generate(ask([5] * 8192))


async def test_refused_request_is_permanent_and_says_why(engine: SGLangEngine) -> None:
    with pytest.raises(EngineFault, match="top_p") as caught:
        await engine.generate(ask([5, 6], top_p=7.0))
    assert caught.value.kind is FaultKind.PERMANENT


async def test_aborted_request_returns_its_tokens(engine: SGLangEngine, sglang_url: str) -> None:
    endless = {"ignore_eos": True}
    running = asyncio.create_task(
        engine.generate(ask([5, 6, 7], max_new_tokens=6000, extras=endless))
    )
    await asyncio.sleep(1.0)
    await engine.abort(f"{0:032x}")
    generation = await asyncio.wait_for(running, 30)
    assert generation.finish_reason is FinishReason.ABORT
    assert 0 < len(generation.token_ids) < 6000
    assert generation.prompt_tokens == 3
    await until_idle(sglang_url)


async def test_aborted_queue_has_requests_without_prompt_tokens(
    engine: SGLangEngine, sglang_url: str
) -> None:
    endless = {"ignore_eos": True}
    tasks = [
        asyncio.create_task(
            engine.generate(ask([5, 6, number], number, max_new_tokens=1500, extras=endless))
        )
        for number in range(20)  # the server runs 16 at once
    ]
    await until_idle(sglang_url, waiting=1)
    await asyncio.gather(*(engine.abort(f"{number:032x}") for number in range(20)))
    generations = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert {generation.finish_reason for generation in generations} == {FinishReason.ABORT}
    queued = [generation for generation in generations if generation.prompt_tokens is None]
    assert queued
    assert all(not generation.token_ids for generation in queued)
    await until_idle(sglang_url)


async def test_cancelled_request_is_freed(engine: SGLangEngine, sglang_url: str) -> None:
    running = asyncio.create_task(
        engine.generate(ask([5, 6, 7], max_new_tokens=6000, extras={"ignore_eos": True}))
    )
    await asyncio.sleep(0.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_idle(sglang_url)


async def test_mismatched_images_are_refused_before_sending(
    engine: SGLangEngine, codec: ChatCodec
) -> None:
    encoded = codec.encode_prompt([message("user", "What?", [PICTURES[0]])])
    for images in ((PICTURES[0], PICTURES[1]), ()):
        request = GenerateRequest(
            request_id="f" * 32,
            session_id="session",
            wire_ids=encoded.wire_ids,
            images=images,
            train_length=len(encoded.train_ids),
            sampling=Sampling(),
        )
        with pytest.raises(LedgerFault, match="one placeholder"):
            await engine.generate(request)


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
    """The last test of this file: a Qwen2.5-VL server keeps the request for ever."""
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
