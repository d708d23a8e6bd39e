"""verl's `AgentLoopOutput` for the rows of an episode."""

from collections.abc import Sequence
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from envkit.trajectory import Trajectory
from envkit_verl.groups import Member
from envkit_verl.rows import Delivery, rows_of


class EpisodeOutput(AgentLoopOutput):
    """One training row, with a reward per response token.

    The V1 worker stores `as_dict()`, so `rm_scores` reaches the trainer with the reward of each
    turn on the turn's last token. The V0 worker takes the scalar `reward_score`.
    """

    token_rewards: list[float]  # as long as response_ids

    def as_dict(self) -> dict[str, Any]:
        """Return the row's columns; from verl 0.8.0, which calls it from 0.9.0 on."""
        columns = super().as_dict()
        rewards = columns.pop("token_rewards")
        columns["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return columns


async def outputs_of(
    played: Sequence[Trajectory], member: Member, delivery: Delivery
) -> list[EpisodeOutput]:
    """Return the rows of an episode; see `rows_of`."""
    return [EpisodeOutput(**fields) for fields in await rows_of(played, member, delivery)]
