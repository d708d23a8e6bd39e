"""A walk to a flag, seen as a picture: an oracle that plans again, and a policy `random`."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from fakes.envs import register_missing
from PIL import Image as PilImage

from envkit.env import Env, Policy, PolicyContext, Turn
from envkit.images import Image
from envkit.tasks import Task

WALK: Final = "toy-walk-v0"
_FLAG: Final = 3


class WalkTasks:
    """Six tasks, of which the last one looks like the first."""

    size: int | None = 6

    def task(self, index: int) -> Task:
        """Return the task at this index."""
        return {"colour": 40 * (index % 5), "number": index}


class WalkEnv(Env):
    """Reach the flag, three steps to the right, within eight turns."""

    system_prompt = "Answer left or right."
    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {"random": lambda: _random}

    def __init__(
        self, *, with_picture: bool = True, never: bool = False, lost: int | None = None
    ) -> None:
        super().__init__(max_turns=8)
        self.tasks = WalkTasks()
        self._with_picture, self._never, self._lost = with_picture, never, lost
        self.place = 0

    def on_reset(self, task: Task) -> Turn:
        """Start at the left end."""
        self.place = 0
        return self._turn("Go.")

    def on_turn(self, response_text: str) -> Turn:
        """Take a step."""
        self.place = max(0, self.place + {"left": -1, "right": 1}.get(response_text, 0))
        is_lost = self._never or self.task["number"] == self._lost
        is_there = self.place == _FLAG and not is_lost
        return self._turn("Literally <image>.", reward=float(is_there), done=is_there)

    def oracle(self) -> Policy:
        """Return a policy that goes right."""
        return lambda context: "right"

    def _turn(self, text: str, **more: Any) -> Turn:
        shade = (int(self.task["colour"]), 20 * self.place, 0)
        picture = Image.from_pil(PilImage.new("RGB", (28, 28), shade))
        return Turn(text, images=(picture,) if self._with_picture else (), **more)


def _random(context: PolicyContext) -> str:
    return "right" if context.seed % 2 else "left"


def register_walk() -> None:
    """Register the environment, unless it is registered already."""
    register_missing({WALK: WalkEnv}, reward_threshold=1.0)
