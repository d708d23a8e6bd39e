"""`envkit serve-openenv`: serve an environment as an OpenEnv server."""

from typing import Annotated

import typer

from envkit.cli.console import say, say_access
from envkit.cli.examples import with_examples
from envkit.cli.options import (
    AllowRemote,
    EnvId,
    EnvKwargs,
    NoKey,
    ServerKey,
    parse_env_kwargs,
)


@with_examples(
    "serve-openenv canary-v0 --port 8000",
    "serve-openenv search-v0 --env-kwargs protocol=tools --max-sessions 16",
)
def serve_openenv(
    env_id: EnvId,
    env_kwargs: EnvKwargs = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free port.")] = 8000,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Maximum concurrent sessions, one environment each.")
    ] = 64,
    session_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Seconds after which an idle session ends."),
    ] = 1800.0,
    step_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Maximum seconds per step; a slower session ends."),
    ] = 600.0,
    key: ServerKey = None,
    no_key: NoKey = False,
    allow_remote: AllowRemote = False,
) -> None:
    """Serve an environment to OpenEnv clients, until interrupted.

    The key is random unless set by --key or the variable ENVKIT_OPENENV_KEY. OpenEnv's own client
    takes it in the address: http://:KEY@HOST:PORT.
    """
    from envkit.access import choose_access
    from envkit_openenv.guard import ServerLimits
    from envkit_openenv.server import serve
    from envkit_openenv.session import KEY_VARIABLE

    access = choose_access(
        key, host=host, variable=KEY_VARIABLE, without_key=no_key, allow_remote=allow_remote
    )

    def tell(address: str) -> None:
        say(f"serving {env_id} at {address}")
        say_access(access)

    limits = ServerLimits(
        max_sessions=max_sessions, session_timeout_s=session_timeout, step_timeout_s=step_timeout
    )
    serve(
        env_id,
        parse_env_kwargs(env_kwargs),
        access=access,
        port=port,
        limits=limits,
        on_ready=tell,
    )
