"""Text environments for TRL's tests: with varied rewards, failing, broken, and endless."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from fakes.envs import register_missing

from envkit.env import Capabilities, Env, Policy, Turn
from envkit.errors import EnvFault
from envkit.images import Image
from envkit.tasks import ListSource, Task

SAFE = Capabilities(thread_safe=True, replay_safe=True, deterministic=True)


class LettersEnv(Env):
    """Rewards the share of letters in each reply, so that random replies differ in reward."""

    capabilities: ClassVar[Capabilities] = SAFE
    system_prompt = "Write letters."

    def __init__(self, *, max_turns: int = 3, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.tasks = ListSource([{"name": name} for name in ("ann", "bob", "cy", "dee")])

    def on_reset(self, task: Task) -> Turn:
        return Turn(f"Hello {task['name']}.")

    def on_turn(self, response_text: str) -> Turn:
        letters = sum(character.isalpha() for character in response_text)
        return Turn(f"{letters} letters.", reward=letters / max(1, len(response_text)))

    def oracle(self) -> Policy:
        return lambda context: "abc"


class PicturedLettersEnv(LettersEnv):
    """Shows a new image every turn, half of them the same in all episodes."""

    def on_reset(self, task: Task) -> Turn:
        return replace(super().on_reset(task), images=(_image(0, 0),))

    def on_turn(self, response_text: str) -> Turn:
        shade = self.turn * 40 + len(response_text)
        return replace(super().on_turn(response_text), images=(_image(self.turn, shade),))


def _image(turn: int, shade: int) -> Image:
    pixels = np.full((28, 28 * (1 + turn % 2), 3), 30 * turn, np.uint8)
    pixels[:14] = shade
    return Image.from_array(pixels)


class NamingEnv(LettersEnv):
    """Has a system prompt of its own for each task."""

    def on_reset(self, task: Task) -> Turn:
        self.system_prompt = f"Write to {task['name']}."
        return super().on_reset(task)


class FlakyEnv(LettersEnv):
    """Its backend is gone at the second turn of bob's task, whatever is tried."""

    def on_turn(self, response_text: str) -> Turn:
        if self.turn == 1 and self.task["name"] == "bob":
            raise EnvFault("the backend is gone")
        return super().on_turn(response_text)


class UnluckyEnv(LettersEnv):
    """Fails for every reply that begins with an even character code."""

    def on_turn(self, response_text: str) -> Turn:
        if self.turn == 0 and ord((response_text or "b")[0]) % 2 == 0:
            raise EnvFault("the backend is gone")
        return super().on_turn(response_text)


class DeadEnv(LettersEnv):
    """Never starts."""

    def on_reset(self, task: Task) -> Turn:
        raise EnvFault("there is no backend")


class BrokenEnv(LettersEnv):
    """Breaks the contract of its hook."""

    def on_turn(self, response_text: str) -> Turn:
        answer: Any = "not a turn"
        return answer


ENVS: dict[str, type[Env]] = {
    "toy-letters-v0": LettersEnv,
    "toy-pictured-letters-v0": PicturedLettersEnv,
    "toy-naming-letters-v0": NamingEnv,
    "toy-flaky-letters-v0": FlakyEnv,
    "toy-unlucky-letters-v0": UnluckyEnv,
    "toy-dead-letters-v0": DeadEnv,
    "toy-broken-letters-v0": BrokenEnv,
}


def register_trl_envs() -> None:
    """Register them; a second call changes nothing."""
    register_missing(ENVS)
