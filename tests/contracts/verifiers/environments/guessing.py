"""A game of several turns without a limit of its own; the prompt has an image."""

import base64
import io
from importlib import import_module
from typing import Any

from PIL import Image

vf: Any = import_module("verifiers.v1")  # this folder has the library's name for type checkers


class GuessingData(vf.TaskData):
    answer: str


class GuessingTask(vf.Task[GuessingData]):
    @vf.reward
    async def solved(self, trace: Any) -> float:
        said = [message.content for message in trace.assistant_messages]
        return 1.0 if said[-1] == self.data.answer else 0.1 / len(said)


class GuessingEnv(vf.SingleAgentEnv):
    async def run(self, task: Any, agents: Any) -> None:
        async with agents.agent.interaction(task) as game:
            segment = await game.turn()
            while not segment.terminated:
                said = segment.last_reply
                if said == "crash":
                    raise RuntimeError("the game board is on fire")
                if said == "sandbox":
                    raise vf.SandboxError("the sandbox is gone")
                if said == task.data.answer:
                    break
                hint = "higher" if int(said) < int(task.data.answer) else "lower"
                segment = await game.turn(hint)


def _question(number: int) -> Any:
    buffer = io.BytesIO()
    Image.new("L", (8, 8 + number)).save(buffer, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    parts = [
        {"type": "text", "text": "Guess my number."},
        {"type": "image_url", "image_url": {"url": uri}},
    ]
    prompt = [{"role": "user", "content": parts}]
    return GuessingTask(GuessingData(prompt=prompt, answer=str(number)))


class GuessingTaskset(vf.Taskset[GuessingTask]):
    def load(self) -> list[Any]:
        return [_question(number) for number in range(4)]


__all__ = ["GuessingEnv", "GuessingTaskset"]
