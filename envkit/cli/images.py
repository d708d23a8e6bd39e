"""Images in a terminal: half blocks anywhere, sixels if the terminal supports them."""

import os
from enum import StrEnum
from typing import Final

from PIL import Image as PilImage
from rich.color import Color
from rich.style import Style
from rich.text import Text

from envkit.images import Image

_SIXEL_TERMINALS: Final = ("foot", "mlterm", "contour", "yaft", "sixel")
_SIXEL_PROGRAMS: Final = ("WezTerm", "mintty", "iTerm.app")
_CELL_PIXELS: Final = 10
"""Assumed width of a character for sixels; terminals differ by a pixel or two."""
_BAND: Final = 6
_COLOURS: Final = 255
_UPPER_HALF: Final = "▀"


class ImageStyle(StrEnum):
    """How images are shown."""

    AUTO = "auto"
    """Sixels if the terminal is known to support them, else half blocks."""
    BLOCKS = "blocks"
    """Two pixels per character."""
    SIXEL = "sixel"
    """Real pixels."""
    NONE = "none"
    """Only a line with the size."""


def resolved(style: ImageStyle) -> ImageStyle:
    """Resolve AUTO for this terminal; return other styles unchanged."""
    if style is not ImageStyle.AUTO:
        return style
    is_known = os.environ.get("TERM", "").startswith(_SIXEL_TERMINALS)
    if is_known or os.environ.get("TERM_PROGRAM", "") in _SIXEL_PROGRAMS:
        return ImageStyle.SIXEL
    return ImageStyle.BLOCKS


def half_blocks(image: Image, columns: int) -> Text:
    """Draw an image with two pixels per character: foreground and background colour."""
    picture = _fitted(image, columns)
    pixels = picture.tobytes()
    stride, text = picture.width * 3, Text(no_wrap=True)
    for top in range(0, picture.height, 2):
        for x in range(0, stride, 3):
            at = top * stride + x
            upper = pixels[at : at + 3]
            lower = pixels[at + stride : at + stride + 3] or upper
            text.append(_UPPER_HALF, Style(color=Color.from_rgb(*upper), bgcolor=_rgb(lower)))
        text.append("\n")
    return text


def sixels(image: Image, columns: int) -> str:
    """Return an image as sixels, terminal bitmaps (DEC STD 070, chapter 9)."""
    picture = _fitted(image, columns * _CELL_PIXELS)
    flat = picture.quantize(_COLOURS, dither=PilImage.Dither.NONE)
    palette = flat.getpalette() or []
    used = sorted(set(flat.tobytes()))
    out = ["\x1bPq", f'"1;1;{flat.width};{flat.height}']
    for colour in used:
        shares = (round(value * 100 / 255) for value in palette[3 * colour : 3 * colour + 3])
        out.append(f"#{colour};2;" + ";".join(map(str, shares)))
    rows = [flat.tobytes()[y * flat.width : (y + 1) * flat.width] for y in range(flat.height)]
    for top in range(0, flat.height, _BAND):
        band = rows[top : top + _BAND]
        out += [f"#{colour}{_sixel_line(band, colour)}$" for colour in sorted(set(b"".join(band)))]
        out.append("-")
    out.append("\x1b\\")
    return "".join(out)


def _sixel_line(band: list[bytes], colour: int) -> str:
    """Return one colour's pixels in a band of six rows, with runs compressed."""
    codes = [
        chr(63 + sum(1 << bit for bit, row in enumerate(band) if row[x] == colour))
        for x in range(len(band[0]))
    ]
    line: list[str] = []
    start = 0
    for x in range(1, len(codes) + 1):
        if x == len(codes) or codes[x] != codes[start]:
            run = x - start
            line.append(f"!{run}{codes[start]}" if run > 3 else codes[start] * run)
            start = x
    return "".join(line)


def _fitted(image: Image, width: int) -> PilImage.Image:
    """Return the image on white, shrunk to a width if wider."""
    picture = image.pil().convert("RGBA")
    paper = PilImage.new("RGBA", picture.size, "white")
    paper.alpha_composite(picture)
    flat = paper.convert("RGB")
    if flat.width > width:
        height = max(1, round(flat.height * width / flat.width))
        flat = flat.resize((width, height), PilImage.Resampling.LANCZOS)
    return flat


def _rgb(pixel: bytes) -> Color:
    return Color.from_rgb(*pixel)
