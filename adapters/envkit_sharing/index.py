"""An index of packages with environments: a JSON file on a disk or a web server."""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, ServiceError, StorageError, UnknownNameError, describe
from envkit.files import replace_file, storage_errors
from envkit.open_files import open_regular
from envkit.rollout.setting_types import check_fields

SCHEMA: Final = 1
"""Version of the file."""
MAX_BYTES: Final = 16 << 20
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package of an index."""

    requirement: str
    """What pip installs, such as "my-envs @ git+https://example.org/my-envs@3f2a"."""
    version: str
    environments: Sequence[str]
    """Ids of its environments, and `NAME/...` for a collection."""
    certificates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])
    """Reports of `envkit certify` by environment."""

    def __post_init__(self) -> None:
        """Check what a file may hold.

        Raises:
            ConfigurationError: A value has the wrong type, or pip would read the requirement as an
                option.
        """
        check_fields(self, "a package of an index")
        if not self.requirement.isprintable() or self.requirement.startswith(("-", " ")):
            raise ConfigurationError(
                f"a requirement must be one line and not an option, got {self.requirement!r}"
            )

    @property
    def certified(self) -> str:
        """How many of its environments have a certificate that passed."""
        passed = [name for name, one in self.certificates.items() if one.get("passed") is True]
        return f"{len(passed)} of {len(self.environments)} environments certified"


Index = Mapping[str, Package]
"""Packages by name."""


def read_index(place: str | Path) -> Index:
    """Read an index.

    Args:
        place: A file, or an address that begins with http:// or https://.

    Raises:
        StorageError: The file cannot be read.
        ServiceError: The server does not answer with a file of at most 16 MiB.
        ConfigurationError: It is not an index, or one of a newer envkit.
    """
    text = _fetched(str(place)) if _is_address(place) else _stored(Path(place))
    try:
        data: Any = json.loads(text)
        schema, packages = data["schema"], cast("dict[str, Any]", data["packages"])
        found = {name: Package(**entry) for name, entry in packages.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{place} is not an index: {describe(error)}") from error
    if schema != SCHEMA:
        raise ConfigurationError(
            f"the schema of an index must be {SCHEMA}, got {schema!r} in {place}; "
            "upgrade with: pip install -U envkit-rl"
        )
    return found


def write_index(file: Path, index: Index) -> None:
    """Write an index, replacing the file.

    Raises:
        StorageError: It cannot be written.
    """
    packages = {name: asdict(index[name]) for name in sorted(index)}
    text = json.dumps({"schema": SCHEMA, "packages": packages}, indent=1, allow_nan=False)
    with storage_errors(f"cannot write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, text.encode() + b"\n")


def find(index: Index, name: str) -> Package:
    """Return a package by its name, or by the id of one of its environments.

    Raises:
        UnknownNameError: The index has neither.
    """
    if name in index:
        return index[name]
    for package in index.values():
        if name in package.environments:
            return package
    known = [*index, *(env_id for package in index.values() for env_id in package.environments)]
    raise UnknownNameError.suggest("package or environment", name, known)


def _is_address(place: str | Path) -> bool:
    return str(place).startswith(("http://", "https://"))


def _stored(file: Path) -> bytes:
    with storage_errors(f"cannot read {file}"), open_regular(file) as stream:
        text = stream.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise StorageError(f"an index has at most {MAX_BYTES >> 20} MiB, got more in {file}")
    return text


def _fetched(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:  # an http address
            text = cast("bytes", answer.read(MAX_BYTES + 1))
    except (OSError, ValueError) as error:
        raise ServiceError(f"cannot read the index {address}: {describe(error)}") from error
    if len(text) > MAX_BYTES:
        raise ServiceError(f"an index has at most {MAX_BYTES >> 20} MiB, got more from {address}")
    return text
