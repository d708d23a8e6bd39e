"""Commands whose options are the fields of a dataclass."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, Final, TypeVar, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from envkit.errors import ConfigurationError

Options = TypeVar("Options", bound="CommandOptions")

BESIDE_RESUME: Final = "beside --resume"
"""Marks an option that has an effect with --resume, which takes the others from the run."""
BESIDE_ALL: Final = "beside every option"
"""Marks an option that changes only what a command prints."""


class CommandOptions:
    """A dataclass whose fields are options, each annotated with a `typer.Option` and its marks."""

    def refuse(self, why: str, *, besides: str) -> None:
        """Reject options that have no effect with another one.

        Args:
            why: Start of the message.
            besides: Mark of the fields that are allowed.

        Raises:
            BadParameter: Any other option was given.
        """
        wrong = [
            _typed(name, marks)
            for name, marks in _marks(type(self)).items()
            if not {besides, BESIDE_ALL} & {mark for mark in marks if isinstance(mark, str)}
            and _is_given(getattr(self, name))
        ]
        if wrong:
            raise typer.BadParameter(f"{why}: drop {', '.join(wrong)}")

    def refuse_panel(self, panel: str, why: str) -> None:
        """Reject options of a panel of the help.

        Args:
            panel: The panel's title.
            why: Start of the message, before the options.

        Raises:
            ConfigurationError: One was given.
        """
        wrong = [
            _typed(name, marks)
            for name, marks in _marks(type(self)).items()
            if _is_given(getattr(self, name)) and _info(marks).rich_help_panel == panel
        ]
        if wrong:
            raise ConfigurationError(f"{why} {', '.join(wrong)}")


def takes(kind: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Turn a function of an options record into a command.

    The options of a subclass come before those of its bases, in the command's help as in its usage.

    Args:
        kind: A dataclass; every field has a default, except those of required options.
    """

    def decorate(function: Callable[[Options], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**given: Any) -> None:  # noqa: ANN401  # values of options
            function(kind(**given))

        hints = get_type_hints(kind, include_extras=True)
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in _fields_of(kind)
        ]
        # typer reads both: the signature for the options, the annotations for their types.
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        vars(command)["__signature__"] = inspect.Signature(parameters)
        return command

    return decorate


def _fields_of(kind: type[Any]) -> list["Field[Any]"]:
    """Return the fields, those of the most derived class first."""
    known = {field.name: field for field in fields(kind)}
    names = [name for one in kind.__mro__ for name in vars(one).get("__annotations__", {})]
    return [known[name] for name in dict.fromkeys(names) if name in known]


def _marks(kind: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Return what each field is annotated with, by the fields' names."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name].__metadata__ for field in _fields_of(kind)}


def _info(marks: tuple[Any, ...]) -> OptionInfo | ArgumentInfo:
    (info,) = [one for one in marks if isinstance(one, OptionInfo | ArgumentInfo)]
    return info


def _typed(name: str, marks: tuple[Any, ...]) -> str:
    """Return how an option is typed first, or the name of an argument in the usage."""
    info = _info(marks)
    if isinstance(info, ArgumentInfo):
        return (info.metavar or name).rstrip(".")
    declared = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
    return declared[0] if declared else f"--{name.replace('_', '-')}"


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != []
