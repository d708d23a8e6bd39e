"""Read a task's setup and the steps before grading."""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final, cast

from envkit_actions.action import Action, ActionKind
from envkit_linux_desktop.osworld import programs, steps
from envkit_linux_desktop.osworld.programs import Application
from envkit_linux_desktop.osworld.refusal import RefusalKind, RefusedError
from envkit_linux_desktop.osworld.steps import HOME, LONGEST_WAIT, Step

Reader = Callable[[dict[str, Any], Collection[Application]], tuple[Step, ...]]
_NETWORK: Final = {
    "chrome_open_tabs": "web pages in Chrome",
    "chrome_close_tabs": "web pages in Chrome",
    "update_browse_history": "web pages in Chrome",
    "googledrive": "a Google account",
    "login": "an online account",
}


def read_steps(config: object, installed: Collection[Application]) -> tuple[Step, ...]:
    """Translate a list of setup steps.

    Raises:
        RefusedError: One of them is not valid, or cannot be done here.
    """
    if not isinstance(config, list):
        raise RefusedError(RefusalKind.SCHEMA, "setup steps must be a list")
    found: list[Step] = []
    for entry in cast(list[object], config):
        found += _step(entry, installed)
    return tuple(found)


def home_path(path: object) -> str:
    """Return a path relative to the home folder, in which every command starts.

    Raises:
        RefusedError: It lies elsewhere.
    """
    if isinstance(path, str):
        text = path.replace("~", HOME, 1) if path.startswith("~/") else path
        inside = text.removeprefix(f"{HOME}/")
        leaves = inside.startswith("/") or ".." in inside.split("/")
        if inside and not leaves and "\0" not in inside:
            return inside
    raise RefusedError(RefusalKind.RESULT, "a file outside the home folder")


def _step(entry: object, installed: Collection[Application]) -> tuple[Step, ...]:
    if not isinstance(entry, dict):
        raise RefusedError(RefusalKind.SCHEMA, f"a setup step must be an object, got {entry!r:.60}")
    fields = cast(dict[str, Any], entry)
    kind, parameters = str(fields.get("type")), fields.get("parameters", {})
    if kind in _NETWORK:
        raise RefusedError(RefusalKind.NETWORK, _NETWORK[kind])
    read = _READERS.get(kind)
    if read is None:
        raise RefusedError(RefusalKind.STEP, kind)
    try:
        return read(dict(parameters), installed)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RefusedError(RefusalKind.SCHEMA, f"the parameters of {kind!r}") from error


def _download(values: dict[str, Any], _: Collection[Application]) -> tuple[Step, ...]:
    return tuple(
        steps.PutFile(path=home_path(file["path"]), address=_text(file, "url"))
        for file in values["files"]
    )


def _text(values: dict[str, Any], key: str) -> str:
    if not isinstance(values[key], str):
        raise TypeError(f"{key} must be a text")
    return values[key]


def _open(values: dict[str, Any], installed: Collection[Application]) -> tuple[Step, ...]:
    return (programs.opened(f"{HOME}/{home_path(values['path'])}", installed),)


def _launch(values: dict[str, Any], installed: Collection[Application]) -> tuple[Step, ...]:
    command, shell = programs.read_command(values), programs.is_shell(values)
    return programs.launched(command, shell=shell, installed=installed)


def _execute(values: dict[str, Any], installed: Collection[Application]) -> tuple[Step, ...]:
    unknown = values.keys() - {"command", "shell", "stdout", "stderr"}
    if unknown:
        raise RefusedError(RefusalKind.STEP, f"execute with {min(unknown)!r}")
    command, shell = programs.read_command(values), programs.is_shell(values)
    ran = programs.ran(command, shell=shell, installed=installed)
    saved = {name: str(values[name]) for name in ("stdout", "stderr") if values.get(name)}
    return tuple(replace(step, **saved) if isinstance(step, steps.Run) else step for step in ran)


def _sleep(values: dict[str, Any], _: Collection[Application]) -> tuple[Step, ...]:
    seconds = float(values["seconds"])
    if math.isnan(seconds):
        raise ValueError("not a number of seconds")
    return (Action(kind=ActionKind.WAIT, seconds=min(max(seconds, 0.0), LONGEST_WAIT)),)


def _on_window(kind: type[steps.Activate | steps.CloseWindow]) -> Reader:
    def read(values: dict[str, Any], _: Collection[Application]) -> tuple[Step, ...]:
        title = _text(values, "window_name")
        return (kind(title=title, strict=bool(values.get("strict", False))),)

    return read


_READERS: Final[dict[str, Reader]] = {
    "download": _download,
    "open": _open,
    "launch": _launch,
    "execute": _execute,
    "command": _execute,
    "sleep": _sleep,
    "activate_window": _on_window(steps.Activate),
    "close_window": _on_window(steps.CloseWindow),
}
