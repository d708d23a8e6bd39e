"""Task families over real applications: drawn from seeds, graded on final files."""

from collections.abc import Mapping
from typing import Final

from envkit_linux_desktop.tasks import (
    browsing,
    calc,
    configuring,
    editing,
    figuring,
    filing,
    shell,
    writer,
)
from envkit_linux_desktop.tasks.scenario import Family

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for module in (editing, filing, figuring, configuring, shell, calc, writer, browsing)
    for family in module.FAMILIES
}
"""Every family by its name."""
