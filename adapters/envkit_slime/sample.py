"""The part of slime's and miles' `Sample` that both have and this adapter reads or writes.

slime/utils/types.py and miles/utils/types.py, `class Sample`.
"""

from collections.abc import Mapping
from typing import Any, Protocol


class Sample(Protocol):
    """One training sample, changed in place."""

    group_index: int | None
    index: int | None
    rollout_id: int | None
    prompt: Any
    tokens: list[int]
    multimodal_inputs: dict[str, Any] | None
    multimodal_train_inputs: dict[str, Any] | None
    response: str
    response_length: int
    label: str | None
    reward: Any
    loss_mask: list[int] | None
    weight_versions: list[str]
    rollout_log_probs: list[float] | None
    rollout_routed_experts: Any
    remove_sample: bool
    status: Any
    metadata: dict[str, Any]
    non_generation_time: float
    spec_info: Any
    prefix_cache_info: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, status and statistics as plain data."""
        ...


SUMMARY_KEY = "envkit_episode"
"""Metadata key of what the log functions count."""
STATE_KEY = "envkit_state"
"""Metadata key of an aborted trajectory, for the rollout that goes on with it."""


def summary_of(sample: Sample) -> Mapping[str, Any]:
    """Return what this adapter noted about the sample's episode; empty for a foreign sample."""
    metadata: Any = sample.metadata
    summary = metadata.get(SUMMARY_KEY) if isinstance(metadata, dict) else None
    return summary if isinstance(summary, dict) else {}


def is_faulted(sample: Sample) -> bool:
    """Return whether infrastructure, not the policy, ended the sample's episode."""
    return summary_of(sample).get("fault") is not None
