"""Toy environments that other tests play: text, images, tools, and an asynchronous one.

All are deterministic, have a snapshot and an oracle, and register under `fakes/...` ids with
`register_toys()`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import gymnasium
from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.images import Image
from envkit.registration import register
from envkit.tasks import ListSource, Task
from envkit.toolcalls import call_errors, parse_tool_calls
from envkit.tools import tool

PROMISES = Capabilities(replay_safe=True, snapshot=True, deterministic=True, thread_safe=True)


class EchoEnv(Env):
    """Text only: repeat the word. Wrong replies are told so, until `max_turns`."""

    capabilities: ClassVar[Capabilities] = PROMISES
    system_prompt = "Answer with the word only."

    def __init__(self, *, max_turns: int = 3, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        words = ["alpha", "beta", "gamma", "delta", "épsilon", "七"]
        self.tasks = ListSource([{"word": word} for word in words])
        self._misses = 0

    def on_reset(self, task: Task) -> Turn:
        self._misses = 0
        return Turn(f"Repeat this word: {task['word']}")

    def on_turn(self, response_text: str) -> Turn:
        if response_text.strip() == self.task["word"]:
            return Turn("Right.", reward=1.0, done=True, info={"reward_terms": {"exact": 1.0}})
        self._misses += 1
        return Turn(f"Miss {self._misses}. The word is {self.task['word']}.")

    def get_state(self) -> dict[str, Any]:
        return {"misses": self._misses}

    def set_state(self, state: dict[str, Any]) -> None:
        self._misses = state["misses"]

    def oracle(self) -> Policy:
        return lambda context: context.task["word"]


class DotsEnv(Env):
    """A new image every turn: say how many dots it shows, `rounds` times in a row."""

    capabilities: ClassVar[Capabilities] = PROMISES

    def __init__(
        self, *, rounds: int = 3, max_turns: int = 5, size: int = 56, render_mode: str | None = None
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.rounds = rounds
        self.size = size
        self.dots = 0
        self._solved = 0

    def on_reset(self, task: Task) -> Turn:
        self._solved = 0
        return Turn("How many dots are there?", images=(self._draw(),))

    def on_turn(self, response_text: str) -> Turn:
        right = response_text.strip() == str(self.dots)
        self._solved += right
        if self._solved == self.rounds:
            return Turn("All counted.", reward=1.0, done=True)
        verdict = "Right." if right else f"Wrong: {self.dots}."
        error = None if response_text.strip().isdigit() else "the answer must be a number"
        text = f"{verdict} And now?"
        return Turn(text, images=(self._draw(),), info={"parse_error": error})

    def get_state(self) -> dict[str, Any]:
        return {"dots": self.dots, "solved": self._solved}

    def set_state(self, state: dict[str, Any]) -> None:
        self.dots, self._solved = state["dots"], state["solved"]

    def oracle(self) -> Policy:
        def reply(context: PolicyContext) -> str:
            return str(cast(DotsEnv, context.env.unwrapped).dots)

        return reply

    def _draw(self) -> Image:
        self.dots = int(self.np_random.integers(1, 10))
        picture = PilImage.new("RGB", (self.size, self.size), "white")
        pen = ImageDraw.Draw(picture)
        for _ in range(self.dots):
            x, y = (int(n) for n in self.np_random.integers(4, self.size - 4, size=2))
            pen.ellipse((x - 2, y - 2, x + 2, y + 2), fill="navy")
        return Image.from_pil(picture)


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


class AdderEnv(Env):
    """Tools: one right call of `add`, answered in the `tool` role, then the sum as plain text."""

    capabilities: ClassVar[Capabilities] = PROMISES
    tools = (add,)

    def __init__(self, *, max_turns: int = 4, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.tasks = ListSource([{"a": a, "b": 10 * a + 1} for a in range(1, 8)])

    def on_reset(self, task: Task) -> Turn:
        return Turn(f"What is {task['a']} + {task['b']}? Use the tool, then say the sum.")

    def on_turn(self, response_text: str) -> Turn:
        parsed = parse_tool_calls(response_text, tools=self.tools)
        if parsed.errors:
            return Turn(parsed.errors[0], role="tool", info={"parse_error": parsed.errors[0]})
        if not parsed.calls:
            right = parsed.text == str(self.task["a"] + self.task["b"])
            return Turn("Done.", reward=float(right), done=True)
        call = parsed.calls[0]
        errors = call_errors(call, self.tools)
        info = {"tool_call": call.to_json(), "parse_error": errors[0] if errors else None}
        text = errors[0] if errors else str(add(**call.arguments))
        return Turn(text, role="tool", info=info)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        del state

    def oracle(self) -> Policy:
        def reply(context: PolicyContext) -> str:
            a, b = context.task["a"], context.task["b"]
            if context.turn:
                return str(a + b)
            call = f'{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}'
            return f"<tool_call>\n{call}\n</tool_call>"

        return reply


class AsyncEchoEnv(AsyncEnv):
    """`EchoEnv` with asynchronous hooks."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        replay_safe=True, snapshot=True, deterministic=True
    )

    def __init__(self, *, max_turns: int = 3, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.tasks = ListSource([{"word": word} for word in ("red", "green", "blue")])
        self.closed = 0

    async def on_areset(self, task: Task) -> Turn:
        return Turn(f"Repeat this word: {task['word']}")

    async def on_aturn(self, response_text: str) -> Turn:
        right = response_text.strip() == self.task["word"]
        return Turn("Right." if right else "Wrong.", reward=float(right), done=right)

    async def aclose(self) -> None:
        self.closed += 1

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        del state

    def oracle(self) -> Policy:
        return lambda context: context.task["word"]


TOYS: dict[str, type[Env]] = {
    "toy-echo-v0": EchoEnv,
    "toy-dots-v0": DotsEnv,
    "toy-adder-v0": AdderEnv,
    "toy-async-echo-v0": AsyncEchoEnv,
}
"""Ids that `register_toys` makes known to `envkit.make` and `gymnasium.make`."""


def register_toys(others: Mapping[str, type[Env]] | None = None) -> None:
    """Register the toys, and others by their ids, all of which pay 1.0 for a solved task.

    A second call changes nothing.
    """
    register_missing({**TOYS, **(others or {})}, reward_threshold=1.0)


def register_missing(envs: Mapping[str, type[Env]], **settings: Any) -> None:
    """Register environments by their ids, except those that are registered already."""
    for env_id, env_class in envs.items():
        if f"envkit/{env_id}" not in gymnasium.registry:
            register(env_id, entry_point=env_class, **settings)
