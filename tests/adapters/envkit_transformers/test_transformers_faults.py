"""What the embedded engine says when something is wrong, and that it goes on afterwards."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from fakes.embedded import ids_of, largest_error, make_engine, make_request, picture

from envkit.errors import ConfigurationError, EngineFault, Fault, FaultKind, LedgerFault
from envkit.rollout.engine import GenerateRequest, Sampling
from envkit.tokens.encoded import ImageFeatures
from envkit_transformers.engine import TransformersEngine

PAD = "<|vision_start|><|image_pad|><|vision_end|>"
TOLERANCE = 1e-4
POISON = 4321


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"top_k": 0}, "top_k must be"),
        ({"max_new_tokens": 0}, "max_new_tokens must be"),
        ({"stop": ("",)}, "must not be empty"),
        ({"extras": {"min_p": 0.1}}, "takes no sampling extras"),
    ],
)
async def test_wrong_sampling_is_a_permanent_fault(sampling: dict[str, Any], message: str) -> None:
    engine = make_engine("llama")
    with pytest.raises(EngineFault, match=message) as caught:
        await engine.generate(make_request("llama", "s", [1, 2], **sampling))
    await engine.aclose()
    assert caught.value.kind is FaultKind.PERMANENT


@pytest.mark.parametrize("wire", [[], [1, 49216], [-1, 2]])
async def test_wrong_ids_are_a_permanent_fault(wire: list[int]) -> None:
    engine = make_engine("llama")
    with pytest.raises(EngineFault, match="wire_ids must"):
        await engine.generate(make_request("llama", "s", wire))
    await engine.aclose()


@pytest.mark.parametrize(("placeholders", "pictures"), [(0, 1), (1, 0), (1, 2), (2, 1)])
async def test_placeholders_and_images_must_be_as_many(placeholders: int, pictures: int) -> None:
    kind = "qwen2_5_vl"
    engine = make_engine(kind)
    wire = ids_of(kind, "Look " + PAD * placeholders)
    images = [picture(i) for i in range(pictures)]
    with pytest.raises(LedgerFault, match="one image placeholder"):
        await engine.generate(make_request(kind, "s", wire, images))
    await engine.aclose()


async def test_text_model_refuses_images() -> None:
    engine = make_engine("llama")
    request = GenerateRequest(
        request_id="r",
        session_id="s",
        wire_ids=[1],
        images=[picture(1)],
        train_length=1,
        sampling=Sampling(),
    )
    with pytest.raises(LedgerFault, match="text model"):
        await engine.generate(request)
    await engine.aclose()


@pytest.mark.parametrize("case", ["count", "missing", "size", "no processor"])
async def test_wrong_features_are_a_fault(case: str) -> None:
    kind = "qwen2_5_vl"
    engine = make_engine(kind)
    wire, image = ids_of(kind, PAD), picture(1)
    good = make_request(kind, "s", wire, [image]).features[0]
    features = {
        "count": [good, good],
        "missing": [ImageFeatures(tensors={}, token_count=good.token_count)],
        "size": [ImageFeatures(tensors=good.tensors, token_count=good.token_count + 1)],
        "no processor": [],
    }[case]
    if case == "no processor":
        await engine.aclose()
        engine = TransformersEngine(engine.model, engine.tokenizer)
    request = GenerateRequest(
        request_id="r",
        session_id="s",
        wire_ids=wire,
        images=[image],
        features=features,
        train_length=len(wire),
        sampling=Sampling(max_new_tokens=1),
    )
    with pytest.raises(Fault):
        await engine.generate(request)
    await engine.aclose()


async def test_request_id_must_be_unique_while_it_runs() -> None:
    engine = make_engine("llama")
    requests = [
        make_request("llama", f"s{i}", [1, 2, 3], request_id="same", max_new_tokens=50)
        for i in range(2)
    ]
    first, second = await asyncio.gather(
        *(engine.generate(request) for request in requests), return_exceptions=True
    )
    await engine.aclose()
    assert not isinstance(first, BaseException)
    assert isinstance(second, EngineFault)


def poison(engine: TransformersEngine, error: Exception) -> None:
    """Let the model's forward raise whenever the poisoned token is in it."""

    def before(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if bool((options["input_ids"] == POISON).any()):
            raise error

    engine.model.register_forward_pre_hook(before, with_kwargs=True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("shapes do not fit"), FaultKind.PERMANENT),
        (torch.OutOfMemoryError("no memory left"), FaultKind.TRANSIENT),
        (KeyError("odd"), FaultKind.PERMANENT),
    ],
)
async def test_failed_forward_hits_only_its_own_request(error: Exception, kind: FaultKind) -> None:
    engine = make_engine("llama")
    poison(engine, error)
    good = [make_request("llama", f"s{i}", [10 + i, 20, 30], max_new_tokens=6) for i in range(3)]
    bad = make_request("llama", "bad", [POISON, 5], max_new_tokens=6)
    outcomes = await asyncio.gather(
        *(engine.generate(request) for request in [*good, bad]), return_exceptions=True
    )
    after = make_request("llama", "bad", [40, 50])
    generation = await engine.generate(after)
    stats = engine.stats
    await engine.aclose()
    for request, outcome in zip(good, outcomes[:3], strict=True):
        assert not isinstance(outcome, BaseException)
        assert largest_error("llama", request, outcome) < TOLERANCE
    fault = outcomes[3]
    assert isinstance(fault, EngineFault)
    assert fault.kind is kind
    assert type(error).__name__ in str(fault) or kind is FaultKind.TRANSIENT
    assert largest_error("llama", after, generation) < TOLERANCE
    assert stats.running == stats.waiting == 0


async def test_logits_that_are_not_finite_are_a_fault() -> None:
    engine = make_engine("llama")

    def spoil(_: Any, __: Any, output: Any) -> Any:
        output.logits = torch.full_like(output.logits, float("nan"))
        return output

    handle = engine.model.register_forward_hook(spoil)
    with pytest.raises(EngineFault, match="not finite"):
        await engine.generate(make_request("llama", "s", [1, 2]))
    handle.remove()
    assert len((await engine.generate(make_request("llama", "s", [1, 2]))).token_ids) == 8
    await engine.aclose()


async def test_dead_thread_is_a_crash_and_never_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("llama")
    scheduler = engine._scheduler
    steps = scheduler.step

    def step() -> None:
        if engine.stats.sampled_tokens >= 3:
            raise SystemExit("pulled the plug")
        steps()

    monkeypatch.setattr(scheduler, "step", step)
    requests = [make_request("llama", f"s{i}", [1, 2], max_new_tokens=500) for i in range(3)]
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(engine.generate(r) for r in requests), return_exceptions=True), 30
    )
    for outcome in outcomes:
        assert isinstance(outcome, EngineFault)
        assert outcome.kind is FaultKind.CRASHED
        assert "pulled the plug" in str(outcome)
    with pytest.raises(EngineFault) as caught:
        await engine.generate(make_request("llama", "s", [1, 2]))
    assert caught.value.kind is FaultKind.CRASHED
    await engine.aclose()


async def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_batch_tokens"):
        make_engine("llama", max_batch_tokens=1)
    with pytest.raises(ConfigurationError, match="kv_budget_tokens"):
        make_engine("llama", kv_budget_tokens=0)


async def test_random_bad_requests_never_stop_the_good_ones() -> None:
    engine = make_engine("qwen3_vl", kv_budget_tokens=400)
    numbers = np.random.default_rng(0)
    pad = engine.model.config.image_token_id
    requests: list[GenerateRequest] = []
    for i in range(30):
        wire = [int(token) for token in numbers.integers(0, 60000, 6)]
        if i % 3 == 0:
            wire[2] = pad
        images = [picture(i)] * int(numbers.integers(0, 2))
        requests.append(make_request("qwen3_vl", f"s{i % 7}", wire, images, max_new_tokens=3))
    outcomes = await asyncio.gather(
        *(engine.generate(request) for request in requests), return_exceptions=True
    )
    await engine.aclose()
    assert any(isinstance(outcome, Fault) for outcome in outcomes)
    for request, outcome in zip(requests, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            assert largest_error("qwen3_vl", request, outcome) < TOLERANCE
        else:
            assert isinstance(outcome, EngineFault | LedgerFault)
