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


FACTS_KEY = "envkit_episode"
"""Metadata key of the episode's `EpisodeFacts`; an earlier row of the same episode has only those
that concern its reward."""
STATE_KEY = "envkit_state"
"""Metadata key of an aborted trajectory, for the rollout that resumes it."""
RUNS_KEY = "envkit_runs"
"""Metadata key of the sampled runs of a response: start, end and weight version of each."""


def facts_of(sample: Sample) -> Mapping[str, Any]:
    """Return what this adapter noted about the sample's episode; empty for a foreign sample."""
    metadata: Any = sample.metadata
    facts = metadata.get(FACTS_KEY) if isinstance(metadata, dict) else None
    return facts if isinstance(facts, dict) else {}


def is_faulted(sample: Sample) -> bool:
    """Return whether infrastructure, not the policy, ended the sample's episode."""
    return facts_of(sample).get("fault") is not None


def trainer_of(sample: Sample) -> str:
    """Return the package that the sample's class is of: slime or miles."""
    return type(sample).__module__.partition(".")[0]
