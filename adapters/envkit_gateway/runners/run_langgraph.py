"""Run a LangGraph agent on the task of this folder.

Usage: `run_langgraph.py [module:graph]`. Without a graph it runs langchain's agent with a tool that
runs commands. It imports nothing from envkit.
"""

import base64
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def bash(command: str) -> str:
    """Run a command with bash in the current folder, and return its output and exit status."""
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, errors="replace", check=False
    )
    return f"{ended.stdout}{ended.stderr}\nexit status {ended.returncode}"


def main(arguments: list[str]) -> None:
    """Print the agent's answer."""
    content: list[Any] = [{"type": "text", "text": Path("instructions.txt").read_text("utf-8")}]
    for image in sorted(Path().glob("image-*.png")):
        data = base64.b64encode(image.read_bytes()).decode()
        content.append({"type": "image", "base64": data, "mime_type": "image/png"})
    graph: Any = (
        pkgutil.resolve_name(arguments[0])
        if arguments
        else create_agent(ChatOpenAI(model=os.environ["ENVKIT_MODEL"]), [bash])
    )
    state = graph.invoke({"messages": [HumanMessage(content=content)]})
    print(state["messages"][-1].text)  # noqa: T201


main(sys.argv[1:])
