"""What a real desktop needs from the machine."""

import os
import shutil
from collections.abc import Iterable
from typing import Final

from envkit.errors import MissingDependencyError
from envkit.system_packages import install_line
from envkit_sandbox.trial import check_sandbox

SYSTEM_PYTHON: Final = "/usr/bin/python3"
"""The interpreter inside, with Debian's modules."""
BASE: Final = ("bwrap", "Xvfb", "openbox", "dbus-daemon", "gdbus")
"""Programs that every session needs."""
PACKAGES: Final = (
    "bubblewrap",
    "xvfb",
    "openbox",
    "dbus",
    "libglib2.0-bin",
    "python3",
    "at-spi2-core",
    "libatk-adaptor",
    "python3-gi",
    "gir1.2-atspi-2.0",
    "libseccomp2",
    "fonts-dejavu-core",
    "adwaita-icon-theme",
    "mousepad",
    "pcmanfm",
    "galculator",
    "xfce4-settings",
    "xterm",
    "libreoffice-calc",
    "libreoffice-writer",
    "libreoffice-impress",
    "libreoffice-gtk3",
    "chromium",
)
"""Debian packages of the session and of the applications in its tasks."""
_FEDORA: Final = (
    "bubblewrap xorg-x11-server-Xvfb openbox dbus-daemon glib2 python3 at-spi2-core at-spi2-atk "
    "python3-gobject libseccomp dejavu-sans-fonts adwaita-icon-theme mousepad pcmanfm galculator "
    "xfce4-settings xterm libreoffice-calc libreoffice-writer libreoffice-impress "
    "libreoffice-gtk3 chromium"
)
INSTALL_LINE: Final = install_line(
    " ".join(PACKAGES),
    fedora=_FEDORA,
    ubuntu=" ".join(PACKAGES[:-1]),  # its Chromium is a snap, which no sandbox can run
)


def missing_programs(programs: Iterable[str] = BASE) -> tuple[str, ...]:
    """Return the programs that are not installed."""
    missing = [name for name in programs if shutil.which(name) is None]
    return (*missing, *(() if os.access(SYSTEM_PYTHON, os.X_OK) else (SYSTEM_PYTHON,)))


def check_programs(programs: Iterable[str] = BASE) -> None:
    """Check that programs are installed.

    Raises:
        MissingDependencyError: A program is missing; the message has the command that installs all.
    """
    missing = missing_programs(programs)
    if missing:
        raise MissingDependencyError(
            f"a real Linux desktop needs the programs {', '.join(missing)}, which are not "
            f"installed. Install them with: {INSTALL_LINE}"
        )


def check_desktop() -> str:
    """Return which programs of the desktop were found and how it runs, for `envkit doctor`.

    Raises:
        MissingDependencyError: A program or a Python package is not installed, or the machine
            refuses sandboxes.
        EnvFault: No sandbox can start now.
    """
    from envkit_linux_desktop.display import import_xlib

    check_programs((*BASE, *APPLICATIONS))
    import_xlib()
    return f"{len(BASE) + len(APPLICATIONS)} programs; {check_sandbox()}"


APPLICATIONS: Final = (
    "mousepad",
    "pcmanfm",
    "galculator",
    "xfce4-settings-manager",
    "xterm",
    "localc",
    "lowriter",
    "loimpress",
    "chromium",
)
"""Programs that tasks open."""
