"""Environments for the verl tests: images that a fake server can really read, and failures."""

from typing import Any, ClassVar

from fakes.envs import register_missing
from PIL import Image as PilImage

from envkit.env import Capabilities, Env, Policy, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.images import Image
from envkit.tasks import ListSource, Task

PROMISES = Capabilities(replay_safe=True, snapshot=True, deterministic=True, thread_safe=True)
COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250)}


def colour_of(picture: Any) -> str:
    """Return the name of an image's colour, as a policy that sees would."""
    pixel = picture.convert("RGB").getpixel((1, 1))
    return next(name for name, value in COLOURS.items() if value == pixel)


class ColoursEnv(Env):
    """Name the colour of a new image in every turn; each right name gives 1 / rounds.

    The images differ in size, so that their token counts do.
    """

    capabilities: ClassVar[Capabilities] = PROMISES
    system_prompt = "Name the colour."

    def __init__(
        self, *, rounds: int = 3, max_turns: int = 6, grey: bool = False, side: int = 56
    ) -> None:
        super().__init__(max_turns=max_turns)
        self.rounds, self.grey, self.side = rounds, grey, side
        self.shown: list[str] = []

    def on_reset(self, task: Task) -> Turn:
        self.shown = []
        return Turn("Which colour?", images=(self._draw(),))

    def on_turn(self, response_text: str) -> Turn:
        right = response_text.strip() == self.shown[-1]
        reward = 1.0 / self.rounds if right else 0.0
        if len(self.shown) == self.rounds:
            return Turn("", reward=reward, done=True)
        return Turn("And now?", images=(self._draw(),), reward=reward)

    def get_state(self) -> dict[str, Any]:
        return {"shown": self.shown}

    def set_state(self, state: dict[str, Any]) -> None:
        self.shown = state["shown"]

    def _draw(self) -> Image:
        name = list(COLOURS)[int(self.np_random.integers(3))]
        self.shown.append(name)
        size = (self.side + 28 * len(self.shown), self.side)
        if self.grey:
            return Image.from_pil(PilImage.new("L", size, 40 * len(self.shown)))
        return Image.from_pil(PilImage.new("RGB", size, COLOURS[name]))


class StepsEnv(Env):
    """Text only: say "up" `rounds` times; every "up" gives 0.25, and the last one ends it.

    `padding` repeats a word in every observation, `fails_at` raises in that turn (from 0; -1 is the
    reset), and `fails_for` limits the failures to that many instances, shared by the process.
    """

    capabilities: ClassVar[Capabilities] = PROMISES
    failures: ClassVar[dict[str, int]] = {}

    def __init__(
        self,
        *,
        rounds: int = 3,
        max_turns: int = 8,
        padding: int = 0,
        prompt_padding: int = 0,
        fails_at: int | None = None,
        fails_for: int | None = None,
        tag: str = "",
    ) -> None:
        super().__init__(max_turns=max_turns)
        self.tasks = ListSource([{"goal": rounds}])
        self.rounds, self.padding, self.prompt_padding = rounds, padding, prompt_padding
        self.fails_at, self.fails_for, self.tag = fails_at, fails_for, tag
        self.fails = False

    def on_reset(self, task: Task) -> Turn:
        if self.fails_at is not None and self.turn == 0 and not self.fails:
            seen = StepsEnv.failures.get(self.tag, 0)
            self.fails = self.fails_for is None or seen < self.fails_for
            StepsEnv.failures[self.tag] = seen + 1
        if self.fails and self.fails_at == -1:
            raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)
        return Turn("Say up." + " word" * self.prompt_padding)

    def on_turn(self, response_text: str) -> Turn:
        if self.fails and self.turn == self.fails_at:
            raise EnvFault("the backend is gone", kind=FaultKind.PERMANENT)
        reward = 0.25 if "up" in response_text else 0.0
        done = self.turn + 1 >= self.rounds
        return Turn("Again." + " word" * self.padding, reward=reward, done=done)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        del state

    def oracle(self) -> Policy:
        return lambda _context: "up"


ENVS: dict[str, type[Env]] = {"verl-colours-v0": ColoursEnv, "verl-steps-v0": StepsEnv}


def register_verl_envs() -> None:
    """Register them; a second call changes nothing."""
    register_missing(ENVS)
