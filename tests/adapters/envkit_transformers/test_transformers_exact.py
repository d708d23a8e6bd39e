"""The embedded engine's log-probabilities against a plain forward over the whole trajectory."""

import asyncio
import threading

import pytest
import torch
from fakes.embedded import (
    forced_logprobs,
    ids_of,
    largest_error,
    make_engine,
    make_request,
    picture,
)

from envkit.images import Image
from envkit_transformers.engine import TransformersEngine

KINDS = ["llama", "qwen3", "qwen2_5_vl", "qwen3_vl"]
VISION_KINDS = ["qwen2_5_vl", "qwen3_vl"]
TOLERANCE = 1e-4
PAD = "<|vision_start|><|image_pad|><|vision_end|>"


def user_turn(text: str, images: int = 0) -> str:
    return f"<|im_start|>user\n{PAD * images}{text}<|im_end|>\n<|im_start|>assistant\n"


async def play_session(kind: str, engine: TransformersEngine, number: int, turns: int) -> float:
    wire: list[int] = []
    images: list[Image] = []
    worst = 0.0
    for turn in range(turns):
        new = (turn + number) % 3 if "vl" in kind else 0
        images += [
            picture(10 * number + turn + i, (84 + 28 * i, 56 + 28 * turn)) for i in range(new)
        ]
        wire += ids_of(kind, user_turn(f"Session {number}, turn {turn}: what now?", new))
        request = make_request(
            kind, f"s{number}", list(wire), list(images), max_new_tokens=5 + number, seed=number
        )
        generation = await engine.generate(request)
        assert generation.prompt_tokens == request.train_length
        worst = max(worst, largest_error(kind, request, generation))
        if turn:
            assert generation.cached_tokens > 0
        wire += [*generation.token_ids, *ids_of(kind, "<|im_end|>\n")]
    return worst


@pytest.mark.parametrize(
    "kind",
    ["qwen3_vl", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("qwen3", *KINDS[::2]))],
)
async def test_logprobs_of_concurrent_sessions_match_teacher_forcing(kind: str) -> None:
    engine = make_engine(kind, max_batch_tokens=64)
    worst = await asyncio.gather(*(play_session(kind, engine, i, 4) for i in range(5)))
    await engine.aclose()
    assert max(worst) < TOLERANCE


@pytest.mark.parametrize("kind", ["llama", "qwen2_5_vl"])
@pytest.mark.parametrize("temperature", [0.3, 1.7, 0.0])
async def test_logprobs_are_those_after_temperature(kind: str, temperature: float) -> None:
    engine = make_engine(kind)
    request = make_request(
        kind, "s", ids_of(kind, user_turn("Say something.")), temperature=temperature
    )
    generation = await engine.generate(request)
    await engine.aclose()
    assert largest_error(kind, request, generation) < TOLERANCE


async def test_logprobs_ignore_the_top_p_and_top_k_cut() -> None:
    engine = make_engine("llama")
    ids = ids_of("llama", user_turn("Say something."))
    request = make_request("llama", "s", ids, top_p=0.5, top_k=50)
    generation = await engine.generate(request)
    await engine.aclose()
    assert largest_error("llama", request, generation) < TOLERANCE


@pytest.mark.parametrize("kind", VISION_KINDS)
async def test_image_reaches_the_model(kind: str) -> None:
    engine = make_engine(kind)
    ids = ids_of(kind, user_turn("Which one?", images=1))
    requests = [make_request(kind, f"s{i}", ids, [picture(i)], seed=3) for i in range(2)]
    first, second = await asyncio.gather(*(engine.generate(request) for request in requests))
    await engine.aclose()
    assert list(first.logprobs) != list(second.logprobs)


@pytest.mark.parametrize("kind", VISION_KINDS)
async def test_engine_processes_images_that_come_without_features(kind: str) -> None:
    engine = make_engine(kind)
    ids = ids_of(kind, user_turn("And this?", images=2))
    images = [picture(1), picture(2, (140, 84))]
    given = make_request(kind, "given", ids, images, seed=1)
    bare = make_request(kind, "bare", ids, images, seed=1, with_features=False)
    results = [await engine.generate(request) for request in (given, bare)]
    await engine.aclose()
    assert results[0].token_ids == results[1].token_ids
    assert results[0].prompt_tokens == results[1].prompt_tokens == given.train_length
    assert largest_error(kind, bare, results[1]) < TOLERANCE


@pytest.mark.parametrize("kind", VISION_KINDS)
async def test_image_larger_than_a_step_is_not_split(kind: str) -> None:
    engine = make_engine(kind, max_batch_tokens=8)
    ids = ids_of(kind, user_turn("Big.", images=2))
    request = make_request(kind, "s", ids, [picture(1, (224, 224)), picture(2, (168, 112))])
    generation = await engine.generate(request)
    await engine.aclose()
    assert largest_error(kind, request, generation) < TOLERANCE


async def test_own_model_answers_plain_forwards_while_the_engine_runs() -> None:
    kind = "qwen2_5_vl"
    engine = make_engine(kind)
    ids = ids_of(kind, user_turn("Look.", images=1))
    request = make_request(kind, "s", ids, [picture(5)], max_new_tokens=40)
    running = asyncio.create_task(engine.generate(request))
    scored = ids_of(kind, "some words to score")
    errors: list[float] = []

    def score() -> None:
        for _ in range(5):
            own = forced_logprobs(kind, request, scored, model=engine.model)
            errors.append(float((own - forced_logprobs(kind, request, scored)).abs().max()))

    thread = threading.Thread(target=score)
    thread.start()
    generation = await running
    await asyncio.to_thread(thread.join)
    await engine.aclose()
    assert largest_error(kind, request, generation) < TOLERANCE
    assert max(errors) < TOLERANCE


async def test_model_gets_its_attention_back_when_the_engine_closes() -> None:
    engine = make_engine("llama")
    config = engine.model.config
    assert config._attn_implementation != "sdpa"
    await engine.aclose()
    assert config._attn_implementation == "sdpa"
    with torch.inference_mode():
        engine.model(input_ids=torch.tensor([[5, 6, 7]]))


async def test_two_engines_may_run_one_model() -> None:
    first = make_engine("llama")
    second = TransformersEngine(first.model)
    ids = ids_of("llama", user_turn("Both."))
    await first.generate(make_request("llama", "s", ids))
    await first.aclose()
    request = make_request("llama", "s", ids)
    generation = await second.generate(request)
    assert largest_error("llama", request, generation) < TOLERANCE
    await second.aclose()
    assert first.model.config._attn_implementation == "sdpa"
