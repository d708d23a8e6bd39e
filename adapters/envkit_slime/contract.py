"""The parts of slime that this adapter relies on."""

from typing import Final

from envkit.upstream import Contract

SAMPLE_FIELDS: Final = (
    "group_index",
    "index",
    "prompt",
    "tokens",
    "multimodal_inputs",
    "multimodal_train_inputs",
    "response",
    "response_length",
    "label",
    "reward",
    "loss_mask",
    "weight_versions",
    "rollout_log_probs",
    "rollout_routed_experts",
    "remove_sample",
    "status",
    "metadata",
    "non_generation_time",
    "spec_info",
    "prefix_cache_info",
    "to_dict",
    "from_dict",
)
"""Fields of `Sample`, in slime and in miles."""

CONTRACT: Final = Contract(
    package="slime",
    tested="0.3.1, commits 2a60f00d and 624b824",
    install="pip install git+https://github.com/THUDM/slime",
    uses={
        "slime.utils.types:Sample": (*SAMPLE_FIELDS, "rollout_id", "append_response_tokens"),
        "slime.utils.types:Sample.append_response_tokens": (
            "args",
            "tokens",
            "log_probs",
            "trainable",
            "meta_info",
        ),
        "slime.rollout.sglang_rollout:GenerateState": ("aborted", "tokenizer", "processor"),
        "slime.rollout.data_source:RolloutDataSourceWithBuffer": (
            "get_samples",
            "add_samples",
            "get_buffer_length",
        ),
        "slime.rollout.on_policy_distillation:post_process_rewards": ("args", "samples"),
        "slime.rollout.filter_hub.base_types:DynamicFilterOutput": ("keep", "reason"),
        "slime.observability.trace_utils|slime.utils.trace_utils:trace_span": ("attrs",),
        "slime.observability.trace_utils|slime.utils.trace_utils:build_sglang_meta_trace_attrs": (),
        "slime.observability.metric_utils|slime.utils.metric_utils:compute_rollout_step": (
            "args",
            "rollout_id",
        ),
        "slime.observability.logging_utils|slime.utils.logging_utils:log": (
            "args",
            "metrics",
            "step_key",
        ),
    },
)
