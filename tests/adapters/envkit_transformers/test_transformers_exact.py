"""The embedded engine's log-probabilities against a plain forward, also over trees."""

import asyncio
import threading
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import pytest
import torch
from fakes.branching import Screens
from fakes.embedded import (
    folder_of,
    forced_logprobs,
    ids_of,
    largest_error,
    make_engine,
    make_request,
    picture,
)

from envkit import rollout
from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Sampling
from envkit.tokens import ChatCodec, load_codec
from envkit.trajectory import SegmentKind, Trajectory
from envkit_transformers import BuiltinModel, builtin_model_dir, create_engine
from envkit_transformers.engine import TransformersEngine
from envkit_transformers.text_model import TEXT_MODEL_NAME

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


def ask(engine: TransformersEngine, number: int, text: str, *, image: int | None) -> Any:
    content = "" if image is None else PAD
    prompt = f"<|im_start|>user\n{content}{text}<|im_end|>\n<|im_start|>assistant\n"
    tokenizer: Any = engine.tokenizer
    request = GenerateRequest(
        request_id=f"r{number}",
        session_id=f"s{number}",
        wire_ids=tokenizer.encode(prompt),
        images=() if image is None else (picture(image, (400, 300)),),
        train_length=0,
        sampling=Sampling(temperature=0.0, max_new_tokens=24),
    )
    return engine.generate(request)


@pytest.mark.slow
async def test_text_model_answers_text_and_sees_a_difference_between_images() -> None:
    engine = create_engine("builtin-text", threads=1, dtype="float32")
    capital, first, second = await asyncio.gather(
        ask(engine, 0, "What is the capital of France?", image=None),
        ask(engine, 1, "What is 6 times 4?", image=1),
        ask(engine, 2, "What is 6 times 4?", image=2),
    )
    await engine.aclose()
    tokenizer: Any = engine.tokenizer
    assert tokenizer.decode(capital.token_ids) == "The capital of France is Paris.<|im_end|>"
    assert first.prompt_tokens == second.prompt_tokens > 100
    assert abs(first.logprobs[0] - second.logprobs[0]) > 1e-4


@pytest.mark.slow
def test_broken_text_model_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVKIT_CACHE", str(tmp_path))
    lines: list[str] = []
    folder = builtin_model_dir(BuiltinModel.TEXT, lines.append)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    assert folder == tmp_path / TEXT_MODEL_NAME
    assert len(lines) == 5
    lines.clear()
    assert builtin_model_dir(BuiltinModel.TEXT, lines.append) == folder
    assert not lines
    weights.write_bytes(content[: len(content) // 2])
    assert builtin_model_dir(BuiltinModel.TEXT, lines.append) == folder
    assert len(lines) == 5
    assert weights.read_bytes() == content


class Kept:
    """Keeps requests and answers of the engine that it hands them to."""

    seen: ClassVar[list[tuple[GenerateRequest, rollout.Generation]]] = []

    def __init__(self, engine: TransformersEngine) -> None:
        generate = engine.generate

        async def keep(request: GenerateRequest) -> rollout.Generation:
            answer = await generate(request)
            self.seen.append((request, answer))
            return answer

        self.seen.clear()
        engine.generate = keep


def player_of(kind: str, history: object) -> tuple[rollout.Player, TransformersEngine, ChatCodec]:
    engine, codec = make_engine(kind), load_codec(folder_of(kind))
    config = rollout.RolloutConfig.from_mapping(
        {"history": history, "sampling": {"max_new_tokens": 8, "seed": 5}}
    )
    return rollout.Player(engine, codec, config), engine, codec


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.slow
async def test_fork_takes_its_parents_cache_and_samples_from_the_same_numbers(
    images: bool,
) -> None:
    kind = "qwen2_5_vl" if images else "llama"
    player, engine, _ = player_of(kind, "keep")
    kept = Kept(engine)
    leaves = await rollout.play_tree(
        lambda: Screens(max_turns=4, images=images),
        player,
        branching=rollout.AtTurns(turns=(1, 3)),
        spec=rollout.EpisodeSpec(seed=7),
    )
    assert [leaf.fault for leaf in leaves] == [None] * 4
    for leaf in leaves[1:]:
        first = leaf.own_turns[0]
        assert first.cached_tokens >= first.prompt_tokens - 1 > 20
    async with asyncio.timeout(120):  # its thread frees the sessions
        while engine.stats.sessions:
            await asyncio.sleep(0.001)
    assert engine.stats.held_tokens == 0
    for request, answer in kept.seen:
        if answer.token_ids:
            assert largest_error(kind, request, answer) < TOLERANCE
    await player.aclose()
    await engine.aclose()


@pytest.mark.slow
async def test_by_entropy_forks_the_least_certain_turn_of_a_model() -> None:
    player, engine, _ = player_of("llama", "keep")
    trunk, fork = await rollout.play_tree(
        lambda: Screens(max_turns=4),
        player,
        branching=rollout.ByEntropy(forks=1),
        spec=rollout.EpisodeSpec(seed=7),
    )
    await player.aclose()
    await engine.aclose()
    assert fork.origin is not None
    logprobs = {
        one.turn: fmean(one.logprobs) for one in trunk.segments if one.kind is SegmentKind.MODEL
    }
    assert fork.origin.turns == min(logprobs, key=lambda turn: logprobs[turn])


async def sampled(kind: str, history: object) -> tuple[Trajectory, Kept]:
    player, engine, _ = player_of(kind, history)
    kept = Kept(engine)
    (trajectory,) = await player.play(Screens(images=True), rollout.EpisodeSpec(seed=7))
    await player.aclose()
    await engine.aclose()
    return trajectory, kept


async def test_rewritten_history_takes_the_shared_beginning_from_the_cache() -> None:
    history = {"keep_last_images": {"keep": 1, "drop_at": 2}}
    trajectory, kept = await sampled("qwen2_5_vl", history)
    assert trajectory.fault is None, trajectory.fault
    assert len(trajectory.branches) == 2
    for branch in trajectory.branches:
        turn = trajectory.turns[trajectory.segments[branch.segment].turn]
        assert 0 < turn.cached_tokens < turn.prompt_tokens
    for request, answer in kept.seen:
        if answer.token_ids:
            assert largest_error("qwen2_5_vl", request, answer) < TOLERANCE
