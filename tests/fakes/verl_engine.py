"""verl's real FSDP2 training engine on a CPU, over gloo.

verl registers its engine for accelerators, but takes platforms from plugins: this one is a CPU.
"""

# pyright: reportMissingImports=false
# verl is installed only where its contract tests run.

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from tensordict import TensorDict
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss


def _always(answer: Any) -> Callable[..., Any]:
    """Return a function of anything."""

    def method(*_: object) -> Any:
        return answer

    return method


_ANSWERS: Final[Mapping[str, Any]] = {
    **{name: _always(None) for name in PlatformBase.__abstractmethods__},
    "device_name": "cpu",
    "vendor_name": "cpu",
    "device_module": SimpleNamespace(
        memory_allocated=_always(0),
        memory_reserved=_always(0),
        max_memory_allocated=_always(0),
        max_memory_reserved=_always(0),
        mem_get_info=_always((0, 0)),
        is_available=_always(False),
    ),
    "is_available": _always(True),
    "current_device": _always("cpu"),
    "device_count": _always(1),
    "communication_backend_name": _always("gloo"),
    "ray_resource_name": _always("CPU"),
    "visible_devices_envvar": _always("CUDA_VISIBLE_DEVICES"),
}
CpuPlatform: Any = type("CpuPlatform", (PlatformBase,), dict(_ANSWERS))
"""What verl asks of a device, answered for a CPU."""
_COLUMNS: Final = ("prompts", "responses", "response_mask", "old_log_probs", "advantages")


def training_worker(
    model: Path,
    *,
    meeting: Path,
    rank: int = 0,
    ranks: int = 1,
    lr: float = 0.0,
    **actor: Any,
) -> Any:
    """Return verl's TrainingWorker over a model folder, with PPO's loss.

    Args:
        model: A folder of transformers, with or without a tokenizer.
        meeting: A file that no run has used, where the ranks meet.
        rank: Of this process.
        ranks: How many processes share the rows.
        lr: Of AdamW.
        actor: Fields of verl's actor configuration.
    """
    platform_manager._current_platform = CpuPlatform()
    os.environ |= {
        "VERL_ENGINE_DEVICE": "cuda",  # under which name verl's registry has its engine
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    if not torch.distributed.is_initialized():  # verl would name gloo twice
        torch.distributed.init_process_group(
            "gloo", rank=rank, world_size=ranks, init_method=f"file://{meeting}"
        )
    exact = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=str(model),
                load_tokenizer=False,
                use_remove_padding=False,  # only flash attention accepts packed rows
                enable_gradient_checkpointing=False,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                use_torch_compile=False,
                model_dtype="fp32",
                mixed_precision=exact,
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=1,
            ),
            optimizer_config=FSDPOptimizerConfig(lr=lr, weight_decay=0.0, total_training_steps=999),
            checkpoint_config=CheckpointConfig(),
        )
    )
    made.flops_counter = None  # knows no CPU
    made.reset()
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **actor)
    made.set_loss_fn(partial(ppo_loss, config))
    return made


def training_batch(rows: Sequence[Mapping[str, torch.Tensor]], *, episodes: int) -> TensorDict:
    """Return rows as V1's trainer sends them to `update_actor`: one optimizer step.

    Args:
        rows: Each with prompts, responses, response_mask, old_log_probs and advantages.
        episodes: `ppo_mini_batch_size * rollout.n`.
    """
    columns: dict[str, list[torch.Tensor]] = {
        **{name: [row[name] for row in rows] for name in _COLUMNS},
        "loss_mask": [row["response_mask"] for row in rows],
        "input_ids": [torch.cat([row["prompts"], row["responses"]]) for row in rows],
    }
    columns["position_ids"] = [torch.arange(len(ids)) for ids in columns["input_ids"]]
    batch = TensorDict(
        {
            name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
            for name, values in columns.items()
        },
        batch_size=len(rows),
    )
    tensordict_utils.assign_non_tensor(
        batch,
        global_batch_size=episodes,
        mini_batch_size=len(rows) * torch.distributed.get_world_size(),
        temperature=1.0,
    )
    return batch


def gradient_of(worker: Any, batch: TensorDict) -> torch.Tensor:
    """Return the gradient of one optimizer step, by name of parameter, without taking the step."""
    found: list[torch.Tensor] = []

    def keep() -> float:
        named: dict[str, Any] = dict(worker.engine.module.named_parameters())
        found.extend(
            parameter.grad.full_tensor().flatten() for _, parameter in sorted(named.items())
        )
        return 0.0

    step: Callable[[], float] = worker.engine.optimizer_step
    worker.engine.optimizer_step = keep
    worker.train_mini_batch(batch)
    worker.engine.optimizer_step = step
    return torch.cat(found)
