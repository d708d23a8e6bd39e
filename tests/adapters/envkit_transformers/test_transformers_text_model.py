"""The built-in text model: real text answers, an image path that works, a cache that heals."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.embedded import picture

from envkit.rollout.engine import GenerateRequest, Sampling
from envkit_transformers import BuiltinModel, builtin_model_dir, create_engine
from envkit_transformers.engine import TransformersEngine
from envkit_transformers.text_model import TEXT_MODEL_NAME

pytestmark = pytest.mark.slow
PAD = "<|vision_start|><|image_pad|><|vision_end|>"


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
