"""Draw a figure of every geometry family at every level on one sheet.

    python scripts/geo3k/contact_sheet.py OUT.webp [--size 200] [--families a,b] [--seed 0]

Two families share a row, each with levels 1 to 4 from left to right. The question is above its
figure.
"""

import argparse
from importlib.resources import files
from pathlib import Path

from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont

from envkit_geo3k import ProceduralSource
from envkit_geo3k.drawing import draw
from envkit_geo3k.families import FAMILIES
from envkit_geo3k.figure import Figure
from envkit_geo3k.source import LEVELS

_ABREAST = 2
_LINES = 4
_LINE = 13


def wrapped(
    text: str, pen: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, width: int
) -> list[str]:
    """Wrap a text to a width in pixels, truncating the last line if there are too many."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if pen.textlength(longer, font=font) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"{lines[_LINES - 1]} ..."]
    return lines


def main() -> None:
    """Write the sheet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, default=200, help="side of a figure in pixels")
    parser.add_argument("--families", default=",".join(sorted(FAMILIES)))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names, side = options.families.split(","), options.size
    path = str(files("envkit_geo3k") / "fonts" / "DejaVuSans.ttf")
    font = ImageFont.truetype(path, 10, layout_engine=ImageFont.Layout.BASIC)
    high = side + _LINES * _LINE + 6
    rows = -(-len(names) // _ABREAST)
    sheet = PilImage.new("RGB", (side * len(LEVELS) * _ABREAST, high * rows), "white")
    pen = ImageDraw.Draw(sheet)
    for index, family in enumerate(names):
        block, row = divmod(index, rows)
        for column, level in enumerate(LEVELS):
            source = ProceduralSource(families=[family], level=level, seed=options.seed)
            problem = source.task(index)
            x, y = (block * len(LEVELS) + column) * side, row * high
            figure = draw(Figure.from_json(problem["figure"])).pil().convert("RGB")
            figure = figure.resize((side, side), PilImage.Resampling.LANCZOS)
            sheet.paste(figure, (x, y + high - side))
            caption = wrapped(f"{family} {level}: {problem['question']}", pen, font, side - 8)
            pen.multiline_text((x + 3, y + 3), "\n".join(caption), "black", font=font, spacing=2)
            pen.rectangle((x, y, x + side - 1, y + high - 1), outline=(215, 215, 215))
    sheet.save(options.out, quality=82, method=6)


if __name__ == "__main__":
    main()
