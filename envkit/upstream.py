"""Contracts with upstream packages, checked by reading their source.

Trainers change fields and parameters between releases without notice. A contract lists those that
an adapter uses. It reads files instead of importing them, so it takes milliseconds, needs none of
the package's dependencies, and also works on a wheel that is not installed.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from envkit.errors import ConfigurationError, MissingDependencyError

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Names in a package that a plugin requires."""

    package: str
    """Import name, such as "verl"."""
    tested: str
    """Versions, or a commit, that the plugin's tests ran with."""
    install: str
    """Command that installs the package, such as "pip install 'envkit-rl[trl]'"."""
    uses: Mapping[str, tuple[str, ...]]
    """Fields and methods of `module:Class`, or parameters of `module:function` or
    `module:Class.method`. List inherited names under the class that defines them. An empty tuple
    only requires the definition. `old|new:function` names two modules, of which one must exist."""

    def check(self) -> None:
        """Compare the installed package with the contract, once per process.

        Raises:
            ConfigurationError: Names are missing; the message lists all of them.
            MissingDependencyError: The package is not installed.
        """
        _check(self.package, self)

    def __hash__(self) -> int:
        """Hash by package and tested versions."""
        return hash((self.package, self.tested))

    def moved(self, root: Path | None = None) -> tuple[str, ...]:
        """Return the names that the package lacks; empty if the contract holds.

        Args:
            root: The package's folder; None uses the installed one.

        Raises:
            MissingDependencyError: The package is not installed.
        """
        folder = root or self._folder()
        return tuple(
            line for place, names in self.uses.items() for line in _missing(folder, place, names)
        )

    def _folder(self) -> Path:
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise MissingDependencyError(
                f"the package {self.package!r} is not installed. Install it with: {self.install}"
            )
        return Path(next(iter(spec.submodule_search_locations)))


@cache
def _check(package: str, contract: Contract) -> None:
    moved = contract.moved()
    if moved:
        raise ConfigurationError(
            f"{package} {_version(package)} does not match the version that this envkit supports "
            f"({contract.tested}): {'; '.join(moved)}; install a tested version of {package}, or "
            "an envkit that supports this one"
        )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def _missing(folder: Path, place: str, names: tuple[str, ...]) -> Iterator[str]:
    module, _, path = place.partition(":")
    trees = [tree for one in module.split("|") if (tree := _tree(folder, one)) is not None]
    if not trees:
        yield f"no module {module.replace('|', ' or ')}"
        return
    found: _Definition | None = None
    body: list[ast.stmt] = trees[0].body
    for part in path.split("."):
        found = _defined(body, part)
        if found is None:
            yield f"no {place}"
            return
        body = found.body
    assert found is not None  # a path has at least one part
    known = _members(found) if isinstance(found, ast.ClassDef) else _parameters(found)
    if known is not None:
        yield from (f"{place} has no {name!r}" for name in names if name not in known)


def _tree(folder: Path, module: str) -> ast.Module | None:
    place = folder.joinpath(*module.split(".")[1:])
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return _parsed(file.read_text(encoding="utf-8"))
    return None


def _parsed(source: str) -> ast.Module:
    """Parse, with one retry: CPython 3.11 sometimes miscounts its recursion depth."""
    try:
        return ast.parse(source)
    except SystemError:
        return ast.parse(source)


def _defined(body: list[ast.stmt], name: str) -> _Definition | None:
    """Return the last class or function with a name in a body, including `if` and `try` blocks."""
    found: _Definition | None = None
    for statement in body:
        if isinstance(statement, _Definition):
            found = statement if statement.name == name else found
        elif isinstance(statement, ast.If | ast.Try):
            handlers = statement.handlers if isinstance(statement, ast.Try) else []
            inner = [*statement.body, *statement.orelse]
            inner += [line for handler in handlers for line in handler.body]
            found = _defined(inner, name) or found
    return found


def _members(definition: ast.ClassDef) -> set[str]:
    """Return fields, methods and names that methods assign, such as attributes of self."""
    names: set[str] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def _parameters(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str] | None:
    """Return the parameters' names; None for a function with `**kwargs`."""
    given = definition.args
    if given.kwarg is not None:
        return None
    return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
