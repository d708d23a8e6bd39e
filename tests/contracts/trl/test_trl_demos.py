"""TRL's own collator reads what `envkit demos` writes, and trains only the oracle's replies."""

from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from fakes.command import run_envkit
from fakes.models import tiny_model_dir
from fakes.walks import WALK, register_walk
from transformers import AutoConfig, AutoTokenizer, Qwen2VLImageProcessorPil
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from envkit_trl.processor import build_processor

IGNORED = -100
WITH_MARKS = """
{%- macro parts(message) -%}
{%- for part in message['content'] -%}
{{- part['text'] if part['type'] == 'text' else '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- endfor -%}<|im_end|>
{%- endmacro -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- parts(message) -}}{%- endgeneration -%}
{%- else -%}{{- parts(message) -}}{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
"""
"""A chat template that marks the assistant's replies, as `assistant_only_loss` needs."""


pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(autouse=True)
def _walk() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_walk()


def processor() -> Any:
    folder = tiny_model_dir("qwen2_5_vl")
    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    config = AutoConfig.from_pretrained(str(folder))
    built = build_processor(config, tokenizer=tokenizer, image_processor=Qwen2VLImageProcessorPil())
    built.chat_template = tokenizer.chat_template
    return built


def loaded(out: Path, *more: object) -> Any:
    given = ("demos", WALK, "-n", 20, "--format", "trl", "-q", "--out", out, *more)
    assert run_envkit(*given).code == 0
    return load_dataset(str(out), cache_dir=str(out.parent / "cache"))


def pads(batch: Any, tokens: Any) -> tuple[int, int]:
    """Return how many placeholders there are, and how many the images need."""
    pad = tokens.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    needed = batch["image_grid_thw"].prod(dim=1).sum() // tokens.image_processor.merge_size**2
    return int((batch["input_ids"] == pad).sum()), int(needed)


def test_trl_collates_whole_episodes_with_all_images(tmp_path: Path) -> None:
    splits, tokens = loaded(tmp_path / "d", "--test-share", 0.5), processor()
    batch = DataCollatorForVisionLanguageModeling(tokens)(list(splits["train"]))
    found, needed = pads(batch, tokens)

    assert set(splits) == {"train", "test"}
    assert found == needed > 0
    assert tokens.tokenizer.decode(batch["input_ids"][0]).count("right") == 4  # and the prompt's


def test_trl_trains_only_the_replies_of_whole_episodes(tmp_path: Path) -> None:
    splits, tokens = loaded(tmp_path / "d"), processor()
    collator = DataCollatorForVisionLanguageModeling(
        tokens, assistant_only_loss=True, chat_template=WITH_MARKS
    )
    batch = collator(list(splits["train"]))

    for labels in batch["labels"]:
        assert tokens.tokenizer.decode(labels[labels != IGNORED]) == "right<|im_end|>" * 3


def test_trl_trains_only_the_oracles_replies_of_noisy_episodes(tmp_path: Path) -> None:
    splits, tokens = loaded(tmp_path / "d", "--noise", 0.4, "--steps"), processor()
    collator = DataCollatorForVisionLanguageModeling(tokens, completion_only_loss=True)
    batch = collator(list(splits["train"]))
    found, needed = pads(batch, tokens)

    assert found == needed > 0
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        trained = tokens.tokenizer.decode(labels[labels != IGNORED])
        assert trained.strip() == "right<|im_end|>"
        assert trained in tokens.tokenizer.decode(ids)
