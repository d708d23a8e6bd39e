"""Environments of OpenEnv's own making, and a way to serve an application in this process."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# OpenEnv is not installed with envkit's own tests; `make contract-openenv` has it.

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Environment, create_app
from openenv.core.env_server import types as openenv
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

import envkit
from envkit.env import Env, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.registration import EnvSpec
from envkit.tasks import Task


class CountAction(openenv.Action):
    """Add to the sum."""

    number: int
    pixels: bool = False


class CountObservation(openenv.Observation):
    """The sum, and an image as OpenEnv's BrowserGym sends it."""

    text: str
    screenshot: list[list[list[int]]] | None = None


class CountEnvironment(Environment):
    """Reach ten."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = openenv.State()
        self._sum = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, start: int = 0) -> Any:
        """Begin at `start`."""
        self._state, self._sum = openenv.State(episode_id=episode_id), start
        return CountObservation(text=f"seed {seed}, sum {start}")

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Add."""
        if action.number < 0:
            raise ValueError("no negative numbers")
        self._sum += action.number
        self._state.step_count += 1
        pixels = [[[x, y, 9] for x in range(12)] for y in range(10)] if action.pixels else None
        return CountObservation(
            text=f"sum {self._sum}",
            screenshot=pixels,
            reward=float(self._sum == 10),
            done=self._sum >= 10,
            metadata={"secret": "not shown"},
        )

    @property
    def state(self) -> openenv.State:
        """How many steps."""
        return self._state


class ToolsEnvironment(MCPEnvironment):
    """Two MCP tools."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server: Any = FastMCP("tools")

        def add(first: int, second: int) -> int:
            """Add two numbers."""
            if first < 0:
                raise ValueError("no negative numbers")
            return first + second

        server.tool(add)
        super().__init__(server)
        self._state = openenv.State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        """Say hello."""
        return openenv.Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        return openenv.Observation()

    @property
    def state(self) -> openenv.State:
        """Nothing."""
        return self._state


def counter_app(max_sessions: int = 4) -> Any:
    """Return the counter's application."""
    return create_app(
        CountEnvironment, CountAction, CountObservation, max_concurrent_envs=max_sessions
    )


def tools_app() -> Any:
    """Return the application of the tools."""
    return create_app(ToolsEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=4)


@contextmanager
def serving(app: Any) -> Generator[str, None, None]:
    """Serve an application on a thread; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not (server.started and server.servers):
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


class CrashyEnv(Env):
    """Fails with the kind of fault that the reply names."""

    def on_reset(self, task: Task) -> Turn:
        """Wait."""
        return Turn("Which fault?")

    def on_turn(self, response_text: str) -> Turn:
        """Fail."""
        kind = FaultKind(response_text)
        raise EnvFault(f"as told: {kind.value}", kind=kind, retryable=kind is FaultKind.TIMEOUT)


class LongEnv(Env):
    """Answers as many characters as the reply says."""

    max_turns = 100

    def on_reset(self, task: Task) -> Turn:
        """Wait."""
        return Turn("How many characters?")

    def on_turn(self, response_text: str) -> Turn:
        """Answer after a moment, in which a client may leave."""
        time.sleep(0.05)
        return Turn("x" * int(response_text))


def register_here() -> None:
    """Make the environments known that the tests play: envkit is not installed beside OpenEnv."""
    specs: list[EnvSpec] = [
        import_module(f"envkit_{name}").SPEC
        for name in ("canary", "desktop", "geo3k", "gymnasium", "openenv", "search")
    ]
    for name in ("Crashy", "Long"):
        place = f"fakes.openenv_real:{name}Env"
        specs.append(EnvSpec(id=f"{name.lower()}-v0", entry_point=place))
    for spec in specs:
        if spec.id not in envkit.registry():
            envkit.register(spec.id, spec.entry_point, kwargs=spec.kwargs)
