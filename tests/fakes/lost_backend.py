"""An environment whose backend is killed in the middle of a training, and may come back."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

import pytest
from fakes.envs import register_missing

from envkit.env import Capabilities, Env, Turn
from envkit.errors import EnvFault, FaultKind, RunFailedError
from envkit.tasks import ListSource, Task

T = TypeVar("T")

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


async def check_ends(
    step: Callable[[], Awaitable[object]], *, kind: type[Exception] = RunFailedError
) -> None:
    """Kill the backend, and check that a trainer that makes step after step ends with our error."""
    with killed_backend(), pytest.raises(kind, match="episodes in a row faulted, for"):
        await _without_end(step)


async def _without_end(step: Callable[[], Awaitable[object]]) -> None:
    for _ in range(10_000):
        await step()
    raise AssertionError("the training goes on with faulted episodes only")


async def check_waits(step: Callable[[], Awaitable[T]], *, steps: int = 2) -> list[T]:
    """Kill the backend for some steps, check that the next one waits until it is back.

    Args:
        step: Makes a trainer's step.
        steps: Steps until a player with `PATIENT` waits.

    Returns:
        What the steps without a backend gave.
    """
    with killed_backend():
        lost = [await step() for _ in range(steps)]
        waiting = asyncio.ensure_future(step())
        await asyncio.sleep(0.2)
        assert not waiting.done()
    await waiting
    return lost


def register_lost() -> None:
    """Make the environment known; a second call changes nothing."""
    register_missing({LOST: LostEnv})
