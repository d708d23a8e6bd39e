"""Plays of terminal tasks to their end."""

from typing import Any

from envkit.env import Step
from envkit_sandbox.commands import write
from envkit_terminal import TerminalEnv


def left(task: dict[str, Any], *commands: str, **arguments: Any) -> Step:
    """Play commands in a new environment, then end the episode."""
    env = TerminalEnv(tasks=[task], command_seconds=10.0, **arguments)
    try:
        env.reset(seed=1)
        for command in commands:
            env.step(write(command, env.protocol))
        return env.step("Done.")
    finally:
        env.close()
