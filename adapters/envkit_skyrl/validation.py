"""Check a generator's output for errors that SkyRL's own validator misses.

SkyRL 0.4.0 (`validate_generator_output` in skyrl/train/utils/trainer_utils.py) checks lengths and
the order of step-wise rows. It accepts missing trajectories, empty or overlong rows, non-finite
log-probabilities and images without placeholders, and the optimizer then trains on garbage.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from envkit.errors import ContractError

GeneratorOutput = dict[str, Any]
"""One entry per training row in every list; only `rollout_metrics` is not a list."""


class TrajectoryId(Protocol):
    """Which sample of which prompt."""

    instance_id: str
    """Id of the prompt; members of a group share it."""
    repetition_id: int
    """The member's index in its group."""

    def to_string(self) -> str:
        """Return both as one key; the class itself is not hashable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """How a Qwen-VL style model represents images."""

    token_id: int
    """The placeholder."""
    patches_per_token: int
    """Rows of pixel_values per placeholder."""
    patch_size: int
    """Numbers per row of pixel_values."""


def validate_output(
    output: GeneratorOutput,
    trajectory_ids: Sequence[TrajectoryId] | None,
    *,
    max_tokens: int | None = None,
    images: ImageSettings | None = None,
) -> None:
    """Check an output before passing it to SkyRL.

    Args:
        output: The generator's output.
        trajectory_ids: Ids of the input, in order; None if it had none.
        max_tokens: Maximum tokens per row; None is unbounded.
        images: The model's image settings; None does not count images.

    Raises:
        ContractError: The output breaks a rule; the message names row and rule.
    """
    columns = {key: column for key, column in output.items() if isinstance(column, list)}
    for number in range(len(output["response_ids"])):
        row = {key: column[number] for key, column in columns.items()}
        for problem in (*_numbers(row, max_tokens), *_images(row, images)):
            raise ContractError(f"row {number}: {problem}")
    if trajectory_ids is None:
        return
    rows = [entry.to_string() for entry in output["trajectory_ids"]]
    found = [key for place, key in enumerate(rows) if not place or rows[place - 1] != key]
    wanted = [entry.to_string() for entry in trajectory_ids]
    if found != wanted:
        raise ContractError(
            "every trajectory of the input must be returned, in order and with adjacent rows; "
            f"missing: {sorted(set(wanted) - set(found))[:5]}, got {found[:8]}"
        )


def _numbers(row: dict[str, Any], max_tokens: int | None) -> Iterator[str]:
    prompt, response = row["prompt_token_ids"], row["response_ids"]
    if not prompt or not response:
        yield f"prompt and response must not be empty, got {len(prompt)} and {len(response)} ids"
    for key in ("rewards", "rollout_logprobs"):
        column = row.get(key)
        if column is not None and not all(
            map(math.isfinite, column if isinstance(column, list) else [column])
        ):
            yield f"{key} must be finite"
    tokens = len(prompt) + len(response)
    if max_tokens is not None and tokens > max_tokens:
        yield f"at most {max_tokens} tokens, got {tokens}; SkyRL's trainer does not truncate"


def _images(row: dict[str, Any], images: ImageSettings | None) -> Iterator[str]:
    if images is None:
        return
    pixels, grids = row.get("pixel_values"), row.get("image_grid_thw")
    if pixels is None or grids is None:
        yield "a row of a vision-language model needs pixel_values and image_grid_thw, empty ones"
        return
    patches = int(grids.prod(-1).sum())
    ids = row["prompt_token_ids"] + row["response_ids"]
    placed = ids.count(images.token_id) * images.patches_per_token
    if len(pixels) != patches or placed != patches:
        yield (
            f"pixel_values must have one row per patch, got {len(pixels)} rows, {patches} patches "
            f"in image_grid_thw and placeholders for {placed}"
        )
