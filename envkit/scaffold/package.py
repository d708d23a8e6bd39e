"""Fill in the templates and write them to a folder."""

import importlib.util
import keyword
import re
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from envkit.errors import ConfigurationError, StorageError
from envkit.registration import registry

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_FILES: Final = {
    "pyproject.toml": "pyproject",
    "README.md": "readme",
    ".gitignore": "gitignore",
    ".github/workflows/ci.yml": "ci",
    "{module}/__init__.py": "init",
    "{module}/env.py": "env",
    "{module}/py.typed": None,
    "tests/test_{module}.py": "tests",
}
"""Path to template; None creates an empty file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageName:
    """A name in all the forms that a package needs."""

    name: str
    """Project name, such as "count-dots"."""

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None or keyword.iskeyword(self.module):
            raise ConfigurationError(
                "a name must be lowercase letters, digits and single hyphens, such as count-dots, "
                f"got {self.name!r}"
            )

    @property
    def module(self) -> str:
        """Module name, such as "count_dots"."""
        return self.name.replace("-", "_")

    @property
    def class_name(self) -> str:
        """Class name, such as "CountDotsEnv"."""
        return "".join(word.capitalize() for word in self.name.split("-")) + "Env"

    @property
    def env_id(self) -> str:
        """Environment id, such as "count-dots-v0"."""
        return f"{self.name}-v0"


def write_package(name: PackageName, parent: Path) -> list[Path]:
    """Write the package of a new environment to a folder named after it.

    Args:
        name: Package name.
        parent: The parent folder, created if missing.

    Returns:
        The written files.

    Raises:
        ConfigurationError: A module or an environment already has the name.
        StorageError: The folder exists, or cannot be written.
    """
    _refuse_taken(name)
    root = parent / name.name
    if root.exists():
        raise StorageError(f"{root} exists: choose another name, or another --into")
    values = {word: getattr(name, word) for word in ("name", "module", "class_name", "env_id")}
    written: list[Path] = []
    try:
        for pattern, template in _FILES.items():
            path = root / pattern.format(module=name.module)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(template, values), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise StorageError(f"{root} cannot be written: {error}") from error
    return written


def _filled(template: str | None, values: dict[str, str]) -> str:
    if template is None:
        return ""
    resource = files("envkit.scaffold") / "templates" / f"{template}.tmpl"
    return Template(resource.read_text(encoding="utf-8")).substitute(values)


def _refuse_taken(name: PackageName) -> None:
    if name.module in sys.stdlib_module_names or importlib.util.find_spec(name.module) is not None:
        raise ConfigurationError(
            f"a package must not shadow another one, got {name.name!r}: a module {name.module!r} "
            "already exists"
        )
    if name.env_id in registry():
        raise ConfigurationError(f"an environment {name.env_id!r} already exists")
