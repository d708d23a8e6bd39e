"""The command group, and handling of errors.

Exit codes: 0 success, 1 an error or a failed check, 2 wrong usage (a
`ConfigurationError`), 3 a rollout in which every episode faulted, 130 after Ctrl-C.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup

from envkit.cli.audit import audit
from envkit.cli.catalog import info, list_environments
from envkit.cli.console import note, note_traceback, one_line, printable, say
from envkit.cli.doctor import doctor
from envkit.cli.examples import EXAMPLES, epilog, help_text
from envkit.cli.merge import merge
from envkit.cli.new import new
from envkit.cli.person import play
from envkit.cli.plugin_commands import plugin_commands
from envkit.cli.rollout import rollout
from envkit.cli.stored import report, verify
from envkit.cli.ui import ui
from envkit.cli.view import view
from envkit.errors import ConfigurationError, EnvkitError, did_you_mean, nearest
from envkit.files import expanded

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
_ALSO_CALLED: Final = {
    "-k": "--group",
    "--samples": "--group",
    "-n": "--rows",
    "--n": "--rows",
}
"""Options of other commands and programs, and those that come nearest."""
_LIKELY: Final = 0.6
"""Similarity of an option that is suggested for an unknown one."""
_UsageError: Final[type[Exception]] = cast(Any, typer.BadParameter.__bases__[0])
"""click's, which typer does not export."""


class _Commands(TyperGroup):
    """Prints expected errors on one line, and accepts --debug after the command too.

    Plugins are searched only if no envkit command matches.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401  # click's context
        """Return the names of all commands, plugins' last."""
        self._add_plugin_commands()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401  # click's context and command
        """Return a command of envkit or of a plugin; None if there is none."""
        if cmd_name not in self.commands:
            self._add_plugin_commands()
        return super().get_command(ctx, cmd_name)

    def _add_plugin_commands(self) -> None:
        for name, command in plugin_commands().items():
            self.commands.setdefault(name, command)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # click's context
        """Expand `~` in all arguments, and move --debug to the front, as declared."""
        try:
            args = [_expanded(one) for one in args]
        except ConfigurationError as error:
            raise typer.BadParameter(str(error)) from error
        end = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:end]:
            args = ["--debug", *(a for a in args[:end] if a != "--debug"), *args[end:]]
        return super().parse_args(ctx, args)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: Any = None,  # noqa: ANN401  # click's context
        **extra: Any,  # noqa: ANN401  # click's settings of a context
    ) -> Any:  # noqa: ANN401  # click's context
        """Read the arguments; `--help` writes while they are read."""
        try:
            return super().make_context(info_name, args, parent=parent, **extra)
        except OSError as error:
            raise _ended(error) from error

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # click's context and result
        """Run the command and turn envkit's errors into a line and an exit code."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            _suggest(error)
            raise
        except EnvkitError as error:
            if ctx.params.get("debug"):
                raise
            note(f"envkit: error: {one_line(error)}")
            is_usage = isinstance(error, ConfigurationError)
            raise typer.Exit(EXIT_USAGE if is_usage else EXIT_ERROR) from error
        except OSError as error:  # a file or folder that a command touches
            if ctx.params.get("debug"):
                raise
            raise _ended(error) from error
        except SystemExit as error:  # raised by an environment or an engine, not by a command
            if isinstance(
                error.__context__, BrokenPipeError
            ):  # raised by rich: `envkit ... --help | head`
                raise
            if ctx.params.get("debug"):
                note_traceback(error)
            note(
                f"envkit: error: an environment, an engine or a policy called "
                f"sys.exit({error.code!r})"
            )
            raise typer.Exit(EXIT_ERROR) from error
        except KeyboardInterrupt as error:
            note("envkit: interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from error


def _expanded(argument: str) -> str:
    """Return an argument with the user's home for `~`; a shell leaves `--out=~/runs` as it is."""
    option, separator, value = argument.partition("=")
    if option.startswith("--") and separator:
        return f"{option}={expanded(value)}"
    return expanded(argument)


def _ended(error: OSError) -> Exception:
    """Report a file-system error, and return the exception that ends the command."""
    if isinstance(error, BrokenPipeError):  # `envkit ... | head`
        return error
    place = "" if error.filename is None else f"{error.filename}: "
    note(f"envkit: error: {printable(f'{place}{error.strerror or error}')}")
    return typer.Exit(EXIT_ERROR)


def _meant(message: str) -> str:
    """Return a suggestion from the choices in the message of a wrong value."""
    given, found, choices = message.partition(" is not one of ")
    quoted = re.findall(r"'([^']*)'", given)
    if not found or not quoted:
        return ""
    return did_you_mean(quoted[-1], re.findall(r"'([^']*)'", choices))


def _suggest(error: Any) -> None:  # noqa: ANN401  # click's error
    """Add what the user may have meant to the message of a wrong value or option."""
    name: str | None = getattr(error, "option_name", None)
    if name is None or error.ctx is None:
        meant = _meant(error.message)
    else:
        options = [one for known in error.ctx.command.params for one in known.opts if one[0] == "-"]
        likely = (name[1:], _ALSO_CALLED.get(name))  # --n: -n
        found = next((one for one in likely if one in options), None)
        found = found or nearest(name, options, cutoff=_LIKELY)
        meant = "" if found is None else f". Did you mean {found!r}?"
        # click's versions suggest in different ways.
        error.possibilities = None
    error.message = printable(error.message + meant)


app = typer.Typer(
    name="envkit",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        say(f"envkit {version('envkit-rl')}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  # registered by the decorator; the group reads `debug`
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Environments for language and vision-language models: list, play, roll out, view, check."""


_COMMANDS: Final[dict[str, dict[str, Callable[..., None]]]] = {
    "Look": {"list": list_environments, "info": info, "play": play, "doctor": doctor},
    "Roll out": {
        "rollout": rollout,
        "merge": merge,
        "ui": ui,
        "report": report,
        "view": view,
        "verify": verify,
    },
    "Write an environment": {"new": new},
    "Train": {"audit": audit},
}
"""Commands by help group, as in docs/command-line.md. Plugins come last."""
for _group, _members in _COMMANDS.items():
    for _name, _command in _members.items():
        app.command(
            _name,
            help=help_text(_command),
            epilog=epilog(EXAMPLES[_name]),
            rich_help_panel=_group,
        )(_command)
