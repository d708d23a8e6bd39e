"""Find the browser's binary.

The launcher scripts that Debian puts on the PATH are skipped: they do not exec, so a signal to
their process leaves the browser running. Headless shells come before whole browsers, which draw no
frames on request.
"""

import contextlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from envkit.errors import ConfigurationError, MissingDependencyError, RefusedError
from envkit.files import cache_dir
from envkit.system_packages import NEEDS_LINUX, distribution

VARIABLE: Final = "ENVKIT_BROWSER"
"""Environment variable that names the binary."""
INSTALL_LINE: Final = (
    "apt-get install --no-install-recommends chromium-headless-shell fonts-liberation"
)
"""Installs it on Debian."""
LIBRARIES: Final = "lib"
"""Folder beside a binary of ours with the libraries that it brings."""
FONTS: Final = "fonts.conf"
"""File beside it that adds the fonts that it brings."""
_FEDORA_LINE: Final = "dnf install chromium-headless liberation-fonts-all"
_OWN_LINE: Final = "envkit browser install"
_PLAYWRIGHT_LINE: Final = "playwright install --only-shell chromium"
_PLACES: Final = (
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/headless_shell",
    "/usr/lib/chromium-browser/headless_shell",
    "/usr/lib64/chromium-browser/headless_shell",
)
_SHELLS: Final = ("chromium-headless-shell", "chrome-headless-shell", "headless_shell")
_BROWSERS: Final = ("chromium", "chrome")
_MAGIC: Final = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""First bytes of a Linux or macOS executable, which no script has."""


def find_browser() -> Path:
    """Return the binary of a headless Chromium.

    Raises:
        RefusedError: `ENVKIT_BROWSER` names no binary.
        MissingDependencyError: No browser is installed.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        path = Path(os.path.expanduser(chosen))
        if not is_binary(path):
            raise RefusedError(
                f"{VARIABLE} must name an executable binary, not a launcher script, "
                f"got {chosen!r}. Fix it with: unset {VARIABLE}"
            )
        return path
    for path in _candidates():
        if is_binary(path):
            return path.resolve()
    raise MissingDependencyError(
        "a real browser needs a headless shell of Chromium, and none is installed. "
        f"Install it with: {shell_line()} (or name a binary in {VARIABLE})"
    )


def is_binary(path: Path) -> bool:
    """Return whether this is an executable file, and neither a script nor a snap."""
    try:
        with path.open("rb") as file:
            is_program = file.read(4) in _MAGIC and os.access(path, os.X_OK)
        return is_program and path.resolve().name != "snap"
    except OSError:
        return False


def shell_line() -> str:
    """Return the command that installs a headless shell on this system."""
    here = distribution()
    if here in ("debian", "fedora"):
        return INSTALL_LINE if here == "debian" else _FEDORA_LINE
    if sys.platform != "linux":
        return NEEDS_LINUX
    if _has_playwright():
        return _PLAYWRIGHT_LINE
    is_built = platform.machine() == "x86_64"
    return _OWN_LINE if is_built else f"pip install playwright && {_PLAYWRIGHT_LINE}"


def libraries_line() -> str:
    """Return the command that installs the system libraries of a headless shell."""
    line = shell_line()
    return "playwright install-deps chromium" if line == _PLAYWRIGHT_LINE else line


def own_folder() -> Path:
    """Return the folder of browsers that envkit installed; it may not exist.

    Raises:
        ConfigurationError: The user has no home folder, and `ENVKIT_CACHE` names no other.
    """
    return cache_dir() / "browser"


def _candidates() -> Iterator[Path]:
    yield from map(Path, _PLACES)
    yield from _on_path(_SHELLS)
    with contextlib.suppress(ConfigurationError):  # no home folder
        yield from _newest_first(own_folder(), "chromium-*/chromium")
    for folder in _playwright_folders():
        yield from _newest_first(folder, "chromium_headless_shell-*/*/*headless[-_]shell")
    puppeteer = Path(os.environ.get("PUPPETEER_CACHE_DIR") or _home(".cache", "puppeteer"))
    yield from _newest_first(puppeteer / "chrome-headless-shell", "*/*/chrome-headless-shell")
    yield from _on_path(_BROWSERS)


def _on_path(names: Iterable[str]) -> Iterator[Path]:
    return (Path(path) for name in names if (path := shutil.which(name)))


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    """Return files by the version that the first folder of their paths ends with."""

    def version(path: Path) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", path.relative_to(folder).parts[0])]

    return sorted(folder.glob(pattern), key=version, reverse=True)


def _playwright_folders() -> list[Path]:
    named = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    cache = os.environ.get("XDG_CACHE_HOME") or _home(".cache")
    folders = (named, f"{cache}/ms-playwright", _home("Library", "Caches", "ms-playwright"))
    return [Path(folder) for folder in folders if folder]


def _home(*parts: str) -> str:
    return os.path.join(os.path.expanduser("~"), *parts)


def _has_playwright() -> bool:
    return shutil.which("playwright") is not None or find_spec("playwright") is not None
