"""`envkit serve-openenv`: serve an environment as an OpenEnv server."""

from dataclasses import dataclass
from typing import Annotated

import typer

from envkit.cli import options
from envkit.cli.command_options import CommandOptions, takes
from envkit.cli.console import say, say_access
from envkit.cli.examples import with_examples


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(CommandOptions):
    """The options of `envkit serve-openenv`."""

    env_id: options.EnvId
    env_kwargs: options.EnvKwargs = None
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="0 picks a free port.")] = 8000
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Maximum concurrent sessions, one environment each.")
    ] = 64
    session_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Seconds after which an idle session ends."),
    ] = 1800.0
    step_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Maximum seconds per step; a slower session ends."),
    ] = 600.0
    key: options.ServerKey = None
    no_key: options.NoKey = False
    allow_remote: options.AllowRemote = False


@with_examples(
    "serve-openenv canary-v0 --port 8000",
    "serve-openenv search-v0 --env-kwargs protocol=tools --max-sessions 16",
)
@takes(ServeOptions)
def serve_openenv(given: ServeOptions) -> None:
    """Serve an environment to OpenEnv clients, until interrupted.

    The key is random unless set by --key or the variable ENVKIT_OPENENV_KEY. OpenEnv's own client
    takes it in the address: http://:KEY@HOST:PORT.
    """
    from envkit.access import choose_access
    from envkit_openenv.guard import ServerLimits
    from envkit_openenv.server import serve
    from envkit_openenv.session import KEY_VARIABLE

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

    limits = ServerLimits(
        max_sessions=given.max_sessions,
        session_timeout_s=given.session_timeout,
        step_timeout_s=given.step_timeout,
    )
    arguments = options.parse_env_kwargs(given.env_kwargs)
    serve(given.env_id, arguments, access=access, port=given.port, limits=limits, on_ready=tell)
