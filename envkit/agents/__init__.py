"""Several agents in one episode: the authors' contract, the table they sit at, their rewards."""

from envkit.agents.env import MultiAgentEnv
from envkit.agents.policy import RolePolicy, by_role
from envkit.agents.rewards import (
    UNADJUSTED,
    AdjustRewards,
    credit,
    earned,
    load_adjust,
    share_one_reward,
    team_last,
    team_mean,
    with_total,
)
from envkit.agents.seat import Seat
from envkit.agents.table import Table, Verdict

__all__ = [
    "UNADJUSTED",
    "AdjustRewards",
    "MultiAgentEnv",
    "RolePolicy",
    "Seat",
    "Table",
    "Verdict",
    "by_role",
    "credit",
    "earned",
    "load_adjust",
    "share_one_reward",
    "team_last",
    "team_mean",
    "with_total",
]
