"""Rollouts: engines, the loop, limits, retries, players and runs."""

from envkit.rollout.availability import Outage, availability_of
from envkit.rollout.breaker import BreakerSettings
from envkit.rollout.config import FaultPolicy, RolloutConfig
from envkit.rollout.engine import (
    CheckingEngine,
    Engine,
    FinishReason,
    GenerateRequest,
    Generation,
    LogprobKind,
    ProbingEngine,
    Sampling,
)
from envkit.rollout.history import (
    HistoryView,
    KeepLastImages,
    KeepLastTurns,
    Question,
    Summarise,
)
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Backoff, Limits, RetryBudget
from envkit.rollout.multi_agent import can_resume, has_role, rollout_id_of
from envkit.rollout.plan import Progress, RolloutState, RunPlan, Shard
from envkit.rollout.player import Player, play, play_through, resume
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest, read_requests
from envkit.rollout.run import Run, collect, delivered
from envkit.rollout.scripted import ScriptedEngine
from envkit.rollout.setup import EpisodeSpec, GroupStart, RolePlan
from envkit.rollout.sources import EnvSource
from envkit.rollout.staleness import Stale
from envkit.rollout.tail import ParkedGroup, Stragglers, Tail
from envkit.rollout.tree import AtTurns, ByEntropy, play_tree
from envkit.trajectory.trajectory import role_of

__all__ = [
    "ENVKIT_COLUMN",
    "AtTurns",
    "Backoff",
    "BreakerSettings",
    "ByEntropy",
    "CheckingEngine",
    "Engine",
    "EnvSource",
    "EpisodeRequest",
    "EpisodeSpec",
    "FaultPolicy",
    "FinishReason",
    "GenerateRequest",
    "Generation",
    "GroupStart",
    "HistoryView",
    "Interrupt",
    "KeepLastImages",
    "KeepLastTurns",
    "Limits",
    "LogprobKind",
    "Outage",
    "ParkedGroup",
    "Player",
    "ProbingEngine",
    "Progress",
    "Question",
    "RetryBudget",
    "RolePlan",
    "RolloutConfig",
    "RolloutState",
    "Run",
    "RunPlan",
    "Sampling",
    "ScriptedEngine",
    "Shard",
    "Stale",
    "Stragglers",
    "Summarise",
    "Tail",
    "availability_of",
    "can_resume",
    "collect",
    "delivered",
    "has_role",
    "play",
    "play_through",
    "play_tree",
    "read_requests",
    "resume",
    "role_of",
    "rollout_id_of",
]
