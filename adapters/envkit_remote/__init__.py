"""Shared code of engines for HTTP generation servers: requests, faults, checks, and a router.

An adapter (`envkit_sglang`, `envkit_vllm`) adds a `Dialect`: request and answer formats. Everything
else is here: connections, deadlines, aborts, the ledger's checks, and several servers as one.
"""

from envkit_remote.dialect import Dialect, FlagCheck, Outgoing, ServerHealth, ServerInfo
from envkit_remote.engine import RemoteEngine
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
