"""What the embedded engine draws and keeps between turns, sessions and versions of its weights."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from fakes.budget import examples
from fakes.embedded import (
    ids_of,
    largest_error,
    make_engine,
    make_request,
    picture,
    reference_model,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envkit.errors import EngineFault
from envkit.rollout.engine import FinishReason, Sampling
from envkit.tokens.encoded import ImageFeatures
from envkit_transformers.prompt import ImageSpan, Prompt, common_prefix
from envkit_transformers.sampling import Draw, sample
from envkit_transformers.sessions import SessionStore
from envkit_transformers.stopping import StopRule

TOLERANCE = 1e-4

PAD = "<|vision_start|><|image_pad|><|vision_end|>"

LONG = "A long system prompt that every member of a group shares with all the others. "


async def test_next_turn_prefills_its_new_tokens_only() -> None:
    engine = make_engine("llama")
    first = make_request("llama", "s", ids_of("llama", "One two three four"), max_new_tokens=6)
    generation = await engine.generate(first)
    context = [*first.wire_ids, *generation.token_ids]
    before = engine.stats.prefilled_tokens
    new = ids_of("llama", " and then?")
    second = make_request("llama", "s", [*context, *new], max_new_tokens=1)
    answer = await engine.generate(second)
    after = engine.stats.prefilled_tokens
    await engine.aclose()
    assert answer.cached_tokens == len(context) - 1
    assert after - before == len(new) + 1
    assert largest_error("llama", second, answer) < TOLERANCE


async def test_changed_history_rolls_back_to_the_common_prefix() -> None:
    engine = make_engine("llama")
    ids = ids_of("llama", "The quick brown fox jumps over the lazy dog again and again")
    await engine.generate(make_request("llama", "s", ids))
    changed = [*ids[:5], 1234, *ids[6:], 77]
    request = make_request("llama", "s", changed)
    generation = await engine.generate(request)
    same = make_request("llama", "s", changed)
    repeated = await engine.generate(same)
    await engine.aclose()
    assert generation.cached_tokens == 5
    assert largest_error("llama", request, generation) < TOLERANCE
    assert repeated.cached_tokens == len(changed) - 1
    assert largest_error("llama", same, repeated) < TOLERANCE


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
async def test_changed_image_rolls_back_to_before_it(kind: str) -> None:
    engine = make_engine(kind)
    wire = ids_of(kind, f"First {PAD} then {PAD} and words")
    await engine.generate(make_request(kind, "s", wire, [picture(1), picture(2)]))
    request = make_request(kind, "s", wire, [picture(1), picture(3)])
    generation = await engine.generate(request)
    await engine.aclose()
    second_pad = len(wire) - 1 - wire[::-1].index(engine.model.config.image_token_id)
    expanded = request.train_length - len(wire)
    assert generation.cached_tokens == second_pad + expanded // 2
    assert largest_error(kind, request, generation) < TOLERANCE


async def test_group_computes_its_prompt_once() -> None:
    engine = make_engine("qwen2_5_vl", max_batch_tokens=32)
    wire = ids_of("qwen2_5_vl", LONG * 4 + PAD + "What now?")
    requests = [
        make_request("qwen2_5_vl", f"s{i}", wire, [picture(1)], seed=i, max_new_tokens=3)
        for i in range(5)
    ]
    generations = await asyncio.gather(*(engine.generate(request) for request in requests))
    stats = engine.stats
    await engine.aclose()
    length = requests[0].train_length
    assert stats.prefilled_tokens == length + 4
    assert [generation.cached_tokens for generation in generations] == [0] + [length - 1] * 4
    for request, generation in zip(requests, generations, strict=True):
        assert largest_error("qwen2_5_vl", request, generation) < TOLERANCE


async def test_group_continues_if_its_leader_is_aborted() -> None:
    engine = make_engine("llama", max_batch_tokens=4)
    wire = ids_of("llama", LONG * 10)
    requests = [make_request("llama", f"s{i}", wire, seed=i) for i in range(3)]
    tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
    while engine.stats.steps < 3:
        await asyncio.sleep(0.001)
    await engine.abort(requests[0].request_id)
    generations = await asyncio.gather(*tasks)
    await engine.aclose()
    assert not generations[0].token_ids
    for request, generation in list(zip(requests, generations, strict=True))[1:]:
        assert largest_error("llama", request, generation) < TOLERANCE


async def test_shared_beginning_is_copied_from_another_session() -> None:
    engine = make_engine("llama")
    shared = ids_of("llama", LONG * 3)
    await engine.generate(make_request("llama", "a", [*shared, 5, 6, 7]))
    request = make_request("llama", "b", [*shared, 8, 9])
    generation = await engine.generate(request)
    await engine.aclose()
    assert generation.cached_tokens == len(shared)
    assert largest_error("llama", request, generation) < TOLERANCE


@pytest.mark.slow
async def test_eviction_keeps_the_budget_and_the_numbers() -> None:
    engine = make_engine("llama", kv_budget_tokens=120)
    contexts = {f"s{i}": ids_of("llama", f"{i} is where session {i} begins.") for i in range(6)}
    held: list[int] = []
    for turn in range(3):
        for session, context in contexts.items():
            context += ids_of("llama", f" Turn {turn}.")
            request = make_request("llama", session, list(context), max_new_tokens=6)
            generation = await engine.generate(request)
            held.append(engine.stats.held_tokens)
            assert largest_error("llama", request, generation) < TOLERANCE
            context += generation.token_ids
    evictions = engine.stats.evictions
    await engine.aclose()
    assert max(held) <= 120
    assert evictions > 0


async def test_requests_wait_for_room_and_all_finish() -> None:
    engine = make_engine("llama", kv_budget_tokens=64)
    requests = [
        make_request("llama", f"s{i}", ids_of("llama", f"Number {i} waits."), max_new_tokens=20)
        for i in range(8)
    ]
    generations = await asyncio.gather(*(engine.generate(request) for request in requests))
    await engine.aclose()
    for request, generation in zip(requests, generations, strict=True):
        assert largest_error("llama", request, generation) < TOLERANCE
    assert generations[-1].queue_seconds > generations[0].queue_seconds


async def test_request_larger_than_the_budget_is_refused() -> None:
    engine = make_engine("llama", kv_budget_tokens=16)
    with pytest.raises(EngineFault, match="raise kv_budget_tokens"):
        await engine.generate(make_request("llama", "s", list(range(1, 12)), max_new_tokens=20))
    small = await engine.generate(make_request("llama", "s", [1, 2, 3], max_new_tokens=2))
    await engine.aclose()
    assert len(small.token_ids) == 2


async def test_end_session_frees_now_or_after_the_running_request() -> None:
    engine = make_engine("llama")
    await engine.generate(make_request("llama", "idle", [1, 2, 3]))
    long = make_request("llama", "busy", [4, 5, 6], max_new_tokens=60, stop_ids=(-1,))
    running = asyncio.create_task(engine.generate(long))
    while engine.stats.running == 0:
        await asyncio.sleep(0.001)
    for session in ("idle", "busy", "unknown"):
        await engine.end_session(session)
    generation = await running
    stats = engine.stats
    await engine.aclose()
    assert len(generation.token_ids) == 60
    assert (stats.sessions, stats.held_tokens) == (0, 0)


def span(offset: int, length: int, identity: str) -> ImageSpan:
    features = ImageFeatures(tensors={}, token_count=length)
    return ImageSpan(
        offset=offset, length=length, identity=identity, grid=(1, 2, 2 * length), features=features
    )


SEQUENCES = st.lists(
    st.one_of(st.integers(0, 2), st.tuples(st.integers(1, 3), st.sampled_from("xy"))),
    max_size=8,
)


def expand(parts: list[int | tuple[int, str]]) -> tuple[np.ndarray, list[ImageSpan], list[str]]:
    ids: list[int] = []
    spans: list[ImageSpan] = []
    marks: list[str] = []  # what must agree for a token to be shared
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            marks.append(str(part))
        else:
            length, identity = part
            identity = f"{identity}{length}"
            spans.append(span(len(ids), length, identity))
            marks += [f"{identity}.{i}" for i in range(length)]
            ids += [9] * length
    return np.array(ids, dtype=np.int64), spans, marks


@given(SEQUENCES, SEQUENCES, st.integers(0, 12))
def test_common_prefix_is_the_longest_that_ends_between_images(
    first: list[int | tuple[int, str]], second: list[int | tuple[int, str]], limit: int
) -> None:
    ids, spans, marks = expand(first)
    other_ids, other_spans, other_marks = expand(second)
    found = common_prefix(ids, spans, other_ids, other_spans, limit=limit)
    inside = {
        place for image in [*spans, *other_spans] for place in range(image.offset + 1, image.end)
    }
    possible = [
        length
        for length in range(min(limit, len(ids), len(other_ids)) + 1)
        if marks[:length] == other_marks[:length] and length not in inside
    ]
    assert found == max(possible)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 30), st.integers(1, 10), st.booleans()),
        max_size=30,
    )
)
def test_store_never_holds_more_than_its_budget(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    store = SessionStore(budget_tokens=60)
    busy: dict[str, object] = {}
    for number, length, new_tokens, keeps_running in steps:
        key = f"s{number}"
        ids = np.arange(length, dtype=np.int64) + number
        built = Prompt(ids=ids, positions=ids[None], next_position=length)
        if store.is_busy(key):
            store.release(next(session for session in store if session.key == key))
            busy.pop(key, None)
            continue
        session = store.acquire(key, built, new_tokens=new_tokens)
        if session is not None and keeps_running:
            busy[key] = session
        elif session is not None:
            store.release(session)
        assert store.held_tokens <= 60
        assert all(store.is_busy(name) for name in busy)


NAME = "model.layers.0.mlp.up_proj.weight"


def changed_weights(model: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight = model.state_dict()[NAME]
    return {NAME: torch.randn(weight.shape, generator=generator)}


async def test_new_weights_drop_the_cache_and_tag_what_follows() -> None:
    engine = make_engine("llama", weight_version="first")
    wire = ids_of("llama", "The same words before and after the update")
    before = await engine.generate(make_request("llama", "s", wire, seed=1))
    await engine.update_weights(changed_weights(engine.model), version="second")
    request = make_request("llama", "s", wire, seed=1)
    after = await engine.generate(request)
    await engine.aclose()
    assert (before.weight_version, after.weight_version) == ("first", "second")
    assert engine.weight_version == "second"
    assert after.cached_tokens == 0
    assert largest_error("llama", request, after, model=engine.model) < TOLERANCE
    assert largest_error("llama", request, after) > TOLERANCE


async def test_generation_is_sampled_under_one_version() -> None:
    engine = make_engine("llama")
    first = make_request("llama", "a", [1, 2, 3], max_new_tokens=100, stop_ids=(-1,))
    running = asyncio.create_task(engine.generate(first))
    while engine.stats.sampled_tokens < 3:
        await asyncio.sleep(0.001)
    update = asyncio.create_task(
        engine.update_weights(changed_weights(engine.model), version="new")
    )
    await asyncio.sleep(0)
    second = make_request("llama", "b", [1, 2, 3], max_new_tokens=20)
    late = await engine.generate(second)
    early = await running
    await update
    await engine.aclose()
    assert (early.weight_version, late.weight_version) == ("0", "new")
    assert len(early.token_ids) == 100
    assert largest_error("llama", first, early) < TOLERANCE
    assert largest_error("llama", second, late, model=engine.model) < TOLERANCE


async def test_function_may_change_the_model_itself() -> None:
    engine = make_engine("llama")

    def scale(model: Any) -> None:
        model.model.norm.weight.mul_(0.5)

    await engine.update_weights(scale, version="scaled")
    request = make_request("llama", "s", [5, 6, 7])
    generation = await engine.generate(request)
    await engine.aclose()
    assert largest_error("llama", request, generation, model=engine.model) < TOLERANCE


@pytest.mark.parametrize("case", ["unknown", "shape", "empty", "raises"])
async def test_weights_that_do_not_fit_change_nothing(case: str) -> None:
    engine = make_engine("llama")
    good = changed_weights(engine.model)

    def fail(model: Any) -> None:
        raise ZeroDivisionError("no")

    update: Any = {
        "unknown": {**good, "model.nothing": torch.zeros(1)},
        "shape": {**good, "model.norm.weight": torch.zeros(3)},
        "empty": {},
        "raises": fail,
    }[case]
    with pytest.raises(EngineFault):
        await engine.update_weights(update, version="never")
    request = make_request("llama", "s", [5, 6, 7])
    generation = await engine.generate(request)
    await engine.aclose()
    assert generation.weight_version == "0"
    assert largest_error("llama", request, generation) < TOLERANCE
    reference = reference_model("llama")[0].state_dict()
    assert all(bool((engine.model.state_dict()[key] == reference[key]).all()) for key in reference)


async def test_update_that_still_waits_is_answered_when_the_engine_closes() -> None:
    engine = make_engine("llama")
    long = make_request("llama", "s", [1, 2, 3], max_new_tokens=4000, stop_ids=(-1,))
    running = asyncio.create_task(engine.generate(long))
    while engine.stats.sampled_tokens < 2:
        await asyncio.sleep(0.001)
    weights = changed_weights(engine.model)
    update = asyncio.create_task(engine.update_weights(weights, version="late"))
    await asyncio.sleep(0.05)
    await engine.aclose()
    outcomes = await asyncio.gather(running, update, return_exceptions=True)
    assert all(isinstance(outcome, EngineFault) for outcome in outcomes)


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0]])


def draw(seed: int = 0, banned: tuple[int, ...] = (), **settings_: Any) -> Draw:
    return Draw(Sampling(**settings_), banned=banned, seed=seed, start=0)


def support(**settings_: Any) -> set[int]:
    one = draw(**settings_)
    return {sample(LOGITS, [one])[0][0] for _ in range(400)}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    count = 20_000
    one = draw(temperature=temperature)
    tokens, logprobs = sample(LOGITS.repeat(count, 1), [one] * count)
    expected = (LOGITS[0] / temperature).softmax(-1)
    frequencies = torch.bincount(torch.tensor(tokens), minlength=5) / count
    assert (frequencies - expected).abs().max() < 0.015
    assert torch.tensor(logprobs).exp().sub(expected[tokens]).abs().max() < 1e-6


def test_top_k_and_top_p_cut_the_tail_only() -> None:
    assert support(top_k=1) == {4}
    assert support(top_k=2) == {0, 4}
    assert support(top_p=0.5) == {4}
    assert support(top_p=0.7) == {0, 4}
    assert support(top_p=0.7, top_k=1) == {4}
    assert support() == {0, 1, 2, 3, 4}


def test_rows_have_their_own_settings() -> None:
    draws = [draw(temperature=0.0), draw(top_k=1, banned=(4,)), draw(banned=(0, 1, 2, 4))]
    tokens, logprobs = sample(LOGITS.repeat(3, 1), draws)
    assert tokens == [4, 0, 3]
    assert logprobs[2] == pytest.approx(0.0)
    masked = LOGITS[0].clone()
    masked[4] = float("-inf")
    assert logprobs[1] == pytest.approx(float(masked.log_softmax(-1)[0]), abs=1e-6)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=20),
    st.integers(0, 2**32),
    st.floats(0.05, 1.0),
    st.one_of(st.none(), st.integers(1, 30)),
    st.floats(0.01, 5.0),
    st.sets(st.integers(0, 19), max_size=5),
)
def test_drawn_token_is_allowed_and_its_logprob_is_the_tempered_one(
    logits: list[float],
    seed: int,
    top_p: float,
    top_k: int | None,
    temperature: float,
    banned: set[int],
) -> None:
    size = len(logits)
    out = tuple(token for token in banned if token < size - 1)
    one = draw(seed, top_p=top_p, top_k=top_k, temperature=temperature, banned_ids=out)
    (token,), (logprob,) = sample(torch.tensor([logits]), [one])
    scaled = torch.tensor(logits) / temperature
    scaled[list(out)] = float("-inf")
    reference = scaled.log_softmax(-1)
    assert token not in out
    assert logprob == pytest.approx(float(reference[token]), rel=1e-4, abs=1e-4)
    if top_k is not None:
        assert int((reference > reference[token]).sum()) < top_k
    assert float(reference.exp()[reference > reference[token]].sum()) <= top_p + 1e-5


def test_draws_depend_on_seed_and_prompt_length_only() -> None:
    row = torch.zeros(1, 1000)
    tokens = [
        sample(row, [Draw(Sampling(), banned=(), seed=seed, start=start)])[0][0]
        for seed, start in [(1, 10), (1, 10), (2, 10), (1, 11)]
    ]
    assert tokens[0] == tokens[1]
    assert len(set(tokens)) == 3


class BytesTokenizer:
    """Decodes token n as byte n, with replacement characters where bytes are no text."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


@given(st.text(max_size=30), st.text(min_size=1, max_size=6))
def test_stop_string_is_found_at_the_first_token_that_completes_it(text: str, stop: str) -> None:
    assume("\ufffd" not in stop)  # which every half character decodes to
    rule = StopRule(
        Sampling(stop=(stop,)), default_ids=(), tokenizer=BytesTokenizer(), budget=10_000
    )
    encoded = (text + stop).encode()
    end = encoded.find(stop.encode()) + len(stop.encode())
    found = next(count for count in range(1, len(encoded) + 1) if rule.check(list(encoded[:count])))
    assert found == end
    assert rule.check(list(encoded[:end])) is FinishReason.STOP
