"""SkyRL's `GeneratorOutput` for envkit's conformance suite: written, then read back."""

from collections.abc import Sequence
from typing import Any, Final

from envkit.trajectory import RewardPlacement, Trajectory
from envkit_conformance import Content, Deliver, DeliveredRow, Projection, Shape
from envkit_skyrl.contract import CONTRACT
from envkit_skyrl.rows import ERROR, Played, RowPlan, to_output
from envkit_skyrl.validation import GeneratorOutput, ImageSettings

CONTRACT.check()

_IMAGES: Final = ImageSettings(token_id=0, patches_per_token=4, patch_size=1176)
"""Image settings of a Qwen2.5-VL model, where text rows have empty tensors of this width."""


def rows_of_groups(
    trajectories: Sequence[Trajectory],
    shape: Shape,
    *,
    filler_id: int,
    placement: RewardPlacement = RewardPlacement.LAST,
) -> GeneratorOutput:
    """Return the rows of whole groups, checked by SkyRL's own validator."""
    from skyrl.train.generators.base import TrajectoryID
    from skyrl.train.utils.trainer_utils import validate_generator_output

    plan = RowPlan(
        step_wise=shape is not Shape.WHOLE,
        merge=shape is Shape.MERGED,
        placement=placement,
        filler_id=filler_id,
        image_settings=_IMAGES,
    )
    samples = [
        Played(
            group=trajectory.group_id or "0",
            trajectory_id=TrajectoryID(trajectory.group_id or "0", member),
            trajectories=(trajectory,),
        )
        for member, trajectory in enumerate(trajectories)
    ]
    output = to_output(samples, plan).output
    output["rollout_metrics"] = None
    validator: Any = validate_generator_output
    validator(len(samples), output, step_wise=plan.step_wise)
    return output


def _deliver(shape: Shape, placement: RewardPlacement) -> Deliver:
    def deliver(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
        output = rows_of_groups([trajectory], shape, filler_id=filler_id, placement=placement)
        return [_read(output, row) for row in range(len(output["response_ids"]))]

    return deliver


def _read(output: GeneratorOutput, row: int) -> DeliveredRow:
    last = output.get("is_last_step")
    return DeliveredRow(
        prompt_ids=output["prompt_token_ids"][row],
        response_ids=output["response_ids"][row],
        loss_mask=output["loss_masks"][row],
        logprobs=output["rollout_logprobs"][row],
        token_rewards=output["rewards"][row],
        tensors={key: output[key][row].numpy() for key in ("pixel_values", "image_grid_thw")},
        is_last=True if last is None else last[row],
        is_unscorable=output["stop_reasons"][-1] == ERROR,  # SkyRL reads rewards from the last row
    )


PROJECTIONS: Final = (
    Projection(
        name="skyrl",
        shape=Shape.WHOLE,
        deliver=_deliver(Shape.WHOLE, RewardPlacement.LAST),
        cannot_carry=frozenset({Content.SEQUENCES}),
    ),
    Projection(
        name="skyrl-steps",
        shape=Shape.STEPS,
        deliver=_deliver(Shape.STEPS, RewardPlacement.LAST),
    ),
    Projection(
        name="skyrl-turn-rewards",
        shape=Shape.CALLS,  # SkyRL discounts rewards from row to row
        deliver=_deliver(Shape.CALLS, RewardPlacement.TURNS),
        reward_placement=RewardPlacement.TURNS,
    ),
    Projection(
        name="skyrl-merged",
        shape=Shape.MERGED,
        deliver=_deliver(Shape.MERGED, RewardPlacement.LAST),
    ),
)
"""One row per trajectory, and step-wise rows (`generator.step_wise_trajectories`)."""
