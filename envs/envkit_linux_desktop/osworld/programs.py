"""Programs that task files name, and what this desktop has instead or lacks."""

import re
import shlex
from collections.abc import Collection
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final, cast

from envkit_actions.action import Action, ActionKind
from envkit_linux_desktop.osworld import network
from envkit_linux_desktop.osworld.recorded_input import translate
from envkit_linux_desktop.osworld.refusal import RefusalKind, RefusedError
from envkit_linux_desktop.osworld.steps import HOME, Launch, Run, Step


class Application(StrEnum):
    """An application that tasks open."""

    CALC = "calc"
    WRITER = "writer"
    IMPRESS = "impress"
    FILES = "files"
    EDITOR = "editor"
    TERMINAL = "terminal"
    VIEWER = "viewer"


DEFAULT_APPLICATIONS: Final = frozenset(Application)
"""Installed with the documented packages."""

_COMMANDS: Final[dict[Application, tuple[str, ...]]] = {
    Application.CALC: ("localc",),
    Application.WRITER: ("lowriter",),
    Application.IMPRESS: ("loimpress",),
    Application.FILES: ("pcmanfm",),
    Application.EDITOR: ("mousepad",),
    Application.TERMINAL: ("xterm",),
    Application.VIEWER: ("chromium",),
}
_ENDINGS: Final[dict[str, Application]] = {
    ending: application
    for application, endings in {
        Application.CALC: ("xlsx", "xls", "ods", "csv"),
        Application.WRITER: ("docx", "doc", "odt", "rtf"),
        Application.IMPRESS: ("pptx", "ppt", "odp"),
        Application.VIEWER: ("pdf",),
        Application.EDITOR: ("txt", "md", "json", "py", "sh", "log"),
    }.items()
    for ending in endings
}
_OFFICE_MODES: Final = {
    "--calc": Application.CALC,
    "--writer": Application.WRITER,
    "--impress": Application.IMPRESS,
}
_RELATED: Final = {
    "chrome": "Chrome",
    "browser": "Chrome",
    "gimp": "GIMP",
    "vscode": "VS Code",
    "vs_code": "VS Code",
    "thunderbird": "Thunderbird",
    "vlc": "VLC",
    "ubuntu_media_player": "VLC",
    "picard": "Picard",
}
"""Names in `related_apps` whose programs this desktop does not have."""
_WORDS: Final[dict[str, tuple[RefusalKind, str]]] = {
    word: (kind, detail)
    for kind, detail, words in (
        (RefusalKind.PRIVILEGE, "root", "sudo su apt apt-get dpkg snap useradd passwd"),
        (RefusalKind.PRIVILEGE, "system services", "systemctl timedatectl pactl pulseaudio"),
        (RefusalKind.NETWORK, "packages from the network", "pip pip3 conda npm"),
        (RefusalKind.NETWORK, "network", "curl wget aria2c ssh scp sftp ping nslookup socat"),
        (RefusalKind.APPLICATION, "Chrome", "google-chrome"),
        (RefusalKind.APPLICATION, "GIMP", "gimp"),
        (RefusalKind.APPLICATION, "VS Code", "code"),
        (RefusalKind.APPLICATION, "Thunderbird", "thunderbird"),
        (RefusalKind.APPLICATION, "VLC", "vlc"),
        (RefusalKind.APPLICATION, "GNOME settings", "gsettings dconf"),
        (RefusalKind.APPLICATION, "GNOME's window tools", "wmctrl xdotool update-desktop-database"),
    )
    for word in words.split()
}
_WORD: Final = re.compile(r"(?:^|[\s;&|(`/])([a-z][a-z0-9-]*)(?=$|[\s;&|)`])")
_PYTHON: Final = re.compile(r"(^|[;&|(]\s*)python(?=\s)")


def check_related(names: Collection[str]) -> None:
    """Refuse a task that needs an application which the desktop does not have.

    Raises:
        RefusedError: One is missing.
    """
    for name in names:
        missing = _RELATED.get(name.lower())
        if missing is not None:
            raise RefusedError(RefusalKind.APPLICATION, missing)


def opened(path: str, installed: Collection[Application]) -> Launch:
    """Return the step that opens a file or folder with its application.

    Raises:
        RefusedError: Nothing installed opens it.
    """
    ending = PurePosixPath(path).suffix.lower().lstrip(".")
    application = _ENDINGS.get(ending) if ending else Application.FILES
    if application is None:
        raise RefusedError(RefusalKind.APPLICATION, f"a viewer for .{ending} files")
    return _launch(application, (path,), installed)


def launched(
    command: str | list[str], *, shell: bool, installed: Collection[Application]
) -> tuple[Step, ...]:
    """Return the steps that start a program in the background.

    Raises:
        RefusedError: The program is not on this desktop.
    """
    words = split(command, shell=False)
    name, rest = PurePosixPath(words[0]).name, words[1:]
    if name in ("libreoffice", "soffice"):
        modes = [_OFFICE_MODES[word] for word in rest if word in _OFFICE_MODES]
        files = tuple(word for word in rest if word not in _OFFICE_MODES)
        if modes:
            return (_launch(modes[0], files, installed),)
        return (opened(files[0] if files else "new.odt", installed),)
    if name == "nautilus":
        return (_launch(Application.FILES, rest, installed),)
    if name == "gedit":
        return (_launch(Application.EDITOR, rest, installed),)
    if name == "gnome-terminal":
        return (_launch(Application.TERMINAL, (), installed),)
    return (Launch(command=run(command, shell=shell)[0].command),)


def ran(
    command: str | list[str], *, shell: bool, installed: Collection[Application]
) -> tuple[Step, ...]:
    """Return the steps of a command that runs to its end; pyautogui programs become input.

    Raises:
        RefusedError: It needs what the desktop does not have.
    """
    words = split(command, shell=shell)
    if PurePosixPath(words[0]).name in ("python", "python3") and "pyautogui" in words[-1]:
        if len(words) != 3 or words[1] != "-c":
            raise RefusedError(RefusalKind.INPUT, "a pyautogui program in a file")
        terminal = _launch(Application.TERMINAL, (), installed)
        steps = translate(words[2])
        return tuple(terminal if step == _OPEN_TERMINAL else step for step in steps)
    text = command if isinstance(command, str) else " ".join(command)
    if "gnome-terminal" in text and "killall" not in text:
        return (_launch(Application.TERMINAL, (), installed),)
    return run(command, shell=shell)


def run(command: str | list[str], *, shell: bool) -> tuple[Run]:
    """Return the step of a plain command.

    Raises:
        RefusedError: It needs what the desktop does not have.
    """
    check_words(command if isinstance(command, str) else " ".join(command))
    return (Run(command=split(command, shell=shell)),)


def check_words(text: str) -> None:
    """Refuse a command that names a program which the desktop does not have.

    Raises:
        RefusedError: It names one.
    """
    for found in _WORD.finditer(text):
        if (reason := _WORDS.get(found.group(1))) is not None:
            raise RefusedError(*reason)
    network.check_command(text)
    if "{CLIENT_PASSWORD}" in text:
        raise RefusedError(RefusalKind.PRIVILEGE, "root")


def split(command: str | list[str], *, shell: bool) -> tuple[str, ...]:
    """Return the words of a command; `python` is `python3` on Debian.

    Raises:
        RefusedError: It has none, or unbalanced quotes.
    """
    if shell or (isinstance(command, str) and "\n" in command):
        text = command if isinstance(command, str) else " ".join(command)
        return ("sh", "-c", _PYTHON.sub(r"\1python3", text))
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise RefusedError(RefusalKind.SCHEMA, f"the command {command!r:.60}") from error
    if not words or not words[0]:
        raise RefusedError(RefusalKind.SCHEMA, "an empty command")
    if words[0] == "python":
        words[0] = "python3"
    return tuple(f"{HOME}{word[1:]}" if word.startswith("~/") else word for word in words)


def read_command(parameters: dict[str, Any]) -> str | list[str]:
    """Return the command of a step or a getter.

    Raises:
        RefusedError: It is neither text nor a list of texts.
    """
    command = parameters.get("command")
    words = cast(list[object], command) if isinstance(command, list) else [command]
    if words and all(isinstance(word, str) and "\0" not in word for word in words):
        if isinstance(command, list):
            return cast(list[str], words)
        if isinstance(command, str) and command.strip():
            return command
    raise RefusedError(
        RefusalKind.SCHEMA, f"'command' must be text or a list of texts, got {command!r:.60}"
    )


def is_shell(parameters: dict[str, Any]) -> bool:
    """Return whether a command runs in a shell; task files write true or "true"."""
    return str(parameters.get("shell", False)).lower() == "true"


def _launch(
    application: Application, arguments: tuple[str, ...], installed: Collection[Application]
) -> Launch:
    if application not in installed:
        name = f"LibreOffice {application.title()}" if application in _OFFICE_SET else application
        raise RefusedError(RefusalKind.APPLICATION, str(name))
    return Launch(command=(*_COMMANDS[application], *arguments))


_OPEN_TERMINAL: Final = Action(kind=ActionKind.KEY, keys=("ctrl", "alt", "t"))
"""OSWorld's desktop opens a terminal by these keys."""
_OFFICE_SET: Final = frozenset(_OFFICE_MODES.values())
