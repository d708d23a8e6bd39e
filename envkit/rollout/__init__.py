"""Rolling out: engines, the one loop, limits, retries and the runner."""

from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import (
    Engine,
    FinishReason,
    GenerateRequest,
    Generation,
    LogprobKind,
    Sampling,
)
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Limits
from envkit.rollout.play import play, play_agents, resume
from envkit.rollout.player import Player
from envkit.rollout.request import ENVKIT_COLUMN, EnvSource, EpisodeRequest
from envkit.rollout.retries import Backoff, RetryBudget
from envkit.rollout.runner import FaultPolicy, RolloutState, collect
from envkit.rollout.scripted import ScriptedEngine
from envkit.rollout.setup import GroupStart, RolePlan
from envkit.rollout.shared import is_shared, role_of, rollout_id_of

__all__ = [
    "ENVKIT_COLUMN",
    "Backoff",
    "Engine",
    "EnvSource",
    "EpisodeRequest",
    "FaultPolicy",
    "FinishReason",
    "GenerateRequest",
    "Generation",
    "GroupStart",
    "Interrupt",
    "Limits",
    "LogprobKind",
    "Player",
    "RetryBudget",
    "RolePlan",
    "RolloutConfig",
    "RolloutState",
    "Sampling",
    "ScriptedEngine",
    "collect",
    "is_shared",
    "play",
    "play_agents",
    "resume",
    "role_of",
    "rollout_id_of",
]
