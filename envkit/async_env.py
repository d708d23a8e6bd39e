"""Environments with asynchronous hooks."""

import weakref
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from envkit.env import Env, Reset, Step, Turn
from envkit.errors import ConfigurationError, ContractError
from envkit.tasks import Task

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class AsyncEnv(Env):
    """An environment that waits for I/O: a browser, a server, a sandbox.

    The author writes `on_areset(task)` and `on_aturn(text)`, and `aclose()` if there is something
    to release. The hooks must not block the event loop. The synchronous `reset`, `step` and `close`
    also work outside an event loop: they run on the instance's own loop, so a connection opened by
    one call is usable in the next. Do not mix the two styles on one instance.
    """

    def __init__(self, *, max_turns: int | None = None, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self._own_loop: asyncio.AbstractEventLoop | None = None

    async def on_areset(self, task: Task) -> Turn:
        """Start the task and return what the model reads first."""
        raise ContractError(f"{type(self).__name__} must define on_areset(task)")

    async def on_aturn(self, response_text: str) -> Turn:
        """Take the model's reply and return what it reads next. Never raise for a bad reply."""
        raise ContractError(f"{type(self).__name__} must define on_aturn(text)")

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Reset:
        """Start an episode; the arguments are those of `Env.reset`."""
        task = self._prepare(seed, options)
        return self._begin(await _turn_of(self.on_areset(task), self, "on_areset"))

    async def astep(self, action: str) -> Step:
        """Play one reply.

        Raises:
            EpisodeStateError: Before `areset`, or after the episode ended.
        """
        self._hear(action)
        return self._advance(action, await _turn_of(self.on_aturn(action), self, "on_aturn"))

    async def aclose(self) -> None:
        """Release what the hooks opened; must be safe to call twice. Does nothing by default."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode from synchronous code; see `areset`."""
        return self._run(self.areset(seed=seed, options=options), "areset")

    def step(self, action: str) -> Step:
        """Play one reply from synchronous code; see `astep`."""
        return self._run(self.astep(action), "astep")

    def close(self) -> None:
        """Release everything from synchronous code; see `aclose`."""
        self._run(self.aclose(), "aclose")
        if self._own_loop is not None:
            self._own_loop.close()
            self._own_loop = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_own_loop": None,
        }  # loops cannot be copied; a copy creates its own

    def _run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        import asyncio  # lazy: it would take a fifth of the time of `import envkit`

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._own_loop is None:
                self._own_loop = asyncio.new_event_loop()
                weakref.finalize(self, self._own_loop.close)
            return self._own_loop.run_until_complete(work)
        work.close()
        raise ConfigurationError(
            f"an event loop is running: call `await env.{name}(...)`, not its synchronous form"
        )


async def _turn_of(work: object, env: AsyncEnv, hook: str) -> Turn:
    if not isinstance(work, Awaitable):
        raise ContractError(
            f"{type(env).__name__}.{hook} must be `async def`, got {type(work).__name__}"
        )
    return cast(Turn, await work)
