"""Run the tools that a model calls.

`ToolSet` says which tools there are and under which limits; a `ToolRunner` runs the calls of a
reply; `load_tools` reads a set from a Python file or a configuration. Whatever a model writes and
whatever a tool raises becomes a `ToolResult` for the next observation. Only a `Fault` goes through:
that is a tool's way to say that its backend, and not the call, failed.
"""

from envkit.toolset.loading import load_tools
from envkit.toolset.result import CallStatus, ToolResult
from envkit.toolset.runner import ToolRunner
from envkit.toolset.tool_set import ToolSet

__all__ = ["CallStatus", "ToolResult", "ToolRunner", "ToolSet", "load_tools"]
