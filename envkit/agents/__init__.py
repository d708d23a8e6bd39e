"""Several agents in one episode: the author's contract and the rewards."""

from envkit.agents.env import MultiAgentEnv
from envkit.agents.rewards import (
    UNADJUSTED,
    AdjustRewards,
    adjusted,
    credit,
    load_adjust,
    share_one_reward,
    team_last,
    team_mean,
    with_total,
)
from envkit.agents.role_env import RoleEnv, RolePolicy, by_role

__all__ = [
    "UNADJUSTED",
    "AdjustRewards",
    "MultiAgentEnv",
    "RoleEnv",
    "RolePolicy",
    "adjusted",
    "by_role",
    "credit",
    "load_adjust",
    "share_one_reward",
    "team_last",
    "team_mean",
    "with_total",
]
