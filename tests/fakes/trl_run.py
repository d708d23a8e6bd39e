"""Tiny text models and real TRL trainers on a CPU, without a download."""

import types
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl.experimental.async_grpo.async_grpo_trainer as async_trainer  # pyright: ignore[reportMissingImports]
import trl.experimental.async_grpo.packing as async_packing  # pyright: ignore[reportMissingImports]
from fakes.packed_attention import packed_attention
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer  # pyright: ignore[reportMissingImports]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIALS = (
    "<|im_start|> <tool_call> </tool_call> <tool_response> </tool_response> <think> </think>"
)


def byte_tokenizer(template: str = CHATML) -> Any:
    """Return a tokenizer with one token for a byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        additional_special_tokens=_SPECIALS.split(),
    )
    tokenizer.chat_template = template
    return tokenizer


def qwen3_template() -> str:
    """Return TRL's own copy of Qwen3's template, which its tool loop knows."""
    folder = files("trl") / "chat_templates"
    return (folder / "qwen3.jinja").read_text("utf-8")


def text_model(tokenizer: Any, *, seed: int = 0) -> Any:
    """Return a random model with some 30 thousand weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=4096,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                tie_word_embeddings=True,
                attention_dropout=0.3,  # a rollout must switch it off
            )
        ).train()


def grpo_arguments(folder: Path, **changes: Any) -> GRPOConfig:
    """Return a GRPOConfig for one step on a CPU."""
    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 256,
        "max_steps": 1,
        "learning_rate": 1e-2,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "logging_steps": 1,
        "shuffle_dataset": False,
        **changes,
    }
    return GRPOConfig(**arguments)


def grpo_trainer(folder: Path, dataset: Any, *, tokenizer: Any = None, **options: Any) -> Any:
    """Return a real GRPOTrainer; `arguments` in the options goes into its GRPOConfig."""
    arguments: dict[str, Any] = options.pop("arguments", {})
    words = tokenizer or byte_tokenizer()
    trainer: Any = GRPOTrainer(
        model=options.pop("model", None) or text_model(words),
        args=grpo_arguments(folder, **arguments),
        train_dataset=dataset,
        processing_class=words,
        **options,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def spy_on_loss(trainer: Any) -> list[dict[str, Any]]:
    """Return a list that gets the inputs of every loss."""
    losses: list[dict[str, Any]] = []
    compute = trainer._compute_loss

    def spy(model: Any, inputs: dict[str, Any]) -> Any:
        losses.append(dict(inputs))
        return compute(model, inputs)

    trainer._compute_loss = spy
    return losses


def async_arguments(folder: Path, **changes: Any) -> Any:
    """Return an AsyncGRPOConfig for a CPU."""
    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "num_generations": 2,
        "max_completion_length": 128,
        "disable_tqdm": True,
        "dtype": "float32",
        "token_budget": 2048,  # unset, TRL asks a live vLLM server
        **changes,
    }
    return AsyncGRPOConfig(**arguments)


def saved_model(folder: Path) -> tuple[str, Any]:
    """Return a folder with a tiny model, which AsyncGRPOTrainer wants, and its tokenizer."""
    tokenizer = byte_tokenizer()
    text_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), tokenizer


def async_trainer_for(worker: Any, model: str, dataset: Any, tokenizer: Any, args: Any) -> Any:
    """Return a real AsyncGRPOTrainer around a worker of this process."""
    trainer: Any = AsyncGRPOTrainer(
        model=model,
        reward_funcs=no_reward,
        args=args,
        train_dataset=dataset,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=worker.weight_transfer(),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def no_reward(**_: Any) -> list[float]:
    """Score nothing: the worker brings advantages."""
    return []


def replace_gpu_parts(monkeypatch: Any) -> None:
    """Replace what AsyncGRPOTrainer needs a GPU for: an attention kernel, and a peak speed."""
    kernel = types.SimpleNamespace(flash_attn_varlen_func=packed_attention)
    monkeypatch.setattr(async_packing, "_flash_attn", lambda: kernel)
    monkeypatch.setattr(async_trainer, "get_peak_flops_per_device", _one_flop)


def _one_flop(*_: Any, **__: Any) -> float:
    return 1.0


def changed_tensors(before: dict[str, Any], model: Any) -> int:
    """Return how many of a model's parameters are no longer what they were."""
    return sum(not torch.equal(before[name], p) for name, p in model.named_parameters())


def parameters(model: Any) -> dict[str, Any]:
    """Return copies of a model's parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def is_flat(array: Any) -> bool:
    """Return whether it is a one-dimensional numpy array."""
    return isinstance(array, np.ndarray) and array.ndim == 1
