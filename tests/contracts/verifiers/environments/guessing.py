"""A game of several turns without a limit of its own; the prompt has an image."""

import base64
import io
from importlib import import_module
from typing import Any

from datasets import Dataset
from PIL import Image

vf: Any = import_module("verifiers")  # this folder has the library's name for type checkers


class GuessEnv(vf.MultiTurnEnv):
    async def setup_state(self, state: Any) -> None:
        state["guesses"] = 0

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> list[Any]:
        state["guesses"] += 1
        said = str(messages[-1].content)
        if said == "crash":
            raise RuntimeError("the game board is on fire")
        if said == "sandbox":
            raise vf.SandboxError("the sandbox is gone")
        if said == state["answer"]:
            state["final_env_response"] = [vf.UserMessage(content="Right.")]
            return state["final_env_response"]
        hint = "higher" if int(said) < int(state["answer"]) else "lower"
        return [vf.UserMessage(content=hint)]


def _question(number: int) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.new("L", (8, 8 + number)).save(buffer, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [
        {"type": "text", "text": "Guess my number.", "image_url": None},
        {"type": "image_url", "text": None, "image_url": {"url": uri}},
    ]
    return {"prompt": [{"role": "user", "content": content}], "answer": str(number)}


def load_environment() -> Any:
    def solved(state: Any) -> float:
        return 1.0 if state.get("final_env_response") else 0.1 / state["guesses"]

    return GuessEnv(
        eval_dataset=Dataset.from_list([_question(number) for number in range(4)]),
        rubric=vf.Rubric(funcs=[solved]),
    )
