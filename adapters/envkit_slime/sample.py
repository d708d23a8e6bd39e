"""slime's and miles' `Sample`, and this adapter's keys in its metadata.

slime/utils/types.py and miles/utils/types.py; the fields in use are `contract.SAMPLE_FIELDS`.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

Sample: TypeAlias = Any

FACTS_KEY = "envkit_episode"
"""Metadata key of the episode's `EpisodeFacts`; an earlier row of the same episode has only those
that concern its reward."""
STATE_KEY = "envkit_state"
"""Metadata key of an aborted trajectory, for the rollout that resumes it."""
RUNS_KEY = "envkit_runs"
"""Metadata key of the sampled runs of a response: start, end and weight version of each."""


def facts_of(sample: Sample) -> Mapping[str, Any]:
    """Return this adapter's facts about the sample's episode; empty for a foreign sample."""
    metadata: Any = sample.metadata
    facts = metadata.get(FACTS_KEY) if isinstance(metadata, dict) else None
    return facts if isinstance(facts, dict) else {}


def is_faulted(sample: Sample) -> bool:
    """Return whether infrastructure, not the policy, ended the sample's episode."""
    return facts_of(sample).get("fault") is not None


def trainer_of(sample: Sample) -> str:
    """Return the package of the sample's class: slime or miles."""
    return type(sample).__module__.partition(".")[0]
