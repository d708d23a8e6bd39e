"""Rolling out: engines, the one loop, limits, retries and the runner."""

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
from envkit.rollout.play import play, resume
from envkit.rollout.retries import Backoff, RetryBudget
from envkit.rollout.runner import FaultPolicy, RolloutState, collect
from envkit.rollout.scripted import ScriptedEngine

__all__ = [
    "Backoff",
    "Engine",
    "FaultPolicy",
    "FinishReason",
    "GenerateRequest",
    "Generation",
    "Interrupt",
    "Limits",
    "LogprobKind",
    "RetryBudget",
    "RolloutState",
    "Sampling",
    "ScriptedEngine",
    "collect",
    "play",
    "resume",
]
