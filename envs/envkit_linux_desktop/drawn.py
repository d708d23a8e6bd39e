"""Whether a window shows its document yet: some applications open an empty frame first."""

from collections.abc import Callable, Mapping
from typing import Final

from PIL import Image as PilImage

OFFICE: Final = ("localc", "lowriter", "loimpress")
_TOOLBARS: Final = (0, 25, 640, 110)
_ICON_COLOURS: Final = 600
"""LibreOffice's toolbars have 775 to 930 colours there. Without them it is 410 at most."""
_PLAIN_SHARE: Final = 0.95
"""A page covers less of Chromium's window; the rest is its toolbar."""


def is_drawn(program: str, title: str, window: PilImage.Image) -> bool:
    """Return whether the window of a program shows its document.

    Args:
        program: As in the command that started it.
        title: The window's title.
        window: What the screen shows of it, without the title bar.
    """
    rule = _RULES.get(program)
    return rule is None or rule(title, window)


def _has_toolbars(title: str, window: PilImage.Image) -> bool:
    if " - LibreOffice" not in title:  # the frame, or a question about the document
        return not title.startswith("LibreOffice")
    return len(window.crop(_TOOLBARS).getcolors(1 << 24) or ()) >= _ICON_COLOURS


def _has_page(_: str, window: PilImage.Image) -> bool:
    area = window.width * window.height
    return max(count for count, _ in window.getcolors(area) or [(area, 0)]) < _PLAIN_SHARE * area


_RULES: Final[Mapping[str, Callable[[str, PilImage.Image], bool]]] = {
    "chromium": _has_page,
    **dict.fromkeys(OFFICE, _has_toolbars),
}
