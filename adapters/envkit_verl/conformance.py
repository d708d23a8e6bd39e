"""verl's `AgentLoopOutput` for envkit's conformance suite: written, then read back."""

import asyncio
from typing import Any, Final

from envkit.images import Image
from envkit.trajectory import RewardPlacement, Trajectory
from envkit_conformance import Deliver, DeliveredRow, Projection, Shape

# if verl is missing, raises an error that says what to install
from envkit_verl import EpisodeOutput
from envkit_verl.groups import Group
from envkit_verl.output import outputs_of
from envkit_verl.rows import Delivery
from envkit_verl.settings import VLLM, VerlSettings

SETTINGS: Final = VerlSettings(
    prompt_length=8192, response_length=8192, max_model_len=None, max_turns=None, backend=VLLM
)


def _deliver(placement: RewardPlacement) -> Deliver:
    def deliver(trajectory: Trajectory, *, filler_id: int) -> list[DeliveredRow]:
        delivery = Delivery(settings=SETTINGS, filler_id=filler_id, is_v1=True, placement=placement)
        outputs = asyncio.run(outputs_of([trajectory], Group().join(), delivery))
        return [_read(one, is_last=one is outputs[-1]) for one in outputs]

    return deliver


def _read(output: EpisodeOutput, *, is_last: bool) -> DeliveredRow:
    """Read a row as V1 stores it: the columns of `as_dict`; V0 also reads `reward_score`."""
    given: Any = output
    columns = given.as_dict()
    images = (given.multi_modal_data or {}).get("images")
    return DeliveredRow(
        prompt_ids=columns["prompts"].tolist(),
        response_ids=columns["responses"].tolist(),
        loss_mask=columns["response_mask"].tolist(),
        logprobs=columns["rollout_log_probs"].tolist(),
        reward=given.reward_score,
        token_rewards=columns["rm_scores"].tolist(),
        images=None if images is None else [Image.from_pil(one) for one in images],
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
"""With rewards per turn, and with one reward at the end (`rewards` of the loop's YAML)."""
