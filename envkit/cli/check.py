"""`envkit check`: the contract and determinism alone, the first lines of `envkit certify`."""

from typing import TYPE_CHECKING, Annotated

import typer

from envkit.cli.certify import Target
from envkit.cli.console import say
from envkit.cli.options import EnvKwargs, make_env, parse_env_kwargs

if TYPE_CHECKING:
    from envkit.env import Env
    from envkit.tokens import ChatCodec


def check(
    env_id: Target,
    env_kwargs: EnvKwargs = None,
    seed: Annotated[int, typer.Option(help="The first seed to play with.")] = 0,
    episodes: Annotated[int, typer.Option(min=1, help="Seeds that promises are tried with.")] = 3,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR_OR_NAME", help="Also check that prompts only grow in its chat template."
        ),
    ] = None,
) -> None:
    """Check an environment: Gymnasium's rules, and those of language models.

    `envkit certify` checks more, and goes on where an environment hangs or exits.

    The exit code is 1 when it breaks a rule.
    """
    from envkit.certify.contract import check_env
    from envkit.certify.target import resolve
    from envkit.errors import ContractError

    arguments = parse_env_kwargs(env_kwargs)
    # an id goes by make_env, which suggests arguments
    make = resolve(env_id, arguments) if ":" in env_id else lambda: make_env(env_id, arguments)
    env = make()
    try:
        codec = None if model is None else _codec(model, env)
        report = check_env(
            env,
            factory=make,
            seed=seed,
            episodes=episodes,
            codec=codec,
        )
    except ContractError as error:
        say(str(error))
        raise typer.Exit(1) from error
    finally:
        env.close()
    say(str(report))


def _codec(model: str, env: "Env") -> "ChatCodec":
    from envkit.tokens import load_codec

    return load_codec(model, tools=env.tools)
