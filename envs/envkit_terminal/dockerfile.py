"""Read Dockerfiles that need no image build: a plain base, files, and simple commands."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

_PLAIN_BASES: Final = re.compile(
    r"(?:docker\.io/)?(?:library/)?(?:ubuntu|debian|python)(?::[\w.-]+)?"
    r"|ghcr\.io/laude-institute/t-bench/(?:ubuntu|python)[\w.-]*(?::[\w.-]+)?"
)
"""Images with little more than Debian's base or Python."""
_SYSTEM: Final = frozenset(
    (
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "logs", "media", "mnt"),
        *("opt", "proc", "run", "sbin", "sys", "tests", "tmp", "usr", "var"),
    )
)
_NETWORK: Final = re.compile(
    r"(?:^|[\s;&|(/])(apt|apt-get|apk|pip3?|uvx?|npm|npx|yarn|conda|cargo|curl|wget|git\s+clone|"
    r"go\s+(?:get|install)|gem|rustup)(?=\s|$)"
)
_ROOT: Final = re.compile(r"(?:^|[\s;&|(])(sudo|chown|useradd|adduser|service|systemctl)(?=\s|$)")
_IGNORED: Final = ("LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "USER", "VOLUME", "SHELL", "MAINTAINER")
_MAX_BYTES: Final = 16 << 20


class RefusedError(Exception):
    """A task folder cannot be played without an image; the message says why."""


@dataclass(kw_only=True)
class Image:
    """A Dockerfile's instructions in terms of a session."""

    context: Path
    folder: str = "/app"
    files: dict[str, Any] = field(default_factory=dict[str, Any])
    setup: list[str] = field(default_factory=list[str])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    bases: int = 0

    @property
    def folders(self) -> list[str]:
        """Top-level writable folders that it needs, apart from the home folder."""
        paths = [self.folder, *self.files]
        tops = {PurePosixPath(path).parts[1] for path in paths}
        return sorted(f"/{top}" for top in tops - {"home"})


def read_image(context: Path) -> Image:
    """Read the Dockerfile in a folder; without one, the folder's files go to /app.

    Raises:
        RefusedError: It needs an image build.
    """
    image = Image(context=context)
    path = context / "Dockerfile"
    if not path.exists():
        if context.is_dir():
            _copy(image, "COPY . /app/", ". /app/")
        return image
    for name, rest in _instructions(path.read_text(encoding="utf-8")):
        if name not in _IGNORED:
            read = _READERS.get(name)
            if read is None:
                raise RefusedError(f"the Dockerfile's {name}")
            line = f"{name} {rest}".strip()
            try:
                read(image, line, rest)
            except (ValueError, IndexError) as error:  # quotes without an end, missing words
                raise RefusedError(f"the instruction {line[:60]!r}") from error
    return image


def check_network(text: str, where: str) -> None:
    """Refuse a script that needs the network or root.

    Raises:
        RefusedError: The script needs one of them.
    """
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if found := _NETWORK.search(code):
        raise RefusedError(f"{where} needs the network ({found.group(1)})")
    if found := _ROOT.search(code):
        raise RefusedError(f"{where} needs root ({found.group(1)})")


def read_files(folder: Path) -> dict[str, Any]:
    """Return the files below a folder by relative path.

    Raises:
        RefusedError: They are too many or too large, or one is a link.
    """
    found: dict[str, Any] = {}
    total = 0
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise RefusedError(f"the symbolic link {path.name}")
        if path.is_file():
            total += path.stat().st_size
            if total > _MAX_BYTES or len(found) >= 500:
                raise RefusedError("more than 500 files or 16 MiB")
            found[path.relative_to(folder).as_posix()] = as_value(path)
    return found


def as_value(path: Path) -> dict[str, Any]:
    """Return a file as a task holds it."""
    import base64

    data = path.read_bytes()
    mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    return {"base64": base64.b64encode(data).decode(), "mode": mode}


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    if "<<" in joined:
        raise RefusedError("a Dockerfile with here-documents")
    found = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name.upper(), rest.strip()) for name, _, rest in found]


def _from(image: Image, _: str, rest: str) -> None:
    image.bases += 1
    name = rest.split()[0]
    if image.bases > 1:
        raise RefusedError("a Dockerfile with several stages")
    if not _PLAIN_BASES.fullmatch(name):
        raise RefusedError(f"the base image {name}")


def _workdir(image: Image, _: str, rest: str) -> None:
    image.folder = inside(image, rest)
    image.files.setdefault(image.folder, None)


def _env(image: Image, line: str, rest: str) -> None:
    words = shlex.split(rest)
    pairs = words if all("=" in word for word in words) else [rest.replace(" ", "=", 1)]
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name.isidentifier() or "$" in value:
            raise RefusedError(f"the instruction {line[:60]!r}")
        image.environment[name] = value


def _copy(image: Image, line: str, rest: str) -> None:
    words = [word for word in shlex.split(rest) if not word.startswith("--chown=")]
    if len(words) < 2 or any(word.startswith(("--", "http", "[")) for word in words):
        raise RefusedError(f"the instruction {line[:60]!r}")
    *sources, target = words
    place = inside(image, target)
    is_folder = target.endswith(("/", ".")) or len(sources) > 1
    for source in sources:
        _copy_one(image, source, place, is_folder=is_folder)


def _copy_one(image: Image, source: str, place: str, *, is_folder: bool) -> None:
    path = (image.context / source.lstrip("/")).resolve()
    if not path.is_relative_to(image.context.resolve()) or not path.exists():
        raise RefusedError(f"the file {source}, which is not in the task's folder")
    if path.is_file():
        image.files[f"{place}/{path.name}" if is_folder else place] = as_value(path)
        return
    for name, value in read_files(path).items():
        if name not in ("Dockerfile", "docker-compose.yaml"):
            image.files[f"{place}/{name}"] = value


def _run(image: Image, _: str, rest: str) -> None:
    check_network(rest, "the Dockerfile")
    if rest.startswith(("[", "--")):
        raise RefusedError(f"the instruction {'RUN ' + rest[:56]!r}")
    image.setup.append(f"cd {shlex.quote(image.folder)} && ( {rest} )")


def inside(image: Image, path: str) -> str:
    """Return an absolute path that a session can write.

    Raises:
        RefusedError: The path belongs to the system.
    """
    if "$" in path:
        raise RefusedError(f"the path {path}")
    whole = PurePosixPath(image.folder) / path
    parts = [part for part in whole.parts if part not in ("/", ".")]
    if not parts or ".." in parts or parts[0] in _SYSTEM:
        raise RefusedError(f"files in {whole}")
    return "/" + "/".join(parts)


_READERS: Final[dict[str, Callable[[Image, str, str], None]]] = {
    "FROM": _from,
    "WORKDIR": _workdir,
    "ENV": _env,
    "COPY": _copy,
    "ADD": _copy,
    "RUN": _run,
}
