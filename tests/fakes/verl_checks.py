"""What verl needs of every row and checks of none."""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from fakes.verl_worker import PROMPT, RESPONSE

FIELDS = {"turn_scores", "tool_rewards", "min_global_steps", "max_global_steps"}
"""verl's own extra fields (agent_loop.py:1116 of verl 0.9.1)."""


def model_runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of each run of ones."""
    runs: list[tuple[int, int]] = []
    for index, value in enumerate(mask):
        if value and runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        elif value:
            runs.append((index, index + 1))
    return runs


def check_row(row: dict[str, Any], *, prompt: int = PROMPT, response: int = RESPONSE) -> None:
    """Assert everything that must hold for one delivered row."""
    length = len(row["responses"])
    assert length >= 1
    assert len(row["response_mask"]) == len(row["rollout_log_probs"]) == length
    assert len(row["rm_scores"]) == length
    assert set(row["response_mask"].tolist()) <= {0, 1}
    assert not row["rollout_log_probs"][row["response_mask"] == 0].any() or row["envkit_failed"]
    assert torch.isfinite(row["rollout_log_probs"]).all()
    assert 1 <= len(row["prompts"]) <= prompt
    assert length <= response
    assert row["response_mask"][0] == (0 if row["envkit_failed"] else 1)
    assert isinstance(row["reward_score"], float)
    assert row["num_turns"] is not None
    assert set(row) >= FIELDS
    for key in ("min_global_steps", "max_global_steps"):
        assert type(row[key]) is int
    assert {type(value) for value in row["reward_extra_info"].values()} == {float}
    assert all(isinstance(value, Real) for value in row["reward_extra_info"].values())
    assert row["position_ids"].shape[-1] == len(row["prompts"]) + length


def check_images(row: dict[str, Any], processor: Any) -> None:
    """Assert that placeholders and images of a row agree, one by one."""
    ids = row["input_ids"].tolist()
    pad, merge = processor.image_token_id, processor.image_processor.merge_size
    runs: list[int] = []
    for index, identity in enumerate(ids):
        if identity == pad:
            if index and ids[index - 1] == pad:
                runs[-1] += 1
            else:
                runs.append(1)
    grids = row["multi_modal_inputs"].get("image_grid_thw")
    sizes = [] if grids is None else (grids.prod(-1) // merge**2).tolist()
    assert runs == sizes
    if grids is not None:
        pixels = row["multi_modal_inputs"]["pixel_values"]
        assert len(pixels) == int(grids.prod(-1).sum())
        assert row["position_ids"].shape[0] == 4


def check_batch(rows: Sequence[dict[str, Any]]) -> None:
    """Assert what must be the same in all rows of a run."""
    assert len({frozenset(row["reward_extra_info"]) for row in rows}) == 1
    assert len({frozenset(row) for row in rows}) == 1
