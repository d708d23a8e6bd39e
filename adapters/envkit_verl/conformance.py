"""verl's `AgentLoopOutput` for envkit's conformance suite: made by the adapter, then read back."""

from typing import Any, Final

from envkit.conformance import Deliver, DeliveredRow, Projection, Shape
from envkit.images import Image
from envkit.trajectory import RewardPlacement, Trajectory
from envkit_verl import EpisodeOutput  # says what to install where verl is missing
from envkit_verl.output import Scored, outputs_of, rows_for
from envkit_verl.settings import VLLM, VerlSettings

_STAND_IN: Final = 0.5
"""The reward of a sample that does not count, in a group whose others have this mean."""
_SETTINGS: Final = VerlSettings(
    prompt_length=8192, response_length=8192, max_model_len=None, max_turns=None, backend=VLLM
)


def _deliver(placement: RewardPlacement) -> Deliver:
    def deliver(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
        rows, problem = rows_for(trajectory, _SETTINGS, filler_id=filler_id)
        scored = Scored(
            trajectory=trajectory,
            rows=rows,
            problem=problem,
            reward=_STAND_IN if problem is not None else float(trajectory.reward or 0.0),
        )
        outputs = outputs_of(
            scored,
            _SETTINGS,
            placement=placement,
            with_logprobs=True,
            global_steps=0,
            routing_shape=None,
            mm_processor_kwargs={},
        )
        return [_read(one, is_last=one is outputs[-1]) for one in outputs]

    return deliver


def _read(output: EpisodeOutput, *, is_last: bool) -> DeliveredRow:
    """Read a row as V1 stores it: the columns of `as_dict`; V0 reads `reward_score` besides."""
    given: Any = output
    columns = given.as_dict()
    pictures = (given.multi_modal_data or {}).get("images")
    return DeliveredRow(
        prompt_ids=columns["prompts"].tolist(),
        response_ids=columns["responses"].tolist(),
        loss_mask=columns["response_mask"].tolist(),
        logprobs=columns["rollout_log_probs"].tolist(),
        reward=given.reward_score,
        token_rewards=columns["rm_scores"].tolist(),
        images=None if pictures is None else [Image.from_pil(one) for one in pictures],
        is_last=is_last,
        is_unscorable=bool(given.extra_fields["envkit_failed"]),
    )


PROJECTIONS: Final = tuple(
    Projection(
        name=f"verl-{placement.value}",
        shape=Shape.MERGED,
        deliver=_deliver(placement),
        reward_placement=placement,
        rewards_every_row=True,
    )
    for placement in (RewardPlacement.TURNS, RewardPlacement.LAST)
)
"""With the rewards of turns, and with one reward at the end (`rewards` of the loop's YAML)."""
