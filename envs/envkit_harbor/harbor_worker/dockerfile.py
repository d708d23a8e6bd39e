"""Carry out a Dockerfile in a sandbox that already has a root, without an image.

The base image is not used: the sandbox's root stands for it. ENV, ARG, WORKDIR, COPY and RUN are
carried out at the start, without network; what only an image can do is refused with the line.
"""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_worker.sandbox import SandboxEnvironment

_STEP_SECONDS = 300.0
_IGNORED = frozenset(
    ("FROM", "LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "MAINTAINER", "SHELL", "STOPSIGNAL", "VOLUME")
)
_COMMENT = re.compile(r"^\s*#.*(?:\n|$)", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


class ImageError(Exception):
    """A Dockerfile asks for what the sandbox cannot do, or one of its steps failed."""


@dataclass(kw_only=True)
class Image:
    """The steps of a Dockerfile, and what they set."""

    steps: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Instruction and the rest of its line."""
    folder: str = "/"
    environment: dict[str, str] = field(default_factory=dict[str, str])


def read(path: Path) -> Image:
    """Read a Dockerfile; a task without one has no steps.

    Raises:
        ImageError: It has several stages, or an instruction that is not known.
    """
    image = Image()
    if not path.is_file():
        return image
    text = _COMMENT.sub("", path.read_text(encoding="utf-8")).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name == "RUN" and "<<" in rest:
            raise ImageError(f"the backend bubblewrap cannot carry out {line[:80]!r}: a here-text")
        if name in ("RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "USER"):
            image.steps.append((name, rest))
        elif name not in _IGNORED:
            raise ImageError(f"the backend bubblewrap cannot carry out {line[:80]!r}")
    return image


async def build(image: Image, context: Path, sandbox: "SandboxEnvironment") -> None:
    """Carry out the steps.

    Args:
        image: The steps; its folder and its variables are set.
        context: The folder that COPY reads.
        sandbox: Runs the commands.

    Raises:
        ImageError: A step failed.
    """
    folder, arguments = image.folder, dict[str, str]()
    image.folder = "/"
    for name, rest in image.steps:
        known = {**arguments, **image.environment}
        match name:
            case "ENV":
                image.environment |= _pairs(rest, known)
            case "ARG":
                key, _, value = rest.partition("=")
                arguments[key] = _filled(value.strip("'\""), known)
            case "WORKDIR":
                image.folder = os.path.join(image.folder, _filled(rest.strip("'\""), known))
                await _run(sandbox, f"mkdir -p {shlex.quote(image.folder)}", arguments, cwd="/")
            case "COPY" | "ADD":
                await _copy(_filled(rest, known), context, sandbox, image.folder)
            case "USER":
                if rest not in ("root", "0"):
                    raise ImageError(
                        f"the backend bubblewrap has the user root alone, got 'USER {rest}'"
                    )
            case _:
                await _run(sandbox, _command(rest), arguments)
    if folder != "/":  # the task's own `workdir`
        await _run(sandbox, f"mkdir -p {shlex.quote(folder)}", arguments, cwd="/")
        image.folder = folder


def _command(rest: str) -> str:
    words = [word for word in rest.split() if word.startswith("--")]
    return rest.removeprefix(" ".join(words)).strip() if rest.startswith("--") else rest


async def _run(
    sandbox: "SandboxEnvironment", command: str, env: Mapping[str, str], cwd: str | None = None
) -> None:
    done = await sandbox.run(command, env=env, cwd=cwd, seconds=_STEP_SECONDS)
    if done.code != 0 or done.timed_out:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
        how = "passed its deadline" if done.timed_out else f"failed with exit code {done.code}"
        raise ImageError(f"without network, the step 'RUN {command[:120]}' {how}: {said}")


async def _copy(rest: str, context: Path, sandbox: "SandboxEnvironment", folder: str) -> None:
    words = shlex.split(rest)
    options = [word for word in words if word.startswith("--")]
    *sources, target = words[len(options) :]
    if any(not word.startswith(("--chown=root", "--chmod=")) for word in options):
        raise ImageError(f"the backend bubblewrap cannot carry out 'COPY {rest[:80]}'")
    into = os.path.join(folder, target)
    is_folder = target.endswith(("/", ".")) or len(sources) > 1
    for source in sources:
        found = sorted(context.glob(source.lstrip("/"))) if source not in (".", "./") else [context]
        if not found or any(not path.resolve().is_relative_to(context.resolve()) for path in found):
            raise ImageError(f"'COPY {rest[:80]}' names no file of the folder environment/")
        for path in found:
            if path.is_dir():
                await sandbox.upload_dir(path, into)
            else:
                await sandbox.upload_file(path, f"{into}/{path.name}" if is_folder else into)


def _pairs(rest: str, known: Mapping[str, str]) -> dict[str, str]:
    if "=" not in rest.split(maxsplit=1)[0]:
        key, _, value = rest.partition(" ")
        return {key: _filled(value.strip(), known)}
    pairs = (word.partition("=") for word in shlex.split(rest))
    return {key: _filled(value, known) for key, _, value in pairs}


def _filled(text: str, known: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: _value(found, known), text)


def _value(found: re.Match[str], known: Mapping[str, str]) -> str:
    name = found.group(1) or found.group(3)
    return known.get(name) or found.group(2) or ""
