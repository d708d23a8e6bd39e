"""An environment that tells what it hears of each reply, and models that open a thought."""

import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

from envkit.env import Capabilities, Env, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.tasks import Task
from envkit.tokens import ChatCodec, load_codec
from envkit_transformers import builtin_model_dir


class Hearing(Env):
    """Returns as info how each reply ended and what of it was thought."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)
    failing: ClassVar[set[int]] = set()
    """Turns whose next step fails; each fails once."""

    def __init__(self, *, max_turns: int = 4, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.heard: list[str] = []

    def on_reset(self, task: Task) -> Turn:
        self.heard = []
        return Turn("Say something.")

    def on_turn(self, response_text: str) -> Turn:
        assert self.reply.text == response_text
        if self.turn in self.failing:
            self.failing.remove(self.turn)
            raise EnvFault("the backend is away", kind=FaultKind.TRANSIENT)
        self.heard.append(self.reply.finish.value)
        told: dict[str, Any] = {
            "finish": self.reply.finish.value,
            "is_cut": self.reply.is_cut,
            "thinking": self.reply.thinking,
            "answer": self.reply.answer,
            "heard": list(self.heard),
        }
        return Turn(f"Heard {self.heard}.", reward=float("gold" in self.reply.final), info=told)

    def get_state(self) -> dict[str, Any]:
        return {"heard": self.heard}

    def set_state(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"]


class SavedHearing(Hearing):
    """The same, restored from snapshots."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=True, deterministic=True)


@cache
def thinking_model_dir() -> Path:
    """Return a copy of the built-in model whose template opens a thought before each reply."""
    folder = Path(mkdtemp()) / "thinking"
    shutil.copytree(builtin_model_dir(), folder)
    template = folder / "chat_template.jinja"
    text = template.read_text()
    opening = "'<|im_start|>assistant\\n'"
    assert opening in text
    template.write_text(text.replace(opening, "'<|im_start|>assistant\\n<think>\\n'"))
    return folder


@cache
def thinking_codec() -> ChatCodec:
    """Return the codec of a model whose prompts open a thought."""
    return load_codec(thinking_model_dir())


@cache
def plain_codec() -> ChatCodec:
    """Return the codec of the same model without thoughts."""
    return load_codec(builtin_model_dir())
