"""Draw the contact sheets of the visual worlds: a row per world, a column per level.

    python scripts/visual/sheets.py [--world NAME]... [--out FOLDER] [--seed N]

Without `--world` every domain's sheet is written to docs/environments/visual; with it, each world's
own sheet, larger, with three tasks of each level and each task's state after some moves.
"""

import argparse
from pathlib import Path
from typing import Final

from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.fonts import sans
from envkit_visual.catalogue import WORLDS
from envkit_visual.env import VisualEnv
from envkit_visual.world import LEVELS, Domain

_OUT: Final = Path(__file__).parents[2] / "docs" / "environments" / "visual"
_CELL: Final = 224
_LABEL: Final = 22


def frames(name: str, level: int, seed: int, *, pixels: int, moves: int = 0) -> PilImage.Image:
    """Return the picture of a task, after some moves of the oracle."""
    env = VisualEnv(name=name, pixels=pixels)
    observation = env.reset(options={"task": {"seed": seed, "level": level}}).observation
    for _ in range(moves):
        if not env.world.is_multi_turn:
            break
        step = env.step(env.next_actions())
        observation = step.observation
        if step.terminated:
            break
    return observation["images"][0].pil()


def sheet(rows: list[tuple[str, list[PilImage.Image]]], cell: int) -> PilImage.Image:
    """Return labelled rows of pictures."""
    columns = max(len(pictures) for _, pictures in rows)
    size = (columns * (cell + 4), len(rows) * (cell + _LABEL))
    page = PilImage.new("RGB", size, (255, 255, 255))
    pen = ImageDraw.Draw(page)
    for row, (label, pictures) in enumerate(rows):
        top = row * (cell + _LABEL)
        pen.text((4, top + 3), label, fill=(0, 0, 0), font=sans(14))
        for column, picture in enumerate(pictures):
            small = picture.resize((cell, cell), PilImage.Resampling.LANCZOS)
            page.paste(small, (column * (cell + 4), top + _LABEL))
    return page


def domain_sheet(domain: Domain, seed: int) -> PilImage.Image:
    """Return the sheet of a domain."""
    names = [name for name, world in WORLDS.items() if world.domain is domain]
    rows = [
        (f"{name}: {WORLDS[name].summary}", [frames(name, k, seed, pixels=448) for k in LEVELS])
        for name in names
    ]
    return sheet(rows, _CELL)


def world_sheet(name: str, seed: int) -> PilImage.Image:
    """Return the sheet of one world."""
    rows: list[tuple[str, list[PilImage.Image]]] = []
    for level in LEVELS:
        pictures = [
            *(frames(name, level, seed + at, pixels=336) for at in range(2)),
            frames(name, level, seed, pixels=336, moves=3),
        ]
        rows.append(
            (f"{name}, level {level}: two tasks, and the first after three moves", pictures)
        )
    return sheet(rows, 336)


def main() -> None:
    """Write the sheets that were asked for."""
    parser = argparse.ArgumentParser(description="Draw the contact sheets of the visual worlds.")
    parser.add_argument("--world", action="append", choices=sorted(WORLDS), default=[])
    parser.add_argument("--out", type=Path, default=_OUT)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.world:
        world_sheet(name, given.seed).save(given.out / f"{name}.png")
    if given.world:
        return
    for domain in Domain:
        if any(world.domain is domain for world in WORLDS.values()):
            path = given.out / f"{domain}.webp"
            domain_sheet(domain, given.seed).save(path, quality=70, method=6)


if __name__ == "__main__":
    main()
