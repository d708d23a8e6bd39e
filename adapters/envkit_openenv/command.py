"""`envkit serve-openenv`: an environment as an OpenEnv server."""

from typing import Annotated

import typer

from envkit.cli.examples import with_examples
from envkit.cli.options import EnvId, EnvKwargs, parse_env_kwargs


@with_examples(
    "serve-openenv canary-v0 --port 8000",
    "serve-openenv search-v0 --env-kwargs protocol=tools --max-sessions 16",
)
def serve_openenv(
    env_id: EnvId,
    env_kwargs: EnvKwargs = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    max_sessions: Annotated[int, typer.Option(min=1, help="Environments at once.")] = 64,
    session_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End a session without messages after so long."),
    ] = None,
) -> None:
    """Serve an environment to OpenEnv clients, until interrupted."""
    from envkit_openenv.server import serve

    serve(
        env_id,
        parse_env_kwargs(env_kwargs),
        host=host,
        port=port,
        max_sessions=max_sessions,
        session_timeout_s=session_timeout,
        on_ready=lambda address: typer.echo(f"serving {env_id} at {address}"),
    )
