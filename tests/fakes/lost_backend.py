"""An environment whose backend is killed in the middle of a training, and may come back."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import gymnasium

from envkit.env import Capabilities, Env, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.registration import register
from envkit.tasks import ListSource, Task

LOST: Final = "toy-lost-v0"
QUICK: Final[dict[str, Any]] = {
    "retries": {"backoff": {"initial_s": 0.0}},
    "breaker": {"episodes": 6, "first_wait_s": 0.02, "longest_wait_s": 0.05, "give_up_s": 0.4},
}
"""Settings with which a player gives up soon."""
PATIENT: Final[dict[str, Any]] = {
    **QUICK,
    "breaker": {"episodes": 6, "first_wait_s": 0.5, "longest_wait_s": 0.5, "give_up_s": 60.0},
}
"""Settings with which it waits."""


class LostEnv(Env):
    """One turn, reward 1; no reset works while the backend is lost."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)
    is_lost: ClassVar[bool] = False
    resets: ClassVar[int] = 0
    """Resets that failed."""

    def __init__(self) -> None:
        super().__init__(max_turns=1)
        self.tasks = ListSource([{"name": "ann"}])

    def on_reset(self, task: Task) -> Turn:
        if LostEnv.is_lost:
            LostEnv.resets += 1
            raise EnvFault("connection refused", kind=FaultKind.TRANSIENT)
        return Turn(f"Hello {task['name']}.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("", reward=1.0, done=True)


@contextmanager
def killed_backend() -> Generator[None]:
    """Let the backend be lost for a while."""
    LostEnv.is_lost, LostEnv.resets = True, 0
    try:
        yield
    finally:
        LostEnv.is_lost = False


async def steps_without_end(step: Callable[[], Awaitable[object]]) -> None:
    """Let a trainer make one step after another, as if nothing had happened."""
    for _ in range(10_000):
        await step()
    raise AssertionError("the training goes on with faulted episodes only")


def register_lost() -> None:
    """Make the environment known; a second call changes nothing."""
    if f"envkit/{LOST}" not in gymnasium.registry:
        register(LOST, entry_point=LostEnv)
