"""Run a smolagents agent on the task of this folder.

Usage: `run_smolagents.py [module:agent]`. Without an agent it runs a `CodeAgent` without further
tools. It imports nothing from envkit.
"""

import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

import PIL.Image
from smolagents import CodeAgent, OpenAIModel


def main(arguments: list[str]) -> None:
    """Leave the agent's answer in a file, because the agent prints its steps."""
    images = [PIL.Image.open(path) for path in sorted(Path().glob("image-*.png"))]
    agent: Any = (
        pkgutil.resolve_name(arguments[0])
        if arguments
        else CodeAgent(tools=[], model=OpenAIModel(os.environ["ENVKIT_MODEL"]))
    )
    task = Path("instructions.txt").read_text("utf-8")
    Path("answer.txt").write_text(str(agent.run(task, images=images or None)), encoding="utf-8")


main(sys.argv[1:])
