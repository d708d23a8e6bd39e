"""MCP's real packages, or no test of this folder at all."""

import importlib.util
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("mcp") is None:  # `make contract-mcp` provides an environment with it
    collect_ignore_glob.append("test_*.py")

ODD: Final = Path(__file__).parents[2] / "fakes" / "mcp_odd_server.py"
NAME: Final = "ENVKIT_MCP_PROGRAMS"


def odd(defect: str = "none", **fields: Any) -> dict[str, Any]:
    """Return the declaration of the server with a defect."""
    return {"command": [sys.executable, str(ODD), defect], **fields}


def python_server(name: str) -> list[str]:
    """Return the command of a server from the Python package index."""
    return [sys.executable, "-m", name.replace("-", "_")]


@pytest.fixture
def npm() -> Callable[[str], list[str]]:
    """Return commands of programs from npm, or skip the test."""
    folder = os.environ.get(NAME)
    if folder is None:
        pytest.skip("programs from npm are added by `make contract-mcp`, where npm is installed")

    def command(name: str) -> list[str]:
        return [str(Path(folder) / name)]

    return command


@pytest.fixture
async def started() -> AsyncGenerator[Any]:
    """Start servers, given as for `mcp-v0`; they end with the test."""
    from envkit_mcp import McpLimits, McpTools
    from envkit_mcp.declaration import read_servers

    made: list[McpTools] = []

    async def start(
        servers: Mapping[str, Any], files: Mapping[str, str] | None = None, **limits: Any
    ) -> McpTools:
        tools = McpTools(read_servers(servers), McpLimits(**limits))
        made.append(tools)
        await tools.start(files)
        return tools

    yield start
    for tools in made:
        await tools.stop()
