"""TRL's columns and rows for envkit's conformance suite: written by the adapter, then read back."""

import importlib.util
from typing import Final

from envkit.errors import MissingDependencyError
from envkit.trajectory import Trajectory
from envkit_conformance import Content, DeliveredRow, Projection, Shape
from envkit_trl.rollout import rollout_columns
from envkit_trl.rows import REWARD_COLUMN
from envkit_trl.samples import RowSettings, group_samples

if importlib.util.find_spec("trl") is None:
    raise MissingDependencyError.for_extra("training with TRL", "trl", "trl")

_LONGEST: Final = 1 << 20


def _rollout(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
    """Read the columns of a `rollout_func`; TRL's reward functions get `env_reward`."""
    columns = rollout_columns([trajectory], end_id=filler_id, max_completion=_LONGEST)
    reward: float | None = columns[REWARD_COLUMN][0]
    row = DeliveredRow(
        prompt_ids=columns["prompt_ids"][0],
        response_ids=columns["completion_ids"][0],
        loss_mask=columns["env_mask"][0],
        logprobs=columns["logprobs"][0],
        reward=reward,
        is_unscorable=reward is None,
    )
    return [row]


def _async_rows(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
    """Read `RolloutSample`s: whole sequences, with the trajectory's reward on every row."""
    settings = RowSettings(end_id=filler_id)
    samples, _ = group_samples([trajectory], group_id=0, version=0, settings=settings)
    rows: list[DeliveredRow] = []
    for number, sample in enumerate(samples):
        start = sample.completion_mask.tolist().index(1)
        is_last = number == len(samples) - 1
        rows.append(
            DeliveredRow(
                prompt_ids=sample.input_ids[:start].tolist(),
                response_ids=sample.input_ids[start:].tolist(),
                loss_mask=sample.completion_mask[start:].tolist(),
                logprobs=sample.old_log_probs[start:].tolist(),
                reward=sample.metrics["reward"] if is_last else 0.0,
                is_last=is_last,
            )
        )
    return rows


PROJECTIONS: Final = (
    Projection(
        name="trl-rollout",
        shape=Shape.WHOLE,
        deliver=_rollout,
        cannot_carry=frozenset({Content.IMAGES, Content.SEQUENCES}),
    ),
    Projection(
        name="trl-async",
        shape=Shape.MERGED,
        deliver=_async_rows,
        cannot_carry=frozenset({Content.IMAGES}),
        omits_unscored=True,
    ),
)
"""`make_rollout_func`'s columns, and `EnvRolloutWorker`'s rows."""
