"""The parts of TRL that the adapter relies on."""

from typing import Final

from envkit.upstream import Contract

_SYNC: Final = "trl.trainer.grpo_trainer:GRPOTrainer"
_ASYNC: Final = "trl.experimental.async_grpo.async_grpo_trainer"

CONTRACT: Final = Contract(
    package="trl",
    tested="1.16.0",
    install="pip install 'envkit-rl[trl]'",
    uses={
        _SYNC: (
            "_calculate_rewards",
            "_compute_loss",
            "_generate",
            "_generate_and_score_completions",
            "_get_per_token_logps_and_entropies",
            "_image_pad_token_id",
            "_metrics",
            "chat_template_kwargs",
            "environments",
            "eos_token_ids",
            "max_completion_length",
            "num_generations",
            "num_generations_eval",
            "scale_rewards",
            "tools",
        ),
        f"{_SYNC}.__init__": ("environment_factory", "reward_funcs", "rollout_func"),
        f"{_ASYNC}:AsyncGRPOTrainer": ("_is_vlm", "compute_loss", "get_train_dataloader"),
        f"{_ASYNC}:AsyncGRPOTrainer.__init__": ("rollout_worker", "weight_transfer"),
        f"{_ASYNC}:DataCollatorForRollout": ("torch_call",),
        f"{_ASYNC}:RolloutQueueDataset": (),
        "trl.experimental.async_grpo.packing:TreeRow": ("samples",),
        "trl.experimental.async_grpo.packing:tree_attention": (),
        "trl.experimental.async_grpo.async_rollout_worker:RolloutSample": (
            "advantage",
            "completion",
            "completion_mask",
            "enqueued_at",
            "group_id",
            "input_ids",
            "metrics",
            "model_version",
            "old_log_probs",
            "prompt",
        ),
    },
)
"""Checked when a trainer or a rollout is created."""
