"""`envkit serve-mcp`: serve an environment as an MCP server."""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from envkit.cli import options
from envkit.cli.command_options import CommandOptions, takes
from envkit.cli.console import say, say_access
from envkit.cli.examples import with_examples
from envkit.errors import ConfigurationError

KEY_VARIABLE: Final = "ENVKIT_MCP_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(CommandOptions):
    """The options of `envkit serve-mcp`."""

    env_id: options.EnvId
    env_kwargs: options.EnvKwargs = None
    port: Annotated[
        int | None,
        typer.Option(
            help="Serve by HTTP; 0 picks a free port. Without it, on standard input and output."
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on, with --port.")] = "127.0.0.1"
    max_episodes: Annotated[int, typer.Option(min=1, help="Maximum concurrent episodes.")] = 16
    idle_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Seconds after which an idle episode ends."),
    ] = 1800.0
    step_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Maximum seconds per step; a slower episode ends."),
    ] = 600.0
    key: options.ServerKey = None
    no_key: options.NoKey = False
    allow_remote: options.AllowRemote = False


@with_examples(
    "serve-mcp canary-v0",
    "serve-mcp search-v0 --env-kwargs protocol=tools --port 8000",
)
@takes(ServeOptions)
def serve_mcp(given: ServeOptions) -> None:
    """Serve an environment to MCP clients, until the input ends or it is interrupted.

    On standard input and output, the client starts this command. By HTTP, clients need the key: it
    is random unless set by --key or the variable ENVKIT_MCP_KEY.
    """
    from envkit.access import choose_access
    from envkit_mcp.episodes import EpisodeLimits
    from envkit_mcp.serving import serve_http, serve_stdio

    limits = EpisodeLimits(
        max_episodes=given.max_episodes,
        idle_timeout_s=given.idle_timeout,
        step_timeout_s=given.step_timeout,
    )
    arguments = options.parse_env_kwargs(given.env_kwargs)
    if given.port is None:
        if given.key or given.no_key or given.allow_remote:
            raise ConfigurationError("--key, --no-key and --allow-remote need --port")
        serve_stdio(given.env_id, arguments, limits=limits)
        return
    access = choose_access(
        given.key,
        host=given.host,
        variable=KEY_VARIABLE,
        without_key=given.no_key,
        allow_remote=given.allow_remote,
    )

    def tell(address: str) -> None:
        say(f"serving {given.env_id} at {address}")
        say_access(access)

    serve_http(
        given.env_id, arguments, access=access, port=given.port, limits=limits, on_ready=tell
    )
