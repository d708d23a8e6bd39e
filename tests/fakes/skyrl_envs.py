"""Environments of the SkyRL tests: what happens is what the reply says."""

from collections import Counter
from typing import Any, ClassVar

from fakes.envs import register_missing
from fakes.verl_envs import COLOURS
from PIL import Image as PilImage

from envkit.env import Capabilities, Env, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.images import Image
from envkit.tasks import ListSource, Task

WORLD: Counter[str] = Counter()
"""What outlives the environments: how many were built and closed."""


class ObeyEnv(Env):
    """Do what the reply says, for `rounds` turns; "good" is worth 0.25 a turn.

    "boom" is a backend that fails for good, "flaky" one that fails once, "crash" a bug, "end" ends
    the episode at once, and anything else is worth nothing. With `pictures` each observation shows
    a colour, and its name is worth 0.25 too. `padding` repeats a word in every observation.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, replay_safe=True, snapshot=True, deterministic=True
    )
    system_prompt = "Obey."
    flaked: ClassVar[set[str]] = set()

    def __init__(
        self,
        *,
        rounds: int = 3,
        max_turns: int = 8,
        pictures: bool = False,
        padding: int = 0,
        first: int = 0,
        last_words: bool = False,
    ) -> None:
        super().__init__(max_turns=max_turns)
        self.rounds, self.pictures, self.padding = rounds, pictures, padding
        self.first, self.last_words = first, last_words
        self.tasks = ListSource([{"name": f"task {n}"} for n in range(6)])
        self.shown: list[str] = []
        WORLD["built"] += 1

    def on_reset(self, task: Task) -> Turn:
        self.shown = []
        return self._turn(f"Do {task['name']}." + " more" * self.first)

    def on_turn(self, response_text: str) -> Turn:
        reply = response_text.strip()
        if reply == "boom":
            raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)
        if reply == "crash":
            raise RuntimeError("a bug")
        if reply.startswith("flaky") and reply not in self.flaked:
            self.flaked.add(reply)
            raise EnvFault("try again", kind=FaultKind.TRANSIENT)
        right = reply == "good" or (self.pictures and reply == self.shown[-1])
        reward = 0.25 if right else 0.0
        done = reply == "end" or self.turn + 1 == self.rounds
        if done:
            return Turn("It is over." if self.last_words else "", reward=reward, done=True)
        info = {"parse_error": "huh" if reply == "?" else None, "reward_terms": {"right": reward}}
        return self._turn("Go on.", reward=reward, info=info)

    def get_state(self) -> dict[str, Any]:
        return {"shown": self.shown}

    def set_state(self, state: dict[str, Any]) -> None:
        self.shown = state["shown"]

    def close(self) -> None:
        WORLD["closed"] += 1

    def _turn(self, text: str, **fields: Any) -> Turn:
        text += " pad" * self.padding
        if not self.pictures:
            return Turn(text, **fields)
        name = list(COLOURS)[int(self.np_random.integers(3))]
        self.shown.append(name)
        picture = PilImage.new("RGB", (56 + 28 * len(self.shown), 56), COLOURS[name])
        return Turn(text, images=(Image.from_pil(picture),), **fields)


class PlainEnv(ObeyEnv):
    """Promises nothing: each instance keeps its own thread, and a failed step is lost."""

    capabilities: ClassVar[Capabilities] = Capabilities()


class BrokenEnv(Env):
    """Cannot be built."""

    def __init__(self) -> None:
        raise OSError("no display")


def register_skyrl_envs() -> None:
    """Register them; a second call changes nothing."""
    register_missing({"obey-v0": ObeyEnv, "plain-v0": PlainEnv, "broken-v0": BrokenEnv})
