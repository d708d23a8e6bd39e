"""`envkit new`: create a package for your own environment."""

from pathlib import Path
from typing import Annotated

import typer

from envkit.cli.console import say


def new(
    name: Annotated[str, typer.Argument(help="Name of the package, such as count-dots.")],
    into: Annotated[
        Path, typer.Option(metavar="DIR", help="Parent folder of the package.")
    ] = Path(),
) -> None:
    """Write a package with a small working environment that passes its tests.

    The environment shows an image and asks for the number of dots. The package has an entry point,
    an oracle, tests that call envkit's checker, a README that says what to change, and a CI
    workflow.
    """
    from envkit.scaffold import PackageName, write_package

    package = PackageName(name=name)
    root = into / package.name
    for path in write_package(package, into):
        say(f"  {path}")
    say(f'\ncd {root} && pip install -e ".[dev]" && pytest')
    say(f"envkit certify {package.env_id} --only contract")
    say(f"envkit rollout {package.env_id} --policy oracle -n 8 --out runs/oracle")
