"""`envkit install` and `envkit publish`: share environments."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Annotated, Any, Final, cast

import typer

from envkit.cli.catalog import origin_of
from envkit.cli.console import note, say
from envkit.cli.examples import with_examples
from envkit.collection import collections
from envkit.errors import ConfigurationError, RunFailedError, describe
from envkit.registration import registry
from envkit_sharing.index import Package, find, read_index, write_index

INDEX: Final = "ENVKIT_INDEX"
"""Environment variable with the index that `envkit install` reads."""


@with_examples(
    "install git+https://example.org/team/our-envs@v2",
    "install ./our-envs",
    "install coin-v0 --index https://example.org/index.json",
    group="Look",
)
def install(
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH|URL",
            help="A package or an environment of the index, a folder, a wheel, or git+URL.",
        ),
    ],
    index: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_URL",
            help=f"Index of packages (default: the variable {INDEX}; without it, NAME is a "
            "package of pip's own index).",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Install what an index names without asking.")
    ] = False,
) -> None:
    """Install a package with environments, and list them.

    Installing runs the package's code. What an index names is shown first.
    """
    requirement = target
    if not _is_place(target) and (place := index or os.environ.get(INDEX)):
        package = find(read_index(place), target)
        requirement = package.requirement
        note(f"{place}: {package.version}, {package.certified}")
        if not yes and not (sys.stdin.isatty() and typer.confirm(f"install {requirement}?")):
            raise ConfigurationError(
                f"what an index names is installed with --yes, got {requirement}"
            )
    elif index is not None:
        raise ConfigurationError(f"--index needs the name of a package, got {target!r}")
    if requirement.startswith("-"):
        raise ConfigurationError(f"a requirement must not be an option, got {requirement!r}")
    before = {*registry(), *collections()}
    done = subprocess.run([*_installer(), requirement], check=False)
    if done.returncode:
        raise RunFailedError(f"{requirement} was not installed: the installer said why")
    importlib.invalidate_caches()
    new = sorted({*registry(), *collections()} - before)
    for name in new:
        say(name)
    if not new:
        note(f"{requirement} is installed; it adds no environment that was not there before")


def _is_place(target: str) -> bool:
    """Whether a target is an address or a path, not a name."""
    return "://" in target or os.sep in target or target.endswith(".whl") or target == "."


def _installer() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--"]
    if (uv := which("uv")) is not None:
        return [uv, "pip", "install", "--python", sys.executable, "--"]
    raise ConfigurationError(
        f"installing needs pip or uv, got neither: {sys.executable} -m ensurepip"
    )


@with_examples(
    "publish our-envs --index index.json",
    "publish our-envs --index index.json --certificate coin.json --requirement our-envs==1.2",
    group="Write an environment",
)
def publish(
    name: Annotated[str, typer.Argument(metavar="PACKAGE", help="An installed package.")],
    index: Annotated[
        Path, typer.Option(metavar="FILE", help="Index to write; created if it does not exist.")
    ],
    requirement: Annotated[
        str | None,
        typer.Option(
            metavar="REQUIREMENT",
            help="What pip installs (default: where the package was installed from).",
        ),
    ] = None,
    certificate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A report of `envkit certify ID --out FILE.json`; repeatable.",
        ),
    ] = None,
) -> None:
    """Add an installed package, its environments and their certificates to an index.

    Put the file on a web server; `envkit install NAME --index URL` reads it.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise ConfigurationError(f"publish takes an installed package, got {name!r}") from error
    environments = sorted(_provided(found))
    if not environments:
        raise ConfigurationError(f"the package {name!r} provides no environments")
    package = Package(
        requirement=requirement or _requirement(found),
        version=found.version,
        environments=environments,
        certificates=dict(_certificate(file, environments) for file in certificate or ()),
    )
    known = read_index(index) if index.exists() else {}
    write_index(index, {**known, found.name: package})
    say(f"{index}: {found.name} {package.version}, {package.certified}")


def _provided(found: Distribution) -> Iterator[str]:
    for point in found.entry_points:
        if point.group == "envkit.envs":
            yield point.name
        elif point.group == "envkit.collections":
            yield f"{point.name}/..."


def _requirement(found: Distribution) -> str:
    origin = origin_of(found)
    if origin is None:
        return f"{found.name}=={found.version}"
    if origin.startswith("file:"):
        raise ConfigurationError(
            f"{found.name} was installed from {origin}, which others do not have: add --requirement"
        )
    return f"{found.name} @ {origin}"


def _certificate(file: Path, environments: list[str]) -> tuple[str, dict[str, Any]]:
    try:
        report: Any = json.loads(file.read_bytes())
        target, passed = str(report["target"]), report["passed"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is not a report of envkit certify --out FILE.json: {describe(error)}"
        ) from error
    if target not in environments or passed is not True:
        raise ConfigurationError(
            f"a certificate must be of {', '.join(environments)} and have passed, got {target} "
            f"with passed={passed!r} in {file}"
        )
    return target, cast("dict[str, Any]", report)
