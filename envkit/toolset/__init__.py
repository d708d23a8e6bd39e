"""Run the tools that a model calls.

A `ToolSet` holds tools and their limits, a `ToolRunner` runs the calls of a reply, and `load_tools`
reads a set from a Python file or a configuration. Bad calls and exceptions of tools become a
`ToolResult` for the next observation. Only a `Fault` propagates: a tool raises it to report that
its backend, not the call, failed.
"""

from envkit.toolset.loading import load_tools
from envkit.toolset.result import CallStatus, ToolResult
from envkit.toolset.runner import ToolRunner
from envkit.toolset.tool_set import ToolSet

__all__ = ["CallStatus", "ToolResult", "ToolRunner", "ToolSet", "load_tools"]
