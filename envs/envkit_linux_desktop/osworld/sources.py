"""Where an evaluator's two values come from: getters, as data."""

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar, cast

from envkit_linux_desktop.osworld import programs
from envkit_linux_desktop.osworld.refusal import RefusalKind, RefusedError
from envkit_linux_desktop.osworld.setup import home_path


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files, all of which lie beside each other for evaluators."""

    paths: tuple[str, ...]
    names: tuple[str, ...]
    """Their names for evaluators."""
    gives: tuple[int, ...]
    """Which of them are the value."""


class HomeFiles(Files):
    """Files of the session's home folder."""


class FolderFiles(Files):
    """Files of the folder of files, by their addresses."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of a command in the session."""

    command: tuple[str, ...]
    is_error: bool = False


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A file that an earlier getter or step saved."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The names in a folder, as OSWorld's directory tree of one level."""

    path: str


@dataclass(frozen=True, kw_only=True)
class Literal:
    """A value of the task file itself."""

    value: Any


Found = TypeVar("Found", bound=Files)
Source = HomeFiles | FolderFiles | Output | Saved | Listing | Literal

_ELSEWHERE: Final = {
    "googledrive_file": (RefusalKind.NETWORK, "a Google account"),
    "rule_relativeTime": (RefusalKind.NETWORK, "live web pages"),
    "pdf_from_url": (RefusalKind.NETWORK, "live web pages"),
    "info_from_website": (RefusalKind.NETWORK, "live web pages"),
    "gotoRecreationPage_and_get_html_content": (RefusalKind.NETWORK, "live web pages"),
}


def read_source(entry: object) -> Source:
    """Translate a getter.

    Raises:
        RefusedError: It is not valid, or reads what the desktop does not have.
    """
    if not isinstance(entry, dict):
        raise RefusedError(RefusalKind.SCHEMA, f"a getter must be an object, got {entry!r:.60}")
    fields = cast(dict[str, Any], entry)
    kind = str(fields.get("type"))
    if kind in _ELSEWHERE:
        raise RefusedError(*_ELSEWHERE[kind])
    try:
        return _read(kind, fields)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RefusedError(RefusalKind.SCHEMA, f"the getter {kind!r}") from error


def _read(kind: str, fields: dict[str, Any]) -> Source:
    match kind:
        case "vm_file":
            if fields.get("time_suffix"):
                raise RefusedError(RefusalKind.RESULT, "vm_file with a time in its name")
            files = _files(HomeFiles, fields)
            return replace(files, paths=tuple(home_path(path) for path in files.paths))
        case "cloud_file":
            return _files(FolderFiles, fields)
        case "vm_command_line" | "vm_command_error":
            run = programs.run(programs.read_command(fields), shell=programs.is_shell(fields))
            return Output(command=run[0].command, is_error=kind == "vm_command_error")
        case "cache_file":
            return Saved(name=str(fields["path"]))
        case "list_directory":
            return Listing(path=home_path(fields["path"]))
        case "rule":
            return Literal(value=fields["rules"])
        case _:
            raise RefusedError(RefusalKind.RESULT, kind)


def _files(kind: type[Found], fields: dict[str, Any]) -> Found:
    """Return one file or several."""
    several = bool(fields.get("multi", False))
    lists = (fields["path"], fields["dest"])
    if several != all(isinstance(value, list) for value in lists):
        raise TypeError("lists of paths and names, if there are several")
    paths, names = (tuple(value) if several else (value,) for value in lists)
    gives = tuple(sorted(fields.get("gives", [0])))
    if len(paths) != len(names) or not all(isinstance(text, str) for text in (*paths, *names)):
        raise ValueError("as many names as paths")
    if not gives or {*map(type, gives)} != {int} or gives[0] < 0 or gives[-1] >= len(paths):
        raise ValueError("gives must be indices of the paths")
    return kind(paths=paths, names=tuple(PurePosixPath(name).name for name in names), gives=gives)
