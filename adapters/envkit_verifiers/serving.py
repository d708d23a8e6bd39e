"""The servers of a loaded environment: tools that its episodes share, and its model calls."""

import asyncio
import atexit
import contextlib
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind, describe
from envkit_verifiers.client import answer_policy_calls
from envkit_verifiers.loading import Loaded

EPISODE: Final = "verifiers episode"
"""Name of the tasks that play episodes."""
_PATIENCE_S: Final = 10.0
_hosts: Final[dict[tuple[int, asyncio.AbstractEventLoop], "asyncio.Future[None]"]] = {}


async def serving(loaded: Loaded) -> None:
    """Start the servers of an environment on the running loop, unless they run; they end with it.

    Raises:
        EnvFault: They cannot be started.
    """
    key = (id(loaded), asyncio.get_running_loop())  # loaded environments are kept
    if key not in _hosts:
        _hosts[key] = key[1].create_future()
        task = key[1].create_task(_host(loaded, key))
        atexit.register(_end, task, key[1])
    try:
        await asyncio.shield(_hosts[key])
    except Exception as error:
        raise EnvFault(
            f"the servers of the verifiers environment cannot be started: {describe(error)}",
            kind=FaultKind.PERMANENT,
        ) from error


async def _host(loaded: Loaded, key: tuple[int, asyncio.AbstractEventLoop]) -> None:
    """Hold the servers in one task: the library must leave them where it entered them."""
    ready = _hosts[key]
    try:
        async with loaded.env.serving():
            answer_policy_calls(loaded.env._interception)
            ready.set_result(None)
            await asyncio.Event().wait()
    except Exception as error:  # noqa: BLE001  # the waiting episodes raise it
        del _hosts[key]
        if not ready.done():
            ready.set_exception(error)


def _end(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Let the library end its programs before the process ends."""

    async def end() -> None:
        for one in asyncio.all_tasks():
            if one.get_name() == EPISODE:
                one.cancel()  # a server waits for its open requests
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wait_for(asyncio.shield(task), _PATIENCE_S)

    if loop.is_running():
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(end(), loop).result(_PATIENCE_S)
