"""The parts of SkyRL that this adapter relies on."""

from typing import Final

from envkit.upstream import Contract

_SERVERS: Final = "skyrl.backends.skyrl_train.inference_servers"

CONTRACT: Final = Contract(
    package="skyrl",
    tested="0.4.0",
    install="pip install 'envkit-rl[skyrl]'",
    uses={
        "skyrl.train.generators.base:GeneratorInterface": ("generate",),
        "skyrl.train.generators.base:GeneratorInput": (
            "prompts",
            "env_extras",
            "sampling_params",
            "trajectory_ids",
            "batch_metadata",
        ),
        "skyrl.train.generators.base:GeneratorOutput": (
            "prompt_token_ids",
            "response_ids",
            "rewards",
            "loss_masks",
            "stop_reasons",
            "rollout_metrics",
            "rollout_logprobs",
            "trajectory_ids",
            "is_last_step",
            "pixel_values",
            "image_grid_thw",
        ),
        "skyrl.train.generators.base:TrajectoryID": ("instance_id", "repetition_id"),
        "skyrl.train.generators.utils:get_rollout_metrics": (
            "responses",
            "rewards",
            "loss_masks",
            "trajectory_completion_times",
        ),
        "skyrl.train.generators.utils:build_vllm_cache_salt": ("model_name",),
        f"{_SERVERS}.engine_utils:get_vllm_sampling_params": (),
        f"{_SERVERS}.base:InferenceEngineInterface": (
            "generate",
            "finish_session",
            "render_chat_completion",
        ),
        f"{_SERVERS}.base:InferenceEngineOutput": (
            "response_ids",
            "stop_reasons",
            "response_logprobs",
        ),
        "skyrl.train.trainer:RayPPOTrainer": (
            "convert_to_training_input",
            "compute_advantages_and_returns",
            "_normalize_advantages",
        ),
        "skyrl.train.trainer:RayPPOTrainer._normalize_advantages": (
            "data",
            "mini_batch_boundaries",
            "prompt_boundaries",
        ),
        "skyrl.train.entrypoints.main_base:BasePPOExp": ("get_generator", "get_trainer"),
        "skyrl.train.config.config:SkyRLTrainConfig": ("trainer", "generator", "environment"),
    },
)
