"""What this adapter relies on in TRL, private methods of its trainers among it."""

from typing import Final

from envkit.upstream import Contract

_ASYNC: Final = "trl.experimental.async_grpo"

CONTRACT: Final = Contract(
    package="trl",
    tested="1.16.0",
    uses={
        "trl.trainer.grpo_trainer:GRPOTrainer": (
            "_generate_and_score_completions",
            "_generate",
            "_get_per_token_logps_and_entropies",
            "_compute_loss",
            "_metrics",
            "_image_pad_token_id",
            "eos_token_ids",
            "max_completion_length",
            "num_generations",
            "num_generations_eval",
            "scale_rewards",
            "reward_funcs",
            "tools",
        ),
        "trl.trainer.grpo_trainer:GRPOTrainer.__init__": (
            "model",
            "reward_funcs",
            "args",
            "train_dataset",
            "processing_class",
            "rollout_func",
            "environment_factory",
        ),
        "trl.trainer.grpo_config:GRPOConfig": (
            "max_completion_length",
            "num_generations",
            "steps_per_generation",
            "temperature",
            "top_k",
            "top_p",
            "mask_truncated_completions",
        ),
        f"{_ASYNC}.async_rollout_worker:RolloutSample": (
            "prompt",
            "completion",
            "input_ids",
            "completion_mask",
            "old_log_probs",
            "advantage",
            "model_version",
            "group_id",
            "metrics",
            "enqueued_at",
        ),
        f"{_ASYNC}.async_grpo_trainer:AsyncGRPOTrainer.__init__": (
            "rollout_worker",
            "weight_transfer",
        ),
    },
)
