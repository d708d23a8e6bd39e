"""The verl engine without verl: what it sends to a client and makes of its answers."""

import asyncio
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes.processes import run_python
from PIL import Image as PilImage

import envkit_verl
from envkit.errors import ConfigurationError, EngineFault, FaultKind, MissingDependencyError
from envkit.images import Image
from envkit.rollout import FinishReason, GenerateRequest, Limits, LogprobKind, Sampling
from envkit.tokens.encoded import ImageFeatures
from envkit_verl import VerlEngine
from envkit_verl.settings import VerlSettings

PAD = 99


def settings(**changes: Any) -> VerlSettings:
    values: dict[str, Any] = {
        "prompt_length": 16, "response_length": 32, "max_model_len": None, "max_turns": None,
        "backend": "vllm",
    }  # fmt: skip
    return VerlSettings(**values | changes)


def output(ids: list[int], **changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "token_ids": ids, "log_probs": [-1.0] * len(ids), "stop_reason": "completed",
        "num_preempted": None, "routed_experts": None, "extra_fields": {"global_steps": 4},
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


class Client:
    """verl's client: keeps what it was sent and gives one answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.sent: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **arguments: Any) -> Any:
        self.sent.append({"request_id": request_id, **arguments})
        if isinstance(self.answer, BaseException):
            raise self.answer
        if isinstance(self.answer, asyncio.Event):
            await self.answer.wait()
        return self.answer


def engine(client: Client, **changes: Any) -> VerlEngine:
    options: dict[str, Any] = {
        "settings": settings(), "placeholder_id": PAD, "sends_expanded": True
    }  # fmt: skip
    return VerlEngine(client, **options | changes)


def request(
    *, wire: tuple[int, ...] = (1, 2, 3), images: int = 0, sampling: Mapping[str, Any] | None = None
) -> GenerateRequest:
    pictures = tuple(
        Image.from_pil(PilImage.new("L" if n else "RGB", (4 + n, 4))) for n in range(images)
    )
    features = tuple(ImageFeatures(tensors={}, token_count=2 + n) for n in range(images))
    values: dict[str, Any] = {
        "max_new_tokens": 8, "stop_ids": (7,), "extras": {"logprobs": True}, **(sampling or {})
    }  # fmt: skip
    return GenerateRequest(
        request_id="r", session_id="s", wire_ids=wire, images=pictures, features=features,
        train_length=len(wire) + sum(feature.token_count - 1 for feature in features),
        sampling=Sampling(**values),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "stop_reason", "reason"),
    [
        ([5, 7], "completed", FinishReason.STOP),
        ([5] * 8, "completed", FinishReason.LENGTH),  # vLLM's server calls both "completed"
        ([5] * 7 + [7], "completed", FinishReason.STOP),
        ([5, 6], "length", FinishReason.LENGTH),
        ([5, 6], "aborted", FinishReason.ABORT),
        ([5, 6], "abort", FinishReason.ABORT),
        ([], "completed", FinishReason.ABORT),
        ([], None, FinishReason.ABORT),
        ([5, 6], None, FinishReason.STOP),
    ],
)
async def test_verl_engine_says_why_sampling_ended(
    ids: list[int], stop_reason: str | None, reason: FinishReason
) -> None:
    generation = await engine(Client(output(ids, stop_reason=stop_reason))).generate(request())
    assert generation.finish_reason is reason
    assert list(generation.token_ids) == ids


async def test_verl_engine_sends_expanded_ids_and_rgb_images_to_vllm() -> None:
    client = Client(output([7]))
    await engine(client).generate(request(wire=(1, PAD, 2, PAD), images=2))
    assert client.sent[0]["prompt_ids"] == [1, PAD, PAD, 2, PAD, PAD, PAD]
    assert [picture.mode for picture in client.sent[0]["image_data"]] == ["RGB", "RGB"]
    assert set(client.sent[0]) == {"request_id", "prompt_ids", "sampling_params", "image_data"}


async def test_verl_engine_sends_one_placeholder_an_image_elsewhere() -> None:
    client = Client(output([7]))
    made = engine(client, sends_expanded=False, settings=settings(backend="sglang"))
    await made.generate(request(wire=(1, PAD, 2), images=1, sampling={"banned_ids": (PAD,)}))
    assert client.sent[0]["prompt_ids"] == [1, PAD, 2]
    assert client.sent[0]["sampling_params"]["logit_bias"] == {str(PAD): -10_000.0}


async def test_verl_engine_sends_no_image_data_with_text() -> None:
    client = Client(output([7]))
    await engine(client, mm_processor_kwargs={"max_pixels": 9}).generate(request())
    assert client.sent[0]["image_data"] is None
    assert "mm_processor_kwargs" not in client.sent[0]


async def test_verl_engine_sends_processor_options_with_images_to_vllm_only() -> None:
    for backend, expected in (("vllm", True), ("sglang", False)):
        client = Client(output([7]))
        made = engine(
            client, mm_processor_kwargs={"max_pixels": 9}, settings=settings(backend=backend)
        )
        await made.generate(request(wire=(1, PAD), images=1))
        assert ("mm_processor_kwargs" in client.sent[0]) == expected


async def test_verl_engine_sends_verls_own_parameters_and_a_budget() -> None:
    client = Client(output([7]))
    rollout = settings()
    sampling = rollout.sampling(
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": -1,
            "repetition_penalty": 1.1,
            "logprobs": True,
        },
        priority=3,
    )
    assert (sampling.top_k, sampling.max_new_tokens) == (None, 32)
    values = {"extras": sampling.extras, "temperature": sampling.temperature, "seed": 5}
    await engine(client).generate(request(sampling={**values, "stop": ("END",)}))
    assert client.sent[0]["priority"] == 3
    assert client.sent[0]["sampling_params"] == {
        "temperature": 0.5, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.1, "logprobs": True,
        "max_tokens": 8, "stop_token_ids": [7], "stop": ["END"], "skip_special_tokens": False,
        "seed": 5,
    }  # fmt: skip
    assert "priority" not in settings(backend="sglang").sampling({}, priority=3).extras


async def test_verl_engine_keeps_what_the_server_reported() -> None:
    facts = {"min_global_steps": 3, "max_global_steps": 5, "num_cached_tokens": 2}
    experts = np.zeros((4, 2, 3), dtype=np.int16)
    answer = output([5, 7], extra_fields=facts, num_preempted=1, routed_experts=experts)
    made = engine(Client(answer))
    generation = await made.generate(request())
    assert (generation.weight_version, generation.cached_tokens) == ("5", 2)
    assert generation.extras["min_global_steps"] == 3
    assert generation.extras["num_preempted"] == 1
    assert generation.prompt_tokens == 3
    assert made.routing_shape == (2, 3)
    assert made.logprob_kind is LogprobKind.SAMPLED


@pytest.mark.parametrize("values", [None, [-1.0], [-1.0, float("nan")]])
async def test_verl_engine_refuses_missing_logprobs(values: list[float] | None) -> None:
    with pytest.raises(EngineFault, match="log-probability for each token"):
        await engine(Client(output([5, 7], log_probs=values))).generate(request())


async def test_verl_engine_needs_no_logprobs_where_none_are_asked_for() -> None:
    made = engine(Client(output([5, 7], log_probs=None)))
    generation = await made.generate(request(sampling={"extras": {"logprobs": False}}))
    assert generation.logprobs == (0.0, 0.0)


class RayTaskError(Exception):
    """Like Ray's: the server's own error is its cause."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("a long remote traceback")
        self.cause = cause


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("reset"), FaultKind.TRANSIENT),
        (RuntimeError("No available servers"), FaultKind.TRANSIENT),
        (TimeoutError("slow"), FaultKind.TIMEOUT),
        (ValueError("too long"), FaultKind.PERMANENT),
        (TypeError("no such argument"), FaultKind.PERMANENT),
        (RayTaskError(ValueError("too long")), FaultKind.PERMANENT),
        (RayTaskError(OSError("gone")), FaultKind.TRANSIENT),
    ],
)
async def test_verl_engine_wraps_every_error_once(error: Exception, kind: FaultKind) -> None:
    with pytest.raises(EngineFault) as caught:
        await engine(Client(error)).generate(request())
    assert caught.value.kind is kind
    assert "remote traceback" not in str(caught.value)


async def test_verl_engine_refuses_a_prompt_beyond_prompt_length_once() -> None:
    made = engine(Client(output([7])))
    with pytest.raises(EngineFault, match="17 tokens for 16"):
        await made.generate(request(wire=tuple(range(17))))
    await made.generate(request(wire=tuple(range(16))))
    await made.generate(request(wire=tuple(range(40))))  # a later turn of the same episode
    await made.end_session("s")
    with pytest.raises(EngineFault):
        await made.generate(request(wire=tuple(range(17))))


async def test_verl_engine_abort_returns_an_empty_reply() -> None:
    made = engine(Client(asyncio.Event()))
    running = asyncio.create_task(made.generate(request()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await made.abort("unknown")
    await made.abort("r")
    generation = await running
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.token_ids == ()


async def test_verl_engine_cancelled_call_stays_cancelled() -> None:
    made = engine(Client(asyncio.Event()))
    running = asyncio.create_task(made.generate(request()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_verl_engine_fails_after_its_deadline() -> None:
    with pytest.raises(EngineFault) as caught:
        await engine(Client(asyncio.Event()), timeout_s=0.01).generate(request())
    assert caught.value.kind is FaultKind.TIMEOUT
    with pytest.raises(ConfigurationError, match="timeout_s"):
        engine(Client(None), timeout_s=0)


def test_verl_limits_are_the_tighter_ones() -> None:
    own = Limits(max_turns=9, max_response_tokens=10)
    found = settings(max_turns=4, max_model_len=40).limits(own)
    assert (found.max_turns, found.max_response_tokens, found.max_context_tokens) == (4, 10, 40)
    assert settings(max_model_len=999).limits(Limits()).max_context_tokens == 48
    sglang = settings(max_model_len=40, backend="sglang").limits(Limits())
    assert sglang.max_context_tokens == 39


def test_verl_package_imports_without_verl_and_torch() -> None:
    code = "import sys, envkit_verl; print(sorted({'verl', 'torch', 'ray'} & set(sys.modules)))"
    assert run_python("-c", code).strip() == "[]"


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed")
def test_verl_package_says_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[verl\]'"):
        _ = envkit_verl.EnvAgentLoop
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = envkit_verl.Nothing  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["org/model", "org/other", "/no/such/folder", "", None])
def test_model_of_a_tokenizer_is_looked_for_on_this_machine_only(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    shared = pytest.importorskip("envkit_verl.shared")

    def refuse(*_given: object, **_options: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", refuse)
    repository = tmp_path / "models--org--model"
    snapshot = repository / "snapshots" / "3f2a"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("3f2a")
    (snapshot / "config.json").write_text("{}")
    expected = str(snapshot) if name == "org/model" else ""
    tokenizer = SimpleNamespace(**({} if name is None else {"name_or_path": name}))
    assert shared._model_folder(tokenizer) == expected
    assert shared._model_folder(SimpleNamespace(name_or_path=str(tmp_path))) == str(tmp_path)
