"""What engines of HTTP generation servers share: requests, faults, checks, and a router.

An adapter (`envkit_sglang`, `envkit_vllm`) adds a `Dialect`: what is written and read. Everything
else is here once: connections, deadlines, aborts, the ledger's checks, and several servers as one.
"""

from envkit_remote.dialect import Dialect, Outgoing
from envkit_remote.engine import RemoteEngine
from envkit_remote.facts import FlagCheck, ServerHealth, ServerInfo
from envkit_remote.model import connect
from envkit_remote.router import RoutedEngine

__all__ = [
    "Dialect",
    "FlagCheck",
    "Outgoing",
    "RemoteEngine",
    "RoutedEngine",
    "ServerHealth",
    "ServerInfo",
    "connect",
]
