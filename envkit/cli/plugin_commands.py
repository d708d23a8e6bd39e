"""Plugin commands, which are listed without importing them.

A distribution adds a command with an entry point in the group `envkit.commands`. The name of the
entry point is the command's name, and its value is a function whose signature and docstring typer
reads, as for envkit's own commands. `envkit --help` shows the docstring's first line under the
group given to `with_examples`, both parsed from the source. A plugin cannot replace an envkit
command.
"""

import ast
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand

from envkit.cli.console import printable
from envkit.cli.examples import epilog, examples_of, help_text
from envkit.errors import ContractError
from envkit.plugins import installed, load_only, owners

ENTRY_POINT_GROUP: Final = "envkit.commands"


class PluginCommand(TyperCommand):
    """Placeholder for a plugin's command until it is run."""

    def __init__(self, name: str, points: Sequence[EntryPoint]) -> None:
        from rich.markup import escape  # imported here: slow, and most commands do not need rich

        line, group = _first_line(points[0])
        super().__init__(name=name, callback=None, rich_help_panel=group or "Commands of plugins")
        line = line or f"From {owners(points)}."
        self.short_help = escape(printable(line))
        self._points = points

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: Any = None,  # noqa: ANN401  # click's context
        **extra: Any,  # noqa: ANN401  # click's settings of a context
    ) -> Any:  # noqa: ANN401  # click's context
        """Import the command and parse its arguments.

        Raises:
            ContractError: It fails to import, is not a function, or two distributions define it.
            MissingDependencyError: A dependency of the command is not installed.
        """
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:  # noqa: ANN401  # click's command
        """Import the function and return its command; see `make_context`."""
        point = self._points[0]
        place = f"the command {self.name!r} of the distribution {owners(self._points)!r}"
        function = load_only(self._points, place)
        if not callable(function):
            raise ContractError(
                f"{place} ({point.value}) must be a function, got {type(function).__name__}"
            )
        return _command_of(self.name or point.name, cast("Callable[..., Any]", function), place)


def plugin_commands() -> dict[str, PluginCommand]:
    """Return the commands of all installed plugins by name; imports none of them."""
    found = installed(ENTRY_POINT_GROUP)
    return {name: PluginCommand(name, points) for name, points in sorted(found.items())}


def _command_of(name: str, function: Callable[..., Any], place: str) -> Any:  # noqa: ANN401  # click's command
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name, help=help_text(function), epilog=epilog(examples_of(function)))(function)
    try:
        return typer.main.get_command(app)
    except (RuntimeError, TypeError, AssertionError) as error:  # raised by typer for signatures
        raise ContractError(f"{place} has a signature that typer rejects: {error}") from error


def _first_line(point: EntryPoint) -> tuple[str | None, str | None]:
    """Return the first line of a function's docstring and its group, from the source text.

    Both are None if the source is missing, or if another module defines the function.
    """
    try:
        for node in ast.parse(_source(point.module) or "").body:
            if isinstance(node, ast.FunctionDef) and node.name == point.attr:
                line = (ast.get_docstring(node) or "").partition("\n")[0] or None
                return line, _group(node.decorator_list)
    except Exception:  # noqa: BLE001  # any text and any import hook; running it reports the error
        pass
    return None, None


def _group(decorators: Sequence[ast.expr]) -> str | None:
    """Return the literal `group` that a decorator is called with."""
    keywords = [word for made in decorators if isinstance(made, ast.Call) for word in made.keywords]
    for word in keywords:
        if word.arg == "group" and isinstance(word.value, ast.Constant):
            return str(word.value.value)
    return None


def _source(module: str) -> str | None:
    """Return the source text of a module without importing it or its packages."""
    head, *rest = module.split(".")
    spec, name = find_spec(head), head
    for part in rest:
        if spec is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    loader: Any = None if spec is None else spec.loader
    return None if loader is None else loader.get_source(name)
