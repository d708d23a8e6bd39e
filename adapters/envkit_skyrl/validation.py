"""What a generator's output must be, checked before SkyRL's own validator.

SkyRL 0.4.0 (`validate_generator_output` in skyrl/train/utils/trainer_utils.py) checks lengths and
the order of step-wise rows. It does not notice a missing trajectory, an empty row, a
log-probability that is not finite, a step whose prompt contradicts the step before, or pictures
that do not match their placeholders; the optimizer then learns from garbage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envkit.errors import ContractError
from envkit_skyrl.contracts import ROW_FIELDS, GeneratorOutput, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """How a model of Qwen-VL's kind takes pictures."""

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
    max_tokens: int | None = None,
    pictures: "Pictures | None" = None,
) -> None:
    """Check an output that is about to be handed to SkyRL.

    Args:
        output: The generator's output.
        trajectory_ids: Those of the input, in its order; None where the input had none.
        step_wise: Whether a trajectory may be more than one row.
        allow_forks: Whether a row's prompt may differ from what came before it, as it does where a
            template rewrites the history.
        max_tokens: Most tokens of a row; None is unbounded.
        pictures: What a picture is to the model; None leaves them uncounted.

    Raises:
        ContractError: The output breaks a rule; the message names row and rule.
    """
    rows = _check_columns(output)
    for row in range(rows):
        _check_row(output, row, max_tokens)
    if pictures is not None:
        for row in range(rows):
            _check_images(output, row, pictures)
    owners = _check_owners(output, trajectory_ids, step_wise=step_wise)
    if step_wise:
        _check_steps(output, owners, allow_forks=allow_forks)


def _check_columns(output: GeneratorOutput) -> int:
    for key in ("rollout_logprobs", "rollout_metrics"):
        if key not in output:
            raise ContractError(f"the output must have the key {key!r}, None included")
    rows = len(output["response_ids"])
    if rows == 0:
        raise ContractError("the output must have at least one row, got none")
    for key, value in output.items():
        if key == "rollout_metrics" or value is None:
            continue
        if not isinstance(value, list):
            raise ContractError(f"only lists may be handed over, got {key}: {type(value).__name__}")
        if key in ROW_FIELDS and len(value) != rows:
            raise ContractError(f"{key} must have one entry for each row, got {len(value)}/{rows}")
    if len({isinstance(reward, list) for reward in output["rewards"]}) > 1:
        raise ContractError("rewards must be all numbers or all lists, got both")
    return rows


def _check_row(output: GeneratorOutput, row: int, max_tokens: int | None) -> None:
    prompt, response = output["prompt_token_ids"][row], output["response_ids"][row]
    mask, reward = output["loss_masks"][row], output["rewards"][row]
    if not prompt or not response:
        raise ContractError(
            f"row {row}: prompt and response must not be empty, got {len(prompt)} and "
            f"{len(response)} ids"
        )
    columns = {"loss_masks": mask}
    if isinstance(reward, list):
        columns["rewards"] = reward
    logprobs: Any = output["rollout_logprobs"]
    if logprobs is not None:
        columns["rollout_logprobs"] = logprobs[row]
    for key, column in columns.items():
        if len(column) != len(response):
            raise ContractError(
                f"row {row}: {key} must be as long as the response, got {len(column)} for "
                f"{len(response)}"
            )
    _check_values(output, row)
    if max_tokens is not None and len(prompt) + len(response) > max_tokens:
        raise ContractError(
            f"row {row}: at most {max_tokens} tokens, got {len(prompt) + len(response)}; SkyRL's "
            "trainer does not cut"
        )


def _check_values(output: GeneratorOutput, row: int) -> None:
    mask, reward = output["loss_masks"][row], output["rewards"][row]
    if not set(mask) <= {0, 1}:
        raise ContractError(f"row {row}: loss masks are 0 or 1, got {sorted(set(mask))}")
    if any(min(output[key][row]) < 0 for key in ("prompt_token_ids", "response_ids")):
        raise ContractError(f"row {row}: token ids must be 0 or more")
    logprobs: Any = output["rollout_logprobs"]
    if logprobs is not None and not all(map(math.isfinite, logprobs[row])):
        raise ContractError(f"row {row}: log-probabilities must be finite")
    if not all(map(math.isfinite, reward if isinstance(reward, list) else [reward])):
        raise ContractError(f"row {row}: rewards must be finite")


def _check_images(output: GeneratorOutput, row: int, pictures: "Pictures") -> None:
    if "pixel_values" not in output or "image_grid_thw" not in output:
        raise ContractError("rows of a vision-language model need pixel_values and image_grid_thw")
    pixels, grids = output["pixel_values"][row], output["image_grid_thw"][row]
    if pixels is None or grids is None:
        raise ContractError(f"row {row}: a row without pictures has empty tensors, never None")
    patches = int(grids.prod(-1).sum())
    if len(pixels) != patches:
        raise ContractError(
            f"row {row}: pixel_values must have one line for each patch of image_grid_thw, got "
            f"{len(pixels)} for {patches}"
        )
    token = pictures.token_id
    placeholders = output["prompt_token_ids"][row].count(token)
    placeholders += output["response_ids"][row].count(token)
    if placeholders * pictures.patches_per_token != patches:
        raise ContractError(
            f"row {row}: {placeholders} placeholders of {pictures.patches_per_token} patches each "
            f"do not match pictures of {patches} patches"
        )


def _check_owners(
    output: GeneratorOutput, trajectory_ids: Sequence[TrajectoryId] | None, *, step_wise: bool
) -> list[str]:
    """Return each row's trajectory, after checking that all are there, once, in order."""
    found: list[str] = [entry.to_string() for entry in output.get("trajectory_ids") or ()]
    if trajectory_ids is None:
        if step_wise:
            raise ContractError("step-wise rows need trajectory_ids, and the input had none")
        return found
    expected = [entry.to_string() for entry in trajectory_ids]
    once = [key for place, key in enumerate(found) if place == 0 or found[place - 1] != key]
    if (once if step_wise else found) == expected:
        return found
    missing = sorted(set(expected) - set(found))
    raise ContractError(
        "every trajectory of the input must come back, in its order"
        + (", one row each" if not step_wise else ", its rows adjacent")
        + (f"; missing: {missing[:5]}" if missing else f"; got {once[:8]}")
    )


def _check_steps(output: GeneratorOutput, owners: Sequence[str], *, allow_forks: bool) -> None:
    marks = output.get("is_last_step") or []
    if len(marks) != len(owners) or not all(type(mark) is bool for mark in marks):
        raise ContractError("is_last_step must hold one Python bool for each row")
    for row, owner in enumerate(owners):
        is_last = row + 1 == len(owners) or owners[row + 1] != owner
        if marks[row] != is_last:
            raise ContractError(
                f"row {row}: is_last_step must be {is_last} here: it is True exactly on the last "
                f"row of trajectory {owner}"
            )
        if is_last:
            continue
        reward = output["rewards"][row]
        if any(reward) if isinstance(reward, list) else reward:
            raise ContractError(
                f"row {row}: only the last row of a trajectory may have a reward; SkyRL ignores "
                "the others unless rows are merged"
            )
        before = output["prompt_token_ids"][row] + output["response_ids"][row]
        if not allow_forks and output["prompt_token_ids"][row + 1][: len(before)] != before:
            raise ContractError(
                f"row {row + 1}: its prompt contradicts row {row} of trajectory {owner}: it must "
                "begin with that row's prompt and response"
            )
