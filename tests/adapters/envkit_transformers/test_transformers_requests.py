"""What one request to the embedded engine may ask for, and what comes back."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from fakes.embedded import ids_of, largest_error, make_engine, make_request, reference_model

from envkit.errors import EngineFault
from envkit.rollout.engine import FinishReason, LogprobKind
from envkit_transformers.engine import TransformersEngine

KIND = "llama"
TOLERANCE = 1e-4


def prompt(text: str = "Go on.") -> list[int]:
    return ids_of(KIND, f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


async def wait_until_sampled(engine: TransformersEngine, count: int) -> None:
    while engine.stats.sampled_tokens < count:
        await asyncio.sleep(0.001)


async def test_length_ends_a_request_at_its_budget() -> None:
    engine = make_engine(KIND)
    generation = await engine.generate(make_request(KIND, "s", prompt(), max_new_tokens=5))
    await engine.aclose()
    assert generation.finish_reason is FinishReason.LENGTH
    assert len(generation.token_ids) == len(generation.logprobs) == 5
    assert generation.prompt_tokens == len(prompt())
    assert generation.weight_version == "0"


async def test_stream_reports_each_token_before_the_last_one_on_the_callers_loop() -> None:
    engine = make_engine(KIND)
    whole = await engine.generate(make_request(KIND, "a", prompt(), max_new_tokens=6, seed=1))
    thread, reports = threading.get_ident(), list[tuple[int, ...]]()

    def report(ids: Sequence[int]) -> None:
        assert threading.get_ident() == thread
        reports.append(tuple(ids))

    request = make_request(KIND, "b", prompt(), max_new_tokens=6, seed=1)
    streamed = await engine.stream(request, report)
    await engine.aclose()
    assert reports == [(token,) for token in whole.token_ids[:-1]]
    assert list(streamed.token_ids) == list(whole.token_ids)
    assert list(streamed.logprobs) == pytest.approx(list(whole.logprobs))


async def test_stream_reports_a_token_before_the_next_is_sampled() -> None:
    engine = make_engine(KIND)
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def report(ids: Sequence[int]) -> None:
        if not first.done():
            first.set_result(ids[0])

    request = make_request(KIND, "s", prompt(), max_new_tokens=4096)
    sampling = asyncio.create_task(engine.stream(request, report))
    token = await first
    assert not sampling.done()
    await engine.abort(request.request_id)
    stopped = await sampling
    await engine.aclose()
    assert stopped.token_ids[0] == token
    assert stopped.finish_reason is FinishReason.ABORT


async def test_stop_token_is_the_last_one_and_named() -> None:
    engine = make_engine(KIND)
    free = await engine.generate(make_request(KIND, "a", prompt(), seed=1))
    stop = free.token_ids[3]
    first = list(free.token_ids).index(stop)
    stopped = await engine.generate(make_request(KIND, "b", prompt(), seed=1, stop_ids=(stop,)))
    await engine.aclose()
    assert stopped.finish_reason is FinishReason.STOP
    assert list(stopped.token_ids) == list(free.token_ids)[: first + 1]


async def test_stop_tokens_default_to_the_models_own() -> None:
    engine = make_engine(KIND)
    eos = reference_model(KIND)[1].tokenizer.eos_token_id
    everything_else = tuple(token for token in range(49216) if token != eos)
    request = make_request(KIND, "s", prompt(), banned_ids=everything_else)
    generation = await engine.generate(request)
    await engine.aclose()
    assert list(generation.token_ids) == [eos]
    assert generation.logprobs[0] == pytest.approx(0.0, abs=1e-6)


async def test_stop_string_across_tokens_ends_the_request_with_all_its_tokens() -> None:
    engine = make_engine(KIND)
    tokenizer = reference_model(KIND)[1].tokenizer
    free = await engine.generate(make_request(KIND, "a", prompt(), seed=4, max_new_tokens=12))
    texts = [tokenizer.decode([token]) for token in free.token_ids]
    stop = texts[5][-2:] + texts[6][:2]
    request = make_request(KIND, "b", prompt(), seed=4, max_new_tokens=12, stop=("never?", stop))
    stopped = await engine.generate(request)
    await engine.aclose()
    assert stopped.finish_reason is FinishReason.STOP
    assert list(stopped.token_ids) == list(free.token_ids)[:7]


async def test_stop_string_without_a_tokenizer_is_refused() -> None:
    model = reference_model(KIND)[0]
    engine = TransformersEngine(model)
    with pytest.raises(EngineFault, match="need a tokenizer"):
        await engine.generate(make_request(KIND, "s", prompt(), stop=("x",)))
    await engine.aclose()


async def test_seeded_request_samples_the_same_alone_and_in_a_batch() -> None:
    engine = make_engine(KIND)
    alone = await engine.generate(make_request(KIND, "alone", prompt(), seed=9))
    others = [make_request(KIND, f"o{i}", prompt(f"Other {i}"), seed=i) for i in range(4)]
    again, *_ = await asyncio.gather(
        *(engine.generate(r) for r in [make_request(KIND, "again", prompt(), seed=9), *others])
    )
    other_seed = await engine.generate(make_request(KIND, "other", prompt(), seed=10))
    await engine.aclose()
    assert again.token_ids == alone.token_ids
    assert other_seed.token_ids != alone.token_ids


async def test_engine_seed_repeats_unseeded_requests() -> None:
    results: list[list[list[int]]] = []
    for seed in (5, 5, 6):
        engine = make_engine(KIND, seed=seed)
        generations = [
            await engine.generate(make_request(KIND, f"s{i}", prompt(), max_new_tokens=4))
            for i in range(2)
        ]
        results.append([list(generation.token_ids) for generation in generations])
        await engine.aclose()
    assert results[0] == results[1] != results[2]
    assert results[0][0] != results[0][1]


async def test_banned_ids_are_never_sampled_and_renormalised() -> None:
    engine = make_engine(KIND)
    greedy = make_request(KIND, "a", prompt(), temperature=0.0, max_new_tokens=1)
    best = (await engine.generate(greedy)).token_ids[0]
    banned = make_request(
        KIND, "b", prompt(), temperature=0.0, max_new_tokens=1, banned_ids=(best,)
    )
    generation = await engine.generate(banned)
    await engine.aclose()
    assert generation.token_ids[0] != best
    assert largest_error(KIND, banned, generation) < TOLERANCE


async def test_media_placeholders_are_banned_without_being_asked() -> None:
    engine = make_engine("qwen2_5_vl")
    config = engine.model.config
    allowed = {config.image_token_id, config.video_token_id, 777}
    banned = tuple(token for token in range(49216) if token not in allowed)
    request = make_request("qwen2_5_vl", "s", prompt(), banned_ids=banned, max_new_tokens=6)
    generation = await engine.generate(request)
    await engine.aclose()
    assert list(generation.token_ids) == [777] * 6


async def test_abort_returns_the_tokens_so_far_and_keeps_the_cache() -> None:
    engine = make_engine(KIND)
    request = make_request(KIND, "s", prompt(), max_new_tokens=4000, stop_ids=(-1,))
    running = asyncio.create_task(engine.generate(request))
    await wait_until_sampled(engine, 5)
    await engine.abort(request.request_id)
    partial = await running
    assert partial.finish_reason is FinishReason.ABORT
    assert 5 <= len(partial.token_ids) == len(partial.logprobs) < 4000
    assert largest_error(KIND, request, partial) < TOLERANCE
    resumed = make_request(KIND, "s", [*prompt(), *partial.token_ids])
    generation = await engine.generate(resumed)
    await engine.abort("nobody")
    await engine.aclose()
    assert generation.cached_tokens == len(resumed.wire_ids) - 1
    assert largest_error(KIND, resumed, generation) < TOLERANCE


async def test_abort_of_a_waiting_request_returns_nothing_sampled() -> None:
    engine = make_engine(KIND, kv_budget_tokens=600)
    first = make_request(KIND, "a", prompt(), max_new_tokens=500, stop_ids=(-1,))
    second = make_request(KIND, "b", prompt(), max_new_tokens=500)
    tasks = [asyncio.create_task(engine.generate(request)) for request in (first, second)]
    await wait_until_sampled(engine, 2)
    await engine.abort(second.request_id)
    waiting = await tasks[1]
    await engine.abort(first.request_id)
    await tasks[0]
    await engine.aclose()
    assert waiting.finish_reason is FinishReason.ABORT
    assert waiting.prompt_tokens is None
    assert not waiting.token_ids


async def test_cancelled_request_is_freed() -> None:
    engine = make_engine(KIND)
    request = make_request(KIND, "s", prompt(), max_new_tokens=4000, stop_ids=(-1,))
    running = asyncio.create_task(engine.generate(request))
    await wait_until_sampled(engine, 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    again = await engine.generate(make_request(KIND, "s", prompt(), max_new_tokens=2))
    assert engine.stats.running == engine.stats.waiting == 0
    await engine.aclose()
    assert len(again.token_ids) == 2


async def test_requests_of_one_session_run_one_after_the_other() -> None:
    engine = make_engine(KIND)
    requests = [make_request(KIND, "s", prompt(f"Number {i}"), seed=i) for i in range(3)]
    generations = await asyncio.gather(*(engine.generate(request) for request in requests))
    assert engine.stats.sessions == 1
    await engine.aclose()
    for request, generation in zip(requests, generations, strict=True):
        assert largest_error(KIND, request, generation) < TOLERANCE


@pytest.mark.slow
async def test_context_end_stops_a_request_and_a_full_context_is_refused() -> None:
    engine = make_engine(KIND)
    context = engine.model.config.max_position_embeddings
    ids = (prompt() * (context // len(prompt()) + 1))[: context - 2]
    generation = await engine.generate(make_request(KIND, "s", ids, stop_ids=(-1,)))
    with pytest.raises(EngineFault, match="shorter than the model's"):
        await engine.generate(make_request(KIND, "t", [*ids, 1, 2]))
    await engine.aclose()
    assert generation.finish_reason is FinishReason.LENGTH
    assert len(generation.token_ids) == 2


def test_engine_serves_several_event_loops() -> None:
    engine = make_engine(KIND)

    async def ask() -> int:
        return len((await engine.generate(make_request(KIND, "s", prompt()))).token_ids)

    assert [asyncio.run(ask()) for _ in range(2)] == [8, 8]
    asyncio.run(engine.aclose())


async def test_two_engines_do_not_meet() -> None:
    kinds = ("llama", "qwen3")
    engines = {kind: make_engine(kind) for kind in kinds}
    requests = [
        make_request(kind, f"s{i}", ids_of(kind, f"Engine {kind}, session {i}:"), max_new_tokens=8)
        for kind in kinds
        for i in range(2)
    ]
    owners = [kind for kind in kinds for _ in range(2)]
    generations = await asyncio.gather(
        *(engines[kind].generate(request) for kind, request in zip(owners, requests, strict=True))
    )
    for kind, request, generation in zip(owners, requests, generations, strict=True):
        assert largest_error(kind, request, generation) < TOLERANCE
    for engine in engines.values():
        await engine.aclose()


async def test_close_ends_the_thread_and_answers_what_is_pending() -> None:
    engine = make_engine(KIND)
    assert engine.name == "transformers"
    assert engine.logprob_kind is LogprobKind.SAMPLED
    request = make_request(KIND, "s", prompt(), max_new_tokens=4000, stop_ids=(-1,))
    running = asyncio.create_task(engine.generate(request))
    await wait_until_sampled(engine, 1)
    await engine.aclose()
    await engine.aclose()
    with pytest.raises(EngineFault, match="closed"):
        await running
    with pytest.raises(EngineFault, match="closed"):
        await engine.generate(make_request(KIND, "s", prompt()))
    await engine.end_session("s")
    # Other threads come and go in a test process: asyncio's executor, pools, libraries.
    assert not [t.name for t in threading.enumerate() if t.name.startswith("envkit-transformers")]
