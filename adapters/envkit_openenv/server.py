"""An environment of envkit as an OpenEnv server, on openenv-core's own application.

A session is a WebSocket with an environment of its own, made at its reset and closed with it. The
action is the model's whole reply; the observation carries everything that the environment returned,
because the `metadata` of an observation does not travel. A typed fault becomes an error message
that a client of envkit reads back as that fault, and that other clients raise.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from socket import socket
from typing import Any, Final, Literal

import envkit
from envkit.env import Env, Observation, Step
from envkit.errors import (
    ConfigurationError,
    EnvFault,
    EpisodeStateError,
    FaultKind,
    MissingDependencyError,
)
from envkit_openenv.protocol import write_fault

try:
    import uvicorn
    from fastapi import FastAPI
    from openenv.core.env_server import Environment, create_app
    from openenv.core.env_server import types as openenv
except ImportError as error:
    raise MissingDependencyError.for_extra("serving OpenEnv", "openenv-core", "openenv") from error

DEFAULT_SESSIONS: Final = 64
DEFAULT_PORT: Final = 8000


class EnvkitAction(openenv.Action):
    """The whole reply of a model."""

    response_text: str


class EnvkitObservation(openenv.Observation):
    """What the environment returned; `done` is `terminated or truncated`."""

    text: str
    images: list[str]
    """PNG as data URIs."""
    role: Literal["user", "tool"]
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class EnvkitState(openenv.State):
    """What a client needs to know of the session."""

    env_id: str
    task: dict[str, Any]
    system_prompt: str | None
    tools: list[dict[str, Any]]
    """In the chat-completions form."""
    max_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is served."""

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
        self._is_closed = False
        self._lock = threading.Lock()  # the idle timer closes a session while it may step
        self._episode_id: str | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401  # OpenEnv's signature; others are passed over, as it does
    ) -> EnvkitObservation:
        """Start an episode; `task` plays that one, as `options={"task": ...}` does."""
        with self._lock, _ToldFaults():
            self._require_open()
            if self._env is None:
                self._env = self._served.make()
            self._episode_id = episode_id
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
        with self._lock, _ToldFaults():
            self._require_open()
            if self._env is None:
                raise EpisodeStateError("the episode never began: reset before the first step")
            step = Step(*self._env.step(action.response_text))
            return _observed(step.observation, step.info, step)

    @property
    def state(self) -> EnvkitState:
        """What a client needs to know; before the first reset only the id."""
        env = self._env
        return EnvkitState(
            episode_id=self._episode_id,
            step_count=env.turn if env is not None else 0,
            env_id=self._served.env_id,
            task=env.task if env is not None else {},
            system_prompt=env.system_prompt if env is not None else None,
            tools=[spec.to_json() for spec in env.tools] if env is not None else [],
            max_turns=env.max_turns if env is not None else 1,
        )

    def get_metadata(self) -> openenv.EnvironmentMetadata:
        """Return the environment's id and line of description."""
        return openenv.EnvironmentMetadata(
            name=self._served.env_id,
            description=self._served.description or self._served.env_id,
            version=envkit.__version__,
        )

    def close(self) -> None:
        """Close the environment; a later step is a fault."""
        with self._lock:
            env, self._env, self._is_closed = self._env, None, True
            if env is not None:
                env.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise EnvFault(
                "the session was idle for too long and has ended", kind=FaultKind.CRASHED
            )


class _ToldFault(RuntimeError):
    """A fault on its way to the client, by its message."""


class _ToldFaults(AbstractContextManager[None]):
    """Raises a typed fault with a message that says its type."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EnvFault):
            raise _ToldFault(write_fault(error)) from error


def make_app(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    max_sessions: int = DEFAULT_SESSIONS,
    session_timeout_s: float | None = None,
) -> FastAPI:
    """Return OpenEnv's application for an environment.

    Args:
        env_id: As for `envkit.make`.
        env_kwargs: Its constructor's arguments.
        max_sessions: Environments at once; what the environment itself allows is the most.
        session_timeout_s: Seconds without a message after which a session ends; None is never.

    Raises:
        UnknownNameError: No environment has the id.
        ConfigurationError: It does not take the arguments, or a limit is not positive.
        ContractError: Its package cannot be imported.
    """
    if max_sessions < 1 or (session_timeout_s is not None and session_timeout_s <= 0):
        raise ConfigurationError(
            "max_sessions must be at least 1 and session_timeout_s positive, got "
            f"{max_sessions} and {session_timeout_s}"
        )
    spec = envkit.spec(env_id)
    served = Served(env_id=spec.id, env_kwargs=env_kwargs or {}, description=spec.description)
    probe = served.make()  # what is wrong with the arguments is said now, not at a reset
    allowed = probe.capabilities.max_sessions
    probe.close()
    return create_app(
        lambda: EnvkitEnvironment(served),
        EnvkitAction,
        EnvkitObservation,
        env_name=spec.id,
        concurrency_config=openenv.ConcurrencyConfig(
            max_concurrent_envs=max_sessions if allowed is None else min(max_sessions, allowed),
            session_timeout=session_timeout_s,
        ),
    )


def serve(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    max_sessions: int = DEFAULT_SESSIONS,
    session_timeout_s: float | None = None,
    on_ready: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve an environment until interrupted.

    Args:
        env_id: As for `envkit.make`.
        env_kwargs: Its constructor's arguments.
        host: Address to listen on.
        port: 0 takes a free one.
        max_sessions: As for `make_app`.
        session_timeout_s: As for `make_app`.
        on_ready: Called with the server's address once it listens.

    Raises:
        ConfigurationError: As `make_app` does; or the address cannot be listened on.
    """
    app = make_app(
        env_id, env_kwargs, max_sessions=max_sessions, session_timeout_s=session_timeout_s
    )
    settings = uvicorn.Config(app, host=host, port=port, log_level="warning")
    server = _Server(settings, on_ready)
    try:
        server.run()
    except SystemExit as error:  # uvicorn's way to say that it could not start
        raise ConfigurationError(f"cannot listen on {host}:{port}") from error
    except KeyboardInterrupt:
        return


class _Server(uvicorn.Server):
    """Tells its address once it listens."""

    def __init__(self, settings: uvicorn.Config, on_ready: Callable[[str], object]) -> None:
        super().__init__(settings)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Listen, and tell the address."""
        await super().startup(sockets)
        if self.started and self.servers:
            port = self.servers[0].sockets[0].getsockname()[1]
            self._on_ready(f"http://{self.config.host}:{port}")


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
