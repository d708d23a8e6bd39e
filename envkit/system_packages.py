"""Commands that install system packages, by distribution."""

import platform
import sys
from typing import Final

NEEDS_LINUX: Final = "nothing on this system: it needs Linux, for example in a container"


def distribution() -> str:
    """Return "debian", "ubuntu" or "fedora" for these and what derives from them.

    Another Linux is "", and another system is its `sys.platform`.
    """
    if sys.platform != "linux":
        return sys.platform
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    names = (release["ID"], *release.get("ID_LIKE", "").split())
    return next((name for name in names if name in ("debian", "ubuntu", "fedora")), "")


def install_line(debian: str, *, fedora: str, ubuntu: str | None = None) -> str:
    """Return the command that installs packages on this system.

    Args:
        debian: Debian's names of the packages.
        fedora: Fedora's.
        ubuntu: Ubuntu's; None if they are Debian's.
    """
    here = distribution()
    if here == "fedora":
        return f"dnf install {fedora}"
    line = "apt-get install --no-install-recommends"
    if here == "ubuntu":
        return f"{line} {ubuntu or debian}"
    if here in ("debian", ""):
        other = "" if here else " (or what your distribution calls these packages)"
        return f"{line} {debian}{other}"
    return NEEDS_LINUX
