"""Draw the first screenshot of every family at every level on one sheet.

    python scripts/computer_use/contact_sheet.py OUT.png [--scale 0.5] [--families a,b] [--seed 0]

Rows are families, columns levels 1 to 5. `--after N` plays N turns of the oracle first.
"""

import argparse
from pathlib import Path

from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont

from envkit.env import PolicyContext
from envkit_computer_use import FAMILIES, LEVELS, ComputerUseEnv, DesktopTasks

_CAPTION = 34


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
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(10)
    for row, family in enumerate(names):
        for column, level in enumerate(LEVELS):
            picture, goal = screenshot(family, level, options.seed, options.after)
            size = (width - 6, height - _CAPTION)
            x, y = column * width, row * height
            sheet.paste(picture.resize(size, PilImage.Resampling.LANCZOS), (x, y + _CAPTION - 2))
            room = width // 5
            pen.text((x + 2, y + 2), f"{family} {level}: {goal[:room]}", fill="black", font=font)
            pen.text((x + 2, y + 16), goal[room : 2 * room + 20], fill="black", font=font)
    sheet.save(options.out)


if __name__ == "__main__":
    main()
