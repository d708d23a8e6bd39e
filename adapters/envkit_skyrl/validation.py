"""What a generator's output must be, checked before SkyRL's own validator.

SkyRL 0.4.0 (`validate_generator_output` in skyrl/train/utils/trainer_utils.py) checks lengths and
the order of step-wise rows. It does not notice a missing trajectory, an empty row, a
log-probability that is not finite, a step whose prompt contradicts the step before, or images that
do not match their placeholders; the optimizer then learns from garbage.
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
    """The prompt's; members of a group share it."""
    repetition_id: int
    """The member's index in its group."""

    def to_string(self) -> str:
        """Return both as one key; the class itself is not hashable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """How a model of Qwen-VL's kind takes images."""

    token_id: int
    """The placeholder."""
    patches_per_token: int
    """How many lines of pixel_values one placeholder stands for."""
    patch_size: int
    """Numbers in one line of pixel_values."""


def validate_output(
    output: GeneratorOutput,
    trajectory_ids: Sequence[TrajectoryId] | None,
    *,
    step_wise: bool,
    allow_forks: bool = False,
    turn_rewards: bool = False,
    max_tokens: int | None = None,
    pictures: Pictures | None = None,
) -> None:
    """Check an output that is about to be handed to SkyRL.

    Args:
        output: The generator's output.
        trajectory_ids: Those of the input, in its order; None where the input had none.
        step_wise: Whether a trajectory may be more than one row.
        allow_forks: Whether a row's prompt may differ from what came before it, as it does where a
            template rewrites the history.
        turn_rewards: Whether every row may have a reward, for a trainer that compares turns.
        max_tokens: Most tokens of a row; None is unbounded.
        pictures: What an image is to the model; None leaves them uncounted.

    Raises:
        ContractError: The output breaks a rule; the message names row and rule.
    """
    for problem in _columns(output):
        raise ContractError(problem)
    rows = [
        {key: column[row] for key, column in output.items() if isinstance(column, list)}
        for row in range(len(output["response_ids"]))
    ]
    for number, row in enumerate(rows):
        for problem in (*_numbers(row, max_tokens), *_images(row, pictures)):
            raise ContractError(f"row {number}: {problem}")
    for problem in _owners(rows, trajectory_ids, step_wise=step_wise):
        raise ContractError(problem)
    if step_wise:
        for number, problem in _steps(rows, allow_forks=allow_forks, turn_rewards=turn_rewards):
            raise ContractError(f"row {number}: {problem}")


def _columns(output: GeneratorOutput) -> Iterator[str]:
    missing = {"rollout_logprobs", "rollout_metrics"} - output.keys()
    if missing:
        yield f"the output must have the key {missing.pop()!r}, None included"
    rows = len(output["response_ids"])
    if not rows:
        yield "the output must have at least one row, got none"
    for key, column in output.items():
        if key == "rollout_metrics" or column is None:
            continue
        if not isinstance(column, list):
            yield f"only lists may be handed over, got {key}: {type(column).__name__}"
        elif len(column) != rows:
            yield f"{key} must have one entry for each row, got {len(column)}/{rows}"
    if len({isinstance(reward, list) for reward in output["rewards"]}) > 1:
        yield "rewards must be all numbers or all lists, got both"


def _numbers(row: dict[str, Any], max_tokens: int | None) -> Iterator[str]:
    prompt, response = row["prompt_token_ids"], row["response_ids"]
    if not prompt or not response:
        yield f"prompt and response must not be empty, got {len(prompt)} and {len(response)} ids"
    per_token = {
        key: row[key]
        for key in ("loss_masks", "rewards", "rollout_logprobs")
        if isinstance(row.get(key), list)
    }
    for key, column in per_token.items():
        if len(column) != len(response):
            yield f"{key} must be as long as the response, got {len(column)} for {len(response)}"
        if not all(map(math.isfinite, column)):
            yield f"{key} must be finite"
    if not set(row["loss_masks"]) <= {0, 1}:
        yield f"loss masks are 0 or 1, got {sorted(set(row['loss_masks']))}"
    if min((*prompt, *response), default=0) < 0:
        yield "token ids must be 0 or more"
    tokens = len(prompt) + len(response)
    if max_tokens is not None and tokens > max_tokens:
        yield f"at most {max_tokens} tokens, got {tokens}; SkyRL's trainer does not cut"


def _images(row: dict[str, Any], pictures: Pictures | None) -> Iterator[str]:
    if pictures is None:
        return
    pixels, grids = row.get("pixel_values"), row.get("image_grid_thw")
    if pixels is None or grids is None:
        yield "a row of a vision-language model needs pixel_values and image_grid_thw, empty ones"
        return
    patches = int(grids.prod(-1).sum())
    ids = row["prompt_token_ids"] + row["response_ids"]
    placed = ids.count(pictures.token_id) * pictures.patches_per_token
    if len(pixels) != patches or placed != patches:
        yield (
            f"pixel_values must have one line for each patch, got {len(pixels)} lines, {patches} "
            f"patches in image_grid_thw and placeholders for {placed}"
        )


def _owners(
    rows: Sequence[dict[str, Any]], expected: Sequence[TrajectoryId] | None, *, step_wise: bool
) -> Iterator[str]:
    if expected is None:
        if step_wise:
            yield "step-wise rows need trajectory_ids, and the input had none"
        return
    found = [row["trajectory_ids"].to_string() for row in rows]
    if step_wise:
        found = [key for place, key in enumerate(found) if not place or found[place - 1] != key]
    wanted = [entry.to_string() for entry in expected]
    if found != wanted:
        missing = sorted(set(wanted) - set(found))
        yield (
            "every trajectory of the input must come back, in its order and its rows adjacent"
            + (f"; missing: {missing[:5]}" if missing else f"; got {found[:8]}")
        )


def _steps(
    rows: Sequence[dict[str, Any]], *, allow_forks: bool, turn_rewards: bool
) -> Iterator[tuple[int, str]]:
    for number, row in enumerate(rows):
        after = rows[number + 1] if number + 1 < len(rows) else None
        owner = row["trajectory_ids"].to_string()
        is_last = after is None or after["trajectory_ids"].to_string() != owner
        if row.get("is_last_step") is not is_last:
            yield number, f"is_last_step must be the Python bool {is_last}, for trajectory {owner}"
        if after is None or is_last:
            continue
        reward = row["rewards"]
        if not turn_rewards and (any(reward) if isinstance(reward, list) else reward):
            yield (
                number,
                "only the last row of a trajectory may have a reward; SkyRL ignores others",
            )
        before = row["prompt_token_ids"] + row["response_ids"]
        if not allow_forks and after["prompt_token_ids"][: len(before)] != before:
            yield number + 1, f"its prompt contradicts row {number} of trajectory {owner}"
