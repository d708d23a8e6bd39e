"""Serve an envkit environment as an OpenEnv server, with OpenEnv's own application.

A session is a WebSocket with its own environment, created at reset and closed with it. The action
is the model's whole reply; the observation's fields carry everything that the environment returned,
and its `metadata` is empty. A typed fault becomes an error message, which envkit's client turns
back into the fault and other clients raise.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from socket import socket
from typing import Any, Final, Literal, cast

import envkit
from envkit.access import Access, cannot_listen, check_port
from envkit.env import Env, Observation, Step
from envkit.errors import EnvFault, EpisodeStateError, MissingDependencyError
from envkit.reply import Reply
from envkit.serving import abort_unread, ignore_errors, return_freed_answers
from envkit_openenv.guard import Guard, ServerLimits
from envkit_openenv.protocol import write_fault

try:
    import h11
    import uvicorn
    from fastapi import FastAPI
    from openenv.core.env_server import Environment, create_app
    from openenv.core.env_server import types as openenv
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError as error:
    raise MissingDependencyError.for_extra("serving OpenEnv", "openenv", "openenv") from error

DEFAULT_PORT: Final = 8000
_IDLE_S: Final = 10.0
"""Seconds that a connection may idle before its request; the check may take as long again."""
_SHUTDOWN_S: Final = 3
"""Seconds for open requests once SIGTERM came; containers are killed after 10."""
_SPARE_CONNECTIONS: Final = 64
"""Connections beyond two per session: for health, schemas and rejected clients."""
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class EnvkitAction(openenv.Action):
    """The whole reply of a model."""

    response_text: str
    finish: Literal["stop", "length", "abort"] = "stop"
    """How the reply ended; anything but "stop" means that it was cut."""
    opened: str = ""
    """The mark with which the prompt opened a thought, such as "<think>"; "" if it did not."""


class EnvkitObservation(openenv.Observation):
    """The environment's turn; `done` is `terminated or truncated`."""

    text: str
    images: list[str]
    """PNG as data URIs."""
    role: Literal["user", "tool"]
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class EnvkitState(openenv.State):
    """State of the session for the client.

    It omits the task, which has the answers that a player could request.
    """

    env_id: str
    system_prompt: str | None
    tools: list[dict[str, Any]]
    """In the chat-completions form."""
    max_turns: int
    reward_threshold: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The served environment."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    description: str = ""

    def make(self) -> Env:
        """Make an environment for a session."""
        made: Any = envkit.make(self.env_id, **self.env_kwargs)
        return made


class EnvkitEnvironment(Environment):
    """One session's environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, served: Served) -> None:
        super().__init__()
        self._served = served
        self._env: Env | None = None
        self._episode_id: str | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401  # OpenEnv's signature; others are passed over, as it does
    ) -> EnvkitObservation:
        """Start an episode; `task` plays that one, as `options={"task": ...}` does."""
        with _EncodeFaults():
            if self._env is None:
                self._env = self._served.make()
            self._episode_id = None if episode_id is None else str(episode_id)
            options = None if task is None else {"task": task}
            observation, info = self._env.reset(seed=seed, options=options)
            return _observed(observation, info)

    def step(
        self,
        action: EnvkitAction,
        timeout_s: float | None = None,
        **kwargs: Any,  # noqa: ANN401  # OpenEnv's signature
    ) -> EnvkitObservation:
        """Play a reply."""
        with _EncodeFaults():
            if self._env is None:
                raise EpisodeStateError("the episode never began: reset before the first step")
            reply = Reply.from_wire(
                {"text": action.response_text, "finish": action.finish, "opened": action.opened}
            )
            cast(Env, self._env.unwrapped).announce(reply)
            step = Step(*self._env.step(reply.text))
            return _observed(step.observation, step.info, step)

    @property
    def state(self) -> EnvkitState:
        """State for the client; before the first reset, only the id."""
        env = self._env
        return EnvkitState(
            episode_id=self._episode_id,
            step_count=env.turn if env is not None else 0,
            env_id=self._served.env_id,
            system_prompt=env.system_prompt if env is not None else None,
            tools=[spec.to_json() for spec in env.tools] if env is not None else [],
            max_turns=env.max_turns if env is not None else 1,
            reward_threshold=env.reward_threshold if env is not None else None,
        )

    def get_metadata(self) -> openenv.EnvironmentMetadata:
        """Return the environment's id and line of description."""
        return openenv.EnvironmentMetadata(
            name=self._served.env_id,
            description=self._served.description or self._served.env_id,
            version=envkit.__version__,
        )

    def close(self) -> None:
        """Close the environment."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


class _EncodedFault(RuntimeError):
    """A fault sent to the client in its message."""


class _EncodeFaults(AbstractContextManager[None]):
    """Converts a typed fault to one whose message has its type."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EnvFault):
            raise _EncodedFault(write_fault(error)) from error


def make_app(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    access: Access,
    limits: ServerLimits | None = None,
) -> FastAPI:
    """Return OpenEnv's application for an environment, with access control.

    Args:
        env_id: As for `envkit.make`.
        env_kwargs: Its constructor's arguments.
        access: Access rules.
        limits: None uses the defaults. The environment's own maximum also bounds the sessions.

    Raises:
        UnknownNameError: No environment has the id.
        ConfigurationError: It does not take the arguments.
        ContractError: Its package cannot be imported.
    """
    spec = envkit.spec(env_id)
    served = Served(env_id=spec.id, env_kwargs=env_kwargs or {}, description=spec.description)
    probe = served.make()  # reports wrong arguments now, not at a reset
    allowed = probe.capabilities.max_sessions
    probe.close()
    bounds = limits or ServerLimits()
    if allowed is not None:
        bounds = replace(bounds, max_sessions=min(bounds.max_sessions, allowed))
    app = create_app(
        lambda: EnvkitEnvironment(served),
        EnvkitAction,
        EnvkitObservation,
        env_name=spec.id,
        max_concurrent_envs=bounds.max_sessions,
    )
    app.add_middleware(Guard, access=access, limits=bounds)
    return app


def serve(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    access: Access,
    port: int = DEFAULT_PORT,
    limits: ServerLimits | None = None,
    on_ready: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve an environment until interrupted.

    Args:
        env_id: As for `envkit.make`.
        env_kwargs: Its constructor's arguments.
        access: Access rules, and the address to listen on.
        port: 0 picks a free port.
        limits: As for `make_app`.
        on_ready: Called with the server's address once it listens.

    Raises:
        ConfigurationError: As `make_app` does, or the port is out of range.
        ServiceError: The address cannot be listened on.
    """
    check_port(port)
    bounds, host = limits or ServerLimits(), access.host
    app = make_app(env_id, env_kwargs, access=access, limits=bounds)
    settings = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_Connection,
        log_level="error",  # strangers cause the warnings
        log_config=None,  # disabled: a message may contain client data
        ws_max_size=bounds.message_bytes,
        limit_concurrency=2 * bounds.max_sessions + _SPARE_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    return_freed_answers()
    ignore_errors(logging.getLogger("uvicorn.error"), h11.ProtocolError, UnicodeDecodeError)
    server = _Server(settings, on_ready, answer_s=bounds.step_timeout_s)
    try:
        server.run()
    except SystemExit as error:  # uvicorn exits this way if it cannot start
        raise cannot_listen(host, port, error.__context__) from error
    except KeyboardInterrupt:
        return


class _Connection(AutoHTTPProtocol):
    """Bounds the sessions' connections too; uvicorn bounds only those of other requests."""

    def handle_websocket_upgrade(self, *request: Any) -> None:  # noqa: ANN401  # h11's, if any
        """Open a session's connection, unless there are too many."""
        if len(self.connections) < self.config.limit_concurrency:
            super().handle_websocket_upgrade(*request)
        else:
            self.transport.write(_FULL)
            self.transport.close()


class _Server(uvicorn.Server):
    """Reports its address once it listens, and closes connections that uvicorn would keep."""

    def __init__(
        self, settings: uvicorn.Config, on_ready: Callable[[str], object], *, answer_s: float
    ) -> None:
        super().__init__(settings)
        self._on_ready, self._answer_s = on_ready, answer_s
        self._watches: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Listen, and report the address."""
        await super().startup(sockets)
        if self.started and self.servers:
            port = self.servers[0].sockets[0].getsockname()[1]
            name = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            self._on_ready(f"http://{name}:{port}")
            state = self.server_state
            unread = abort_unread(lambda: state.connections, seconds=self._answer_s)
            self._watches = [
                asyncio.create_task(one) for one in (self._close_silent_connections(), unread)
            ]

    async def _close_silent_connections(self) -> None:
        """Close connections without a complete request; uvicorn waits forever."""
        waiting: set[Any] = set()
        while True:
            await asyncio.sleep(_IDLE_S)
            silent: set[Any] = {
                connection
                for connection in self.server_state.connections
                if getattr(connection, "cycle", connection)
                is None  # HTTP connections before a request
            }
            for connection in silent & waiting:
                connection.transport.close()
            waiting = silent


def _observed(
    observation: Observation, info: dict[str, Any], step: Step | None = None
) -> EnvkitObservation:
    return EnvkitObservation(
        text=observation["text"],
        images=[image.data_uri() for image in observation["images"]],
        role=observation["role"],
        info=info,
        terminated=step is not None and step.terminated,
        truncated=step is not None and step.truncated,
        done=step is not None and (step.terminated or step.truncated),
        reward=None if step is None else step.reward,
    )
