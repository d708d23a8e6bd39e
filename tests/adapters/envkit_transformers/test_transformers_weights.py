"""New weights between two forwards of the embedded engine."""

import asyncio
from typing import Any

import pytest
import torch
from fakes.embedded import ids_of, largest_error, make_engine, make_request, reference_model

from envkit.errors import EngineFault

TOLERANCE = 1e-4
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
