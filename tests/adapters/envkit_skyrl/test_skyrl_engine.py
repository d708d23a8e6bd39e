"""SkyRL's client as an engine, without SkyRL."""

import asyncio
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from fakes.embedded import picture
from fakes.skyrl_client import cache_miss
from yarl import URL

from envkit.errors import ContractError, EngineFault, FaultKind, LedgerFault
from envkit.images import Image
from envkit.rollout.engine import FinishReason, GenerateRequest, LogprobKind, Sampling
from envkit_skyrl import SkyRLEngine
from envkit_skyrl.engine import parse_generation
from envkit_skyrl.sampling import to_params, to_sampling
from envkit_skyrl.setup import keeps_images

TOKEN = 900
GOOD = {
    "response_ids": [[1, 2]],
    "stop_reasons": ["stop"],
    "response_logprobs": [[-0.1, -0.2]],
    "responses": ["x"],
}


@dataclass
class Client:
    """Answers what it is told to."""

    answer: Any = field(default_factory=lambda: dict(GOOD))
    lengths: tuple[int, ...] = (4,)
    token: int = TOKEN
    model_name: str = "base"
    weight_version: int | None = 7
    batches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    renders: int = 0
    finished: list[str] = field(default_factory=list[str])

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        self.batches.append(dict(input_batch))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.sleep(60)
        return self.answer

    async def render_chat_completion(self, request_payload: Any) -> Any:
        self.renders += 1
        number = self.renders
        await asyncio.sleep(0)
        return {
            "token_ids": [1, *[self.token] * self.lengths[0], 2],
            "features": {
                "mm_hashes": {"image": [f"hash{number}"]},
                "mm_placeholders": {
                    "image": [{"offset": 1, "length": length} for length in self.lengths]
                },
                "kwargs_data": {"image": ["data"]},
            },
        }

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)


@dataclass
class CachingClient(Client):
    """Keeps images by hash like vLLM, and fails like it for those that it does not have."""

    kept: set[str] = field(default_factory=set[str])
    fails_next: Exception | None = None

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        self.batches.append(dict(input_batch))
        failure, self.fails_next = self.fails_next, None
        if failure is not None:
            raise failure
        (features,) = input_batch["mm_features"]
        named = features["mm_hashes"]["image"]
        data = features["kwargs_data"]["image"]
        self.kept |= {name for name, one in zip(named, data, strict=True) if one is not None}
        if not set(named) <= self.kept:
            raise cache_miss()
        return self.answer

    def sent(self) -> list[list[bool]]:
        """Return, by request, which images came with tensors."""
        batches, self.batches = self.batches, []
        data = (batch["mm_features"][0]["kwargs_data"]["image"] for batch in batches)
        return [[one is not None for one in images] for images in data]


def ask(
    ids: tuple[int, ...] = (5, 6), images: tuple[Image, ...] = (), **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(
        request_id="r1",
        session_id="s1",
        wire_ids=ids,
        images=images,
        train_length=len(ids),
        sampling=Sampling(**sampling),
    )


async def test_a_turn_is_one_prompt_of_token_ids() -> None:
    client = Client()
    engine = SkyRLEngine(client)
    generation = await engine.generate(ask())
    assert tuple(generation.token_ids) == (1, 2)
    assert tuple(generation.logprobs) == (-0.1, -0.2)
    assert generation.finish_reason is FinishReason.STOP
    assert (generation.prompt_tokens, generation.weight_version) == (2, "7")
    (batch,) = client.batches
    assert batch["prompts"] is None
    assert batch["prompt_token_ids"] == [[5, 6]]
    assert batch["session_ids"] == ["s1"]
    assert "mm_features" not in batch
    assert "cache_salt" not in batch
    assert (engine.name, engine.logprob_kind) == ("skyrl", LogprobKind.SAMPLED)


async def test_images_go_as_features_at_their_expanded_places() -> None:
    client = Client()
    engine = SkyRLEngine(client, image_token_id=TOKEN)
    images = (picture(1), picture(2), picture(1))
    generation = await engine.generate(ask((5, TOKEN, 6, TOKEN, TOKEN), images))
    (batch,) = client.batches
    assert batch["prompt_token_ids"] == [[5, *[TOKEN] * 4, 6, *[TOKEN] * 8]]
    (features,) = batch["mm_features"]
    assert features["mm_placeholders"]["image"] == [
        {"offset": 1, "length": 4},
        {"offset": 6, "length": 4},
        {"offset": 10, "length": 4},
    ]
    hashes = features["mm_hashes"]["image"]
    assert hashes[0] == hashes[2] != hashes[1]
    assert features["kwargs_data"]["image"] == ["data"] * 3
    assert client.renders == 2
    # The loop compares it with the ledger, which reveals a server that resizes differently.
    assert generation.prompt_tokens == 14


SHOWN = tuple(picture(number) for number in range(1, 6))


async def show(engine: SkyRLEngine, count: int, session: str = "s1") -> None:
    """Send a request with the first images, as a later turn of an episode does."""
    request = ask((5, *[TOKEN] * count), SHOWN[:count])
    await engine.generate(replace(request, session_id=session))


async def test_tensors_of_an_image_travel_once_in_a_session() -> None:
    client = CachingClient()
    engine = SkyRLEngine(client, image_token_id=TOKEN, keeps_images=True)
    for count in (1, 3, 3):
        await show(engine, count)
    assert client.sent() == [[True], [False, True, True], [False] * 3]
    await show(engine, 2, "s2")  # perhaps on another server
    assert client.sent() == [[True, True]]
    await engine.end_session("s1")
    await show(engine, 3)
    assert client.sent() == [[True] * 3]


@pytest.mark.parametrize("evicted", [1, 3])
async def test_images_that_the_server_lost_travel_again(evicted: int) -> None:
    client = CachingClient()
    engine = SkyRLEngine(client, image_token_id=TOKEN, keeps_images=True)
    await show(engine, 3)
    client.kept = set(sorted(client.kept)[evicted:])
    client.sent()
    await show(engine, 4)
    assert client.sent() == [[False, False, False, True], [True] * 4]
    await show(engine, 4)
    assert client.sent() == [[False] * 4]


async def test_images_travel_again_after_a_weight_update_or_a_failure() -> None:
    client = CachingClient()
    engine = SkyRLEngine(client, image_token_id=TOKEN, keeps_images=True)
    await show(engine, 2)
    client.weight_version = 8
    await show(engine, 2)
    assert client.sent() == [[True, True], [True, True]]
    client.fails_next = aiohttp.ServerDisconnectedError()
    with pytest.raises(EngineFault):
        await show(engine, 2)
    await show(engine, 2)
    assert client.sent() == [[False, False], [True, True]]


async def test_failure_with_all_tensors_is_not_repeated() -> None:
    client = CachingClient(fails_next=cache_miss())
    engine = SkyRLEngine(client, image_token_id=TOKEN, keeps_images=True)
    with pytest.raises(EngineFault, match="Internal server error"):
        await show(engine, 2)
    assert client.sent() == [[True, True]]


@pytest.mark.parametrize(
    ("changes", "keeps"),
    [
        ({}, True),
        ({"mm_processor_cache_gb": 0}, False),
        ({"mm_processor_cache_gb": None}, False),
        ({"mm_processor_cache_type": "shm"}, False),
        ({"api_server_count": 2}, False),
    ],
)
def test_images_are_kept_only_where_one_process_has_the_cache(
    changes: dict[str, Any], keeps: bool
) -> None:
    given = {"mm_processor_cache_gb": 0.5, **changes}

    def config(**engine: Any) -> Any:
        known = {"engine_init_kwargs": given, "data_parallel_size": 1, "enable_pd": False}
        return SimpleNamespace(inference_engine=SimpleNamespace(**known | engine))

    assert keeps_images(config()) is keeps
    assert not keeps_images(config(data_parallel_size=2))
    assert not keeps_images(config(enable_pd=True))
    assert not keeps_images(config(engine_init_kwargs=None))


@pytest.mark.parametrize("count", [1, 3])
async def test_placeholders_and_images_must_match(count: int) -> None:
    engine = SkyRLEngine(Client(), image_token_id=TOKEN)
    with pytest.raises(LedgerFault, match=f"got {count} placeholders and 2 images"):
        await engine.generate(ask((5, *[TOKEN] * count), (picture(1), picture(2))))


async def test_images_for_a_text_model_are_refused() -> None:
    with pytest.raises(LedgerFault, match="without an image placeholder"):
        await SkyRLEngine(Client()).generate(ask((TOKEN,), (picture(1),)))


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (Client(lengths=()), "must render one image|list index"),
        (Client(token=1), "writes an image"),
    ],
)
async def test_a_render_of_another_form_is_named(client: Client, message: str) -> None:
    client.lengths = client.lengths or (2, 2)
    engine = SkyRLEngine(client, image_token_id=TOKEN)
    with pytest.raises(EngineFault, match=message):
        await engine.generate(ask((TOKEN,), (picture(1),)))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aiohttp.ServerDisconnectedError(), FaultKind.TRANSIENT),
        (ConnectionRefusedError("no"), FaultKind.TRANSIENT),
        (ValueError("n > 1 is not supported"), FaultKind.PERMANENT),
        (RuntimeError("POST failed"), FaultKind.PERMANENT),
        (json.JSONDecodeError("Expecting value", "", 0), FaultKind.TRANSIENT),
        (TimeoutError(), FaultKind.TIMEOUT),
    ],
)
async def test_errors_are_wrapped_once_with_their_kind(error: Exception, kind: FaultKind) -> None:
    with pytest.raises(EngineFault) as caught:
        await SkyRLEngine(Client(answer=error)).generate(ask())
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, FaultKind.TRANSIENT),
        (429, FaultKind.TRANSIENT),
        (400, FaultKind.PERMANENT),
        (200, FaultKind.TRANSIENT),  # aiohttp's error for a body that is not JSON
    ],
)
async def test_http_errors_have_the_kind_of_their_status(status: int, kind: FaultKind) -> None:
    info: Any = aiohttp.RequestInfo(URL("http://x"), "POST", {}, URL("http://x"))  # pyright: ignore[reportArgumentType]
    error = aiohttp.ClientResponseError(info, (), status=status, message="prompt is too long")
    with pytest.raises(EngineFault, match="prompt is too long") as caught:
        await SkyRLEngine(Client(answer=error)).generate(ask())
    assert caught.value.kind is kind


async def test_abort_ends_a_request_without_tokens() -> None:
    engine = SkyRLEngine(Client(answer=None))
    task = asyncio.create_task(engine.generate(ask()))
    await asyncio.sleep(0.01)
    with pytest.raises(ContractError, match="already running"):
        await engine.generate(ask())
    await engine.abort("r1")
    await engine.abort("unknown")
    generation = await task
    assert generation.finish_reason is FinishReason.ABORT
    assert (generation.token_ids, generation.prompt_tokens) == ((), None)


async def test_a_cancelled_episode_stays_cancelled() -> None:
    engine = SkyRLEngine(Client(answer=None))
    task = asyncio.create_task(engine.generate(ask()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_request_that_takes_too_long_is_a_timeout() -> None:
    engine = SkyRLEngine(Client(answer=None), timeout_s=0.01)
    with pytest.raises(EngineFault, match=r"no answer in 0\.01 s") as caught:
        await engine.generate(ask())
    assert caught.value.kind is FaultKind.TIMEOUT


async def test_the_cache_salt_is_that_of_the_episodes_first_weights() -> None:
    client = Client()
    engine = SkyRLEngine(client, cache_salt=lambda version: f"v{version}")
    await engine.generate(ask())
    client.weight_version = 8
    await engine.generate(ask())
    await engine.end_session("s1")
    await engine.generate(ask())
    assert [batch["cache_salt"] for batch in client.batches] == ["v7", "v7", "v8"]
    assert client.finished == ["s1"]


async def test_a_session_end_that_gets_lost_costs_nothing() -> None:
    class Deaf(Client):
        async def finish_session(self, session_id: str) -> None:
            raise OSError("gone")

    await SkyRLEngine(Deaf()).end_session("s1")


def test_an_abort_by_the_server_keeps_its_tokens() -> None:
    answer = {**GOOD, "stop_reasons": ["abort"]}
    generation = parse_generation(answer, prompt_tokens=2, weight_version=None)
    assert generation.finish_reason is FinishReason.ABORT
    assert tuple(generation.token_ids) == (1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop_reasons": ["complete"]}, "stop reason of"),
        ({"stop_reasons": []}, "must return one response"),
        ({"response_ids": [[1], [2]]}, "must return one response"),
        ({"response_logprobs": None}, "no log-probabilities"),
        ({"response_logprobs": [None]}, "no log-probabilities"),
    ],
)
def test_an_answer_of_another_form_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineFault, match=message):
        parse_generation({**GOOD, **change}, prompt_tokens=2, weight_version=None)


def test_sampling_parameters_survive_the_way_there_and_back() -> None:
    given = {
        "max_tokens": 32,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "min_tokens": 1,
        "skip_special_tokens": True,
        "include_stop_str_in_output": True,
        "logprobs": None,
        "stop": None,
    }
    sent = to_params(to_sampling(given))
    assert sent == {**given, "logprobs": 1, "stop_token_ids": []}
    stopping = to_params(to_sampling({**given, "stop": ["<|im_start|>"]}))
    assert (stopping["stop"], stopping["skip_special_tokens"]) == (["<|im_start|>"], False)
    assert to_sampling({"seed": 3, "top_k": 5}).top_k == 5
    assert to_params(Sampling(seed=3, banned_ids=(9,)))["logit_bias"] == {"9": -100.0}
    assert to_params(Sampling(seed=3))["seed"] == 3


def test_more_than_one_sample_a_request_is_refused() -> None:
    with pytest.raises(ValueError, match="n_samples_per_prompt"):
        to_sampling({"n": 2})
