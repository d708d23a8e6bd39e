"""`envkit browser`: install a headless Chromium where the system has no package of it."""

from enum import StrEnum
from typing import Annotated

import typer

from envkit.cli.console import note, say
from envkit.cli.examples import with_examples


class _Action(StrEnum):
    INSTALL = "install"


@with_examples("browser install", "browser install --version 153.0.0", group="Look")
def browser(
    action: Annotated[
        _Action,
        typer.Argument(metavar="install", help="Download Chromium and keep it in the cache."),
    ],
    version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Version of @sparticuz/chromium; default: latest."),
    ] = None,
) -> None:
    """Install a headless Chromium for web environments, from npm's registry.

    It is the package @sparticuz/chromium, which brings the libraries that a container lacks. The
    registry is the one that npm's settings name, and npm itself is not needed. Prints the version
    and the checksum in the registry's index, which the download must have.
    """
    del action
    from envkit_browser.installing import install

    say(str(install(version, tell=note)))
