"""Serve an environment as an MCP server, so that any MCP client can play it.

| tool | arguments | result |
| --- | --- | --- |
| `reset` | `seed`, `task`, both optional | text and images of the first observation; the state, with the handle `episode` |
| `step` | `episode`, `reply`, `turn` optional | text and images of the next observation; reward and end in the state |
| `close` | `episode` | |

The state is the last text, as JSON, and the structured content. Both eras of the protocol work,
because an episode is a handle in the arguments and not a session.
"""  # noqa: E501

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any, Final

import envkit
from envkit.access import Access, cannot_listen, check_port
from envkit.env import Env
from envkit.errors import MissingDependencyError
from envkit.serving import abort_unread
from envkit.toolcalls.tolerant_json import scrub
from envkit_mcp.episodes import EpisodeLimits, Episodes, Played, UnplayableError

try:
    import uvicorn
    from mcp.server.mcpserver import MCPServer
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp_types import CallToolResult, ImageContent, TextContent
    from pydantic import Field
except ImportError as error:
    raise MissingDependencyError.for_extra("serving MCP", "mcp", "mcp") from error

PATH: Final = "/mcp"
DEFAULT_PORT: Final = 8000
_LOOK_S: Final = 5.0
_IDLE_S: Final = 20.0
_SHUTDOWN_S: Final = 3
_SPARE_CONNECTIONS: Final = 32
_BODY_BYTES: Final = 4 << 20
_INSTRUCTIONS: Final = (
    "This server plays the environment {id}. Call reset, which returns the first observation and "
    "a handle, the field `episode` of the state. Then call step with that handle and your whole "
    "reply to the observation, until the state says terminated or truncated."
)


def make_server(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    limits: EpisodeLimits | None = None,
) -> "MCPServer[Any]":
    """Return the SDK's server of an environment, for other transports and applications.

    Args:
        env_id: As for `envkit.make`.
        env_kwargs: Its constructor's arguments.
        limits: None uses the defaults. The environment's own maximum also bounds the episodes.

    Raises:
        UnknownNameError: No environment has the id.
        ConfigurationError: It does not take the arguments.
    """
    spec = envkit.spec(env_id)

    def make() -> Env:
        made: Any = envkit.make(spec.id, **(env_kwargs or {}))
        return made

    probe = make()  # reports wrong arguments now, not at a reset
    allowed = probe.unwrapped.capabilities.max_sessions  # pyright: ignore[reportAttributeAccessIssue]  # an Env
    probe.close()
    bounds = limits or EpisodeLimits()
    if allowed is not None:
        bounds = replace(bounds, max_episodes=min(bounds.max_episodes, allowed))
    episodes = Episodes(make, bounds)
    server: MCPServer[Any] = MCPServer(
        f"envkit {spec.id}",
        description=spec.description or spec.id,
        instructions=_INSTRUCTIONS.format(id=spec.id),
        version=envkit.__version__,
        log_level="ERROR",
        lifespan=lambda _: _released(episodes),
    )
    _add_tools(server, episodes)
    return server


def serve_stdio(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    limits: EpisodeLimits | None = None,
) -> None:
    """Serve an environment on standard input and output, until the input ends.

    What an environment prints goes to standard error, since standard output has the messages.

    Args:
        env_id: As for `make_server`.
        env_kwargs: As for `make_server`.
        limits: As for `make_server`.
    """
    server = make_server(env_id, env_kwargs, limits=limits)
    with suppress(KeyboardInterrupt):
        asyncio.run(server.run_stdio_async())


def serve_http(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    access: Access,
    port: int = DEFAULT_PORT,
    limits: EpisodeLimits | None = None,
    on_ready: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve an environment by streamable HTTP until interrupted.

    Args:
        env_id: As for `make_server`.
        env_kwargs: As for `make_server`.
        access: Access rules, and the address to listen on.
        port: 0 picks a free port.
        limits: As for `make_server`.
        on_ready: Called with the server's address once it listens.

    Raises:
        ConfigurationError: As for `make_server`, or the port is out of range.
        ServiceError: The address cannot be listened on.
    """
    check_port(port)
    bounds = limits or EpisodeLimits()
    server = make_server(env_id, env_kwargs, limits=bounds)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=_BODY_BYTES,
        session_idle_timeout=bounds.idle_timeout_s,
        # `Access` checks the names of hosts and origins.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    settings = uvicorn.Config(
        _guarded(app, access),
        host=access.host,
        port=port,
        log_level="error",
        log_config=None,  # a message may contain client data
        limit_concurrency=4 * bounds.max_episodes + _SPARE_CONNECTIONS,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    running = _Server(settings, on_ready, answer_s=bounds.step_timeout_s)
    try:
        running.run()
    except SystemExit as error:  # uvicorn exits this way if it cannot start
        raise cannot_listen(access.host, port, error.__context__) from error
    except KeyboardInterrupt:
        return


class _Server(uvicorn.Server):
    """Reports its address once it listens, and closes connections that uvicorn would keep."""

    def __init__(
        self, settings: uvicorn.Config, on_ready: Callable[[str], object], *, answer_s: float
    ) -> None:
        super().__init__(settings)
        self._on_ready, self._answer_s = on_ready, answer_s
        self._watches: list[asyncio.Task[None]] = []

    async def startup(self, sockets: Any = None) -> None:  # noqa: ANN401  # uvicorn's
        """Listen, and report the address."""
        await super().startup(sockets)
        if self.started and self.servers:
            port = self.servers[0].sockets[0].getsockname()[1]
            name = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            self._on_ready(f"http://{name}:{port}{PATH}")
            unread = abort_unread(lambda: self.server_state.connections, seconds=self._answer_s)
            self._watches = [
                asyncio.create_task(one) for one in (self._close_silent_connections(), unread)
            ]

    async def _close_silent_connections(self) -> None:
        """Close connections without a complete request; uvicorn waits forever."""
        waiting: set[Any] = set()
        while True:
            await asyncio.sleep(_IDLE_S)
            silent: set[Any] = {
                one for one in self.server_state.connections if getattr(one, "cycle", one) is None
            }
            for connection in silent & waiting:
                connection.transport.close()
            waiting = silent


def _guarded(app: Any, access: Access) -> Callable[..., Awaitable[None]]:  # noqa: ANN401  # ASGI
    """Return the application behind the access rules."""

    async def guard(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI
        if scope["type"] == "http":
            headers = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in scope["headers"]
            ]
            refusal = access.refusal(headers)
            if refusal is not None:
                fields = [
                    (name.encode(), value.encode()) for name, value in refusal.headers.items()
                ]
                start = {"type": "http.response.start", "status": refusal.status}
                await send({**start, "headers": [*fields, (b"content-type", b"text/plain")]})
                await send({"type": "http.response.body", "body": refusal.reason.encode()})
                return
        await app(scope, receive, send)

    return guard


@asynccontextmanager
async def _released(episodes: Episodes) -> AsyncGenerator[None]:
    """End idle episodes while the server runs, and all at its end."""

    async def look() -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await episodes.end_idle()

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await episodes.aclose()


def _add_tools(server: "MCPServer[Any]", episodes: Episodes) -> None:
    @server.tool()
    async def reset(
        seed: Annotated[
            int | None, Field(description="The same seed gives the same task; null draws one.")
        ] = None,
        task: Annotated[
            dict[str, Any] | None, Field(description="Plays this task; null draws one.")
        ] = None,
    ) -> CallToolResult:
        """Start an episode and return its first observation and its handle."""
        return await _answer(episodes, episodes.reset(seed=seed, task=task))

    @server.tool()
    async def step(
        episode: Annotated[str, Field(description="The handle that reset returned.")],
        reply: Annotated[str, Field(description="The whole reply to the last observation.")],
        turn: Annotated[
            int | None,
            Field(description="The state's turn. A repeated call with it is not played twice."),
        ] = None,
    ) -> CallToolResult:
        """Play a reply and return the next observation, the reward, and whether it is over."""
        return await _answer(episodes, episodes.step(episode, reply, turn=turn))

    @server.tool()
    async def close(
        episode: Annotated[str, Field(description="The handle that reset returned.")],
    ) -> CallToolResult:
        """End an episode before its last step."""
        try:
            await episodes.close(episode)
        except UnplayableError as error:
            return _failed(error)
        return CallToolResult(content=[TextContent(type="text", text="The episode is closed.")])

    del reset, step, close  # registered by their names


async def _answer(episodes: Episodes, work: Awaitable[Played]) -> CallToolResult:
    try:
        played = await work
    except UnplayableError as error:
        return _failed(error)
    try:
        return await _shown(played)
    except Exception as error:  # noqa: BLE001  # an environment may return anything
        with suppress(UnplayableError):
            await episodes.close(played.handle)
        why = f"the environment's result cannot be sent, and the episode is over: {error!s:.300}"
        return _failed(UnplayableError(why))


async def _shown(played: Played) -> CallToolResult:
    images = played.observation["images"]
    encoded = await asyncio.to_thread(lambda: [image.data_uri() for image in images])
    text = scrub(played.observation["text"])
    stated = json.dumps(played.state, default=str, skipkeys=True, ensure_ascii=False)
    # JSON has no NaN and no infinity, and no lone surrogate can be sent.
    state = json.loads(scrub(stated), parse_constant=lambda _: None)
    content: list[Any] = [
        TextContent(type="text", text=text),
        *(_image(uri) for uri in encoded),
        TextContent(type="text", text=json.dumps(state)),
    ]
    return CallToolResult(content=content, structured_content=state)


def _image(uri: str) -> ImageContent:
    head, _, data = uri.partition(",")
    kind = head.removeprefix("data:").partition(";")[0]
    return ImageContent(type="image", data=data, mime_type=kind)


def _failed(error: UnplayableError) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=scrub(str(error)))], is_error=True)
