"""MCP in both directions: tools from its servers, and environments as its servers.

`mcp-v0` plays tasks over servers; `McpTools` gives any environment their tools;
`envkit_mcp.serving` serves an environment.
"""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names
from envkit.registration import EnvSpec
from envkit_mcp.declaration import McpLimits, McpServer

if TYPE_CHECKING:
    from envkit_mcp.env import McpEnv
    from envkit_mcp.tools import McpTools

SPEC = EnvSpec(
    id="mcp-v0",
    entry_point="envkit_mcp.env:McpEnv",
    description="Tasks over MCP servers, given as servers=.",
    nondeterministic=True,
)

__all__ = ["SPEC", "McpEnv", "McpLimits", "McpServer", "McpTools"]

__getattr__, __dir__ = lazy_names(__name__, {"McpEnv": ".env", "McpTools": ".tools"})
