"""Find the browser's binary.

The launcher scripts that Debian puts on the PATH are skipped: they do not exec, so a signal to
their process leaves the browser running.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from envkit.errors import ConfigurationError, MissingDependencyError

VARIABLE: Final = "ENVKIT_BROWSER"
"""Environment variable that names the binary."""
INSTALL_LINE: Final = "apt-get install --no-install-recommends chromium-headless-shell"
_PLACES: Final = (
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/headless_shell",
    "/usr/lib/chromium-browser/headless_shell",
)
_NAMES: Final = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "headless_shell",
    "chromium",
    "chrome",
)
_MAGIC: Final = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""First bytes of a Linux or macOS executable, which no script has."""


def find_browser() -> Path:
    """Return the binary of a headless Chromium.

    Raises:
        ConfigurationError: `ENVKIT_BROWSER` names no binary.
        MissingDependencyError: No browser is installed.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        if not is_binary(Path(chosen)):
            raise ConfigurationError(
                f"{VARIABLE} must name an executable binary, not a launcher script, "
                f"got {chosen!r}. Fix it with: unset {VARIABLE}"
            )
        return Path(chosen)
    found = (Path(path) for name in _NAMES if (path := shutil.which(name)))
    for path in (*map(Path, _PLACES), *found):
        if is_binary(path):
            return path.resolve()
    raise MissingDependencyError(
        "a real browser needs the program chromium-headless-shell, which is not installed. "
        f"Install it with: {INSTALL_LINE} (or name a binary in {VARIABLE})"
    )


def is_binary(path: Path) -> bool:
    """Return whether this is an executable file and not a script."""
    try:
        with path.open("rb") as file:
            return file.read(4) in _MAGIC and os.access(path, os.X_OK)
    except OSError:
        return False
