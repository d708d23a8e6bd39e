"""Limit the age of the weights that sampled a token: `max_staleness`.

slime numbers its weights by update, and its servers report which version sampled a reply
(slime/backends/megatron_utils/update_weight). A sample that was resumed, or that waited in the
buffer for the rest of its group, holds replies of several versions.
"""

from collections.abc import Sequence
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit_slime.sample import RUNS_KEY, Sample

_FIRST: Final = "default"
"""SGLang's version of weights that were never updated."""


def mask_stale(samples: Sequence[Sample], limit: int | None) -> None:
    """Mask replies whose weights are more than `limit` updates older than the newest here.

    Args:
        samples: Samples of an episode or a whole rollout; changed in place.
        limit: None masks nothing, 0 everything but the newest weights' own.

    Raises:
        ConfigurationError: The server's weight versions are not numbers.
    """
    if limit is None:
        return
    runs = [(sample, *run) for sample in samples for run in _runs(sample)]
    ages = [_number(version) for *_, version in runs]
    newest = max(ages, default=0)
    for (sample, start, end, _), version in zip(runs, ages, strict=True):
        if sample.loss_mask is not None and newest - version > limit:
            sample.loss_mask[start:end] = [0] * (end - start)


def _runs(sample: Sample) -> Sequence[tuple[int, int, Any]]:
    return (sample.metadata or {}).get(RUNS_KEY, ())


def _number(version: str | None) -> int:
    if version is None or version == _FIRST:
        return 0
    try:
        return int(version)
    except ValueError as error:
        raise ConfigurationError(
            "max_staleness needs weight versions that are numbers, as slime gives its servers, "
            f"got {version!r}; drop max_staleness"
        ) from error
