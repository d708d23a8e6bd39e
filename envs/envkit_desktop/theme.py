"""Desktop themes: colours and font size. A task's seed picks one."""

from dataclasses import dataclass
from typing import Final

Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours as RGB."""

    name: str
    wallpaper: Color
    face: Color
    """Window background."""
    raised: Color
    """Buttons and tabs."""
    field: Color
    """Fields and lists."""
    ink: Color
    faint: Color
    """Disabled text."""
    border: Color
    accent: Color
    """Selections, active titles, filled parts."""
    accent_ink: Color
    title: Color
    """Title bars of inactive windows."""
    title_ink: Color
    warning: Color
    type_pixels: int
    """Height of the font."""


THEMES: Final[tuple[Theme, ...]] = (
    Theme(
        name="slate",
        wallpaper=(58, 97, 134),
        face=(240, 240, 240),
        raised=(225, 225, 225),
        field=(255, 255, 255),
        ink=(24, 24, 24),
        faint=(150, 150, 150),
        border=(140, 140, 140),
        accent=(0, 95, 175),
        accent_ink=(255, 255, 255),
        title=(205, 211, 218),
        title_ink=(70, 70, 70),
        warning=(180, 60, 30),
        type_pixels=12,
    ),
    Theme(
        name="dusk",
        wallpaper=(22, 26, 36),
        face=(44, 48, 58),
        raised=(64, 70, 84),
        field=(30, 33, 41),
        ink=(226, 228, 232),
        faint=(126, 132, 144),
        border=(98, 106, 124),
        accent=(78, 132, 222),
        accent_ink=(255, 255, 255),
        title=(56, 61, 74),
        title_ink=(170, 176, 188),
        warning=(226, 120, 80),
        type_pixels=12,
    ),
    Theme(
        name="sand",
        wallpaper=(172, 150, 120),
        face=(247, 241, 230),
        raised=(235, 224, 204),
        field=(255, 253, 248),
        ink=(58, 44, 30),
        faint=(164, 150, 132),
        border=(170, 148, 118),
        accent=(150, 86, 24),
        accent_ink=(255, 250, 240),
        title=(226, 212, 188),
        title_ink=(104, 86, 64),
        warning=(176, 40, 40),
        type_pixels=13,
    ),
    Theme(
        name="mint",
        wallpaper=(96, 150, 140),
        face=(236, 244, 241),
        raised=(214, 230, 225),
        field=(255, 255, 255),
        ink=(18, 44, 40),
        faint=(140, 160, 156),
        border=(120, 156, 148),
        accent=(16, 118, 100),
        accent_ink=(255, 255, 255),
        title=(196, 220, 213),
        title_ink=(56, 88, 82),
        warning=(186, 70, 30),
        type_pixels=13,
    ),
)
"""Themes by a task's index."""
