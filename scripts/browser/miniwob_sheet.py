"""Draw the first screenshot of every MiniWoB++ task on one sheet.

python scripts/browser/miniwob_sheet.py OUT.webp [--columns 14] [--seed 0] [--kinds date]
"""

import argparse
import asyncio
from pathlib import Path

from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont

from envkit_browser.miniwob import TASKS, Kind, MiniwobEnv

_WIDTH, _HEIGHT, _CAPTION = 160, 210, 14


async def screenshots(names: list[str], seed: int) -> list[PilImage.Image]:
    """Return the first screenshot of each task, including the goal bar."""
    env = MiniwobEnv(mix="all", shows_goal=True)
    found: list[PilImage.Image] = []
    for name in names:
        observation, _ = await env.areset(options={"task": {"name": name, "seed": seed}})
        found.append(observation["images"][0].pil())
    await env.aclose()
    return found


def main() -> None:
    """Write the sheet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--columns", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(Kind))
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    names = [name for name, found in sorted(TASKS.items()) if found.kind in kinds]
    rows = -(-len(names) // options.columns)
    size = (options.columns * (_WIDTH + 4), rows * (_HEIGHT + _CAPTION + 4))
    sheet = PilImage.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(10)
    for place, picture in enumerate(asyncio.run(screenshots(names, options.seed))):
        x = place % options.columns * (_WIDTH + 4)
        y = place // options.columns * (_HEIGHT + _CAPTION + 4)
        small = picture.convert("RGB").resize((_WIDTH, _HEIGHT), PilImage.Resampling.LANCZOS)
        sheet.paste(small, (x, y + _CAPTION))
        pen.text((x + 2, y + 1), names[place], fill="black", font=font)
    sheet.save(options.out, quality=75)


if __name__ == "__main__":
    main()
