"""Read what every trainer's settings and dataset rows say, in the trainer's own words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envkit.errors import ConfigurationError
from envkit.rollout.engine import Sampling
from envkit.rollout.request import EpisodeRequest


def refuse(problems: Mapping[str, bool]) -> None:
    """Reject a configuration for all its problems at once.

    Args:
        problems: What to change, and whether that is necessary.

    Raises:
        ConfigurationError: At least one is.
    """
    found = [message for message, is_wrong in problems.items() if is_wrong]
    if found:
        raise ConfigurationError("; ".join(found))


def check_discount(discount: float | None) -> None:
    """Check the discount of later turns' rewards; None compares whole episodes.

    Raises:
        ConfigurationError: It is not from 0 to 1.
    """
    if discount is not None and not 0 <= discount <= 1:
        raise ConfigurationError(f"turn_discount must be None or from 0 to 1, got {discount}")


def read_sampling(
    params: Mapping[str, Any], *, max_new_tokens: int, seed_key: str = "seed"
) -> Sampling:
    """Return parameters under the names that SGLang and vLLM share; others become extras.

    Args:
        params: None stands for a parameter that is not set, a `top_k` below 1 for no limit.
        max_new_tokens: Tokens of a reply, which the servers name differently.
        seed_key: The server's name of the seed.
    """
    left = {key: value for key, value in params.items() if value is not None}
    top_k, stop = int(left.pop("top_k", -1)), left.pop("stop", ())
    return Sampling(
        temperature=float(left.pop("temperature", 1.0)),
        top_p=float(left.pop("top_p", 1.0)),
        top_k=top_k if top_k > 0 else None,
        max_new_tokens=max_new_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_ids=tuple(left.pop("stop_token_ids", ())),
        seed=left.pop(seed_key, None),
        extras=left,
    )


def with_task(
    request: EpisodeRequest, row: Mapping[str, Any], task_fields: Mapping[str, str]
) -> EpisodeRequest:
    """Return a request with the task that a dataset row's fields make, unless it has its own.

    Args:
        request: The row's.
        row: The dataset row.
        task_fields: Maps a task's keys to fields of the row, such as "extra_info.question".

    Raises:
        ConfigurationError: The row does not have a field.
    """
    if request.task is not None or not task_fields:
        return request
    return replace(request, task={key: _field(row, place) for key, place in task_fields.items()})


def _field(row: Mapping[str, Any], place: str) -> Any:  # noqa: ANN401  # whatever the dataset has
    found: Any = row
    left = place
    while left:
        if isinstance(found, Mapping) and left in found:
            return found[left]  # a name may have dots itself
        part, _, left = left.partition(".")
        if not isinstance(found, Mapping) or part not in found:
            known = sorted(found) if isinstance(found, Mapping) else type(found).__name__
            raise ConfigurationError(
                f"task_fields takes {place!r} from a dataset row, but {part!r} is not among {known}"
            )
        found = found[part]
    return found
