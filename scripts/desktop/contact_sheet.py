"""Draw the first screenshot of every family at every level on one sheet.

    python scripts/desktop/contact_sheet.py OUT.webp [--scale 0.5] [--families a,b] [--seed 0]

Rows are families, columns levels 1 to 5. `--after N` plays N turns of the oracle first.
"""

import argparse
from pathlib import Path

from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont

from envkit.env import PolicyContext
from envkit.fonts import sans
from envkit_desktop import FAMILIES, LEVELS, ComputerUseEnv, DesktopTasks

_CAPTION = 34
_LINES = 2


def screenshot(family: str, level: int, seed: int, after: int) -> tuple[PilImage.Image, str]:
    """Return a screenshot and its goal."""
    env = ComputerUseEnv()
    task = DesktopTasks(families=[family], level=level, seed=seed).task(level)
    observation, _ = env.reset(seed=seed, options={"task": task})
    oracle = env.oracle()
    for turn in range(after):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=seed)
        step = env.step(oracle(context))
        observation = step.observation
        if step.terminated or step.truncated:
            break
    return observation["images"][0].pil(), str(task["goal"])


def fitted(
    text: str,
    pen: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont,
    width: int,
) -> str:
    """Return the text in two lines of a width in pixels, truncated if longer."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if pen.textlength(longer, font=font) <= width:
            lines[-1] = longer
        elif len(lines) == _LINES:
            lines[-1] += " ..."
            break
        else:
            lines.append(word)
    return "\n".join(lines)


def main() -> None:
    """Write the sheet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--families", default=",".join(sorted(FAMILIES)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--after", type=int, default=0)
    options = parser.parse_args()
    names = options.families.split(",")
    width, height = round(672 * options.scale), round(448 * options.scale) + _CAPTION
    sheet = PilImage.new("RGB", (width * len(LEVELS), height * len(names)), "white")
    font = sans(10)
    pen = ImageDraw.Draw(sheet)
    for row, family in enumerate(names):
        for column, level in enumerate(LEVELS):
            picture, goal = screenshot(family, level, options.seed, options.after)
            size = (width - 6, height - _CAPTION)
            x, y = column * width, row * height
            sheet.paste(picture.resize(size, PilImage.Resampling.LANCZOS), (x, y + _CAPTION - 2))
            caption = fitted(f"{family} {level}: {goal}", pen, font, width - 10)
            pen.multiline_text((x + 2, y + 2), caption, fill="black", font=font, spacing=2)
    sheet.save(options.out, quality=80)


if __name__ == "__main__":
    main()
