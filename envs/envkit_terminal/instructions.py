"""What a model reads about the terminal."""

from typing import Final

from envkit_sandbox.commands import Protocol, bash_tool

BASH: Final = bash_tool(
    "Run a command in your shell and return its output and exit code. The shell keeps its folder "
    "and variables between calls."
)


def system_prompt(protocol: Protocol) -> str:
    """Return the instructions for a model."""
    how = (
        "Call the tool bash to run a command."
        if protocol is Protocol.TOOLS
        else "Write a command in a code block that begins with ```bash; it runs in your shell."
    )
    return (
        "You work in a Linux terminal without network. "
        f"{how} Its output and exit code are your next input. The shell keeps its folder and "
        "variables. Commands cannot ask for input. When the task is done, reply without a command."
    )
