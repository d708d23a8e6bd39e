"""An exact gateway for external agents: they speak HTTP, and envkit records tokens."""

from envkit_gateway.agents import AgentResult, AgentSettings, AgentTask
from envkit_gateway.harnesses import Harness
from envkit_gateway.kinds import Train
from envkit_gateway.playing import AgentPlayer
from envkit_gateway.server import Gateway
from envkit_gateway.session import Session, SessionLimits

__all__ = [
    "AgentPlayer",
    "AgentResult",
    "AgentSettings",
    "AgentTask",
    "Gateway",
    "Harness",
    "Session",
    "SessionLimits",
    "Train",
]
