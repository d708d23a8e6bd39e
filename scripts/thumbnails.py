"""Create the environments' thumbnails for the README's table.

    python scripts/thumbnails.py [--out docs/environments/thumbs] [NAME ...]
    python scripts/thumbnails.py --screenshot FILE NAME

The first form draws those of `DRAWN`, or those named; the second shrinks any screenshot. Each is
WebP, 240 pixels wide and under 12 kB.
"""

import argparse
import io
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

from PIL import Image as PilImage
from PIL import ImageDraw

import envkit
from envkit.env import PolicyContext
from envkit.fonts import sans
from envkit_desktop import ComputerUseEnv

WIDTH: Final = 240
HEIGHT: Final = 160
MAX_BYTES: Final = 12_000
_INK, _FAINT, _PAPER = (32, 36, 42), (120, 128, 138), (255, 255, 255)
_SIDES: Final = {"env": (238, 241, 245), "agent": (222, 236, 252)}
"""Bubble colours of the environment and the agent."""
_TYPE: Final = 9
_LINE: Final = 12
_COLUMNS: Final = 41

Exchange = tuple[tuple[str, str], ...]
"""Pairs of (side, text); a line feed starts a new line."""


def conversation(turns: Exchange) -> PilImage.Image:
    """Draw a conversation in bubbles, the agent's on the right."""
    picture = PilImage.new("RGB", (WIDTH, HEIGHT), _PAPER)
    pen, type_face, top = ImageDraw.Draw(picture), sans(_TYPE), 7
    for side, text in turns:
        lines = [part for line in text.split("\n") for part in textwrap.wrap(line, _COLUMNS)]
        wide = max(round(pen.textlength(line, font=type_face)) for line in lines) + 14
        high = _LINE * len(lines) + 8
        if wide > WIDTH - 14 or top + high > HEIGHT - 4:
            raise SystemExit(f"the exchange must fit on {WIDTH}x{HEIGHT} pixels, got {text!r}")
        left = 7 if side == "env" else WIDTH - 7 - wide
        pen.rounded_rectangle((left, top, left + wide, top + high), 5, fill=_SIDES[side])
        for number, line in enumerate(lines):
            pen.text((left + 7, top + 4 + number * _LINE), line, _INK, font=type_face)
        top += high + 6
    return picture


def shrunk(picture: PilImage.Image) -> PilImage.Image:
    """Return the image scaled to the width of a thumbnail."""
    high = max(1, round(picture.height * WIDTH / picture.width))
    return picture.convert("RGB").resize((WIDTH, high), PilImage.Resampling.LANCZOS)


def geo3k() -> PilImage.Image:
    """Draw two figures side by side."""
    picture = PilImage.new("RGB", (WIDTH, HEIGHT), _PAPER)
    side = WIDTH // 2
    for column, (family, level) in enumerate((("inscribed_angle", 2), ("side_splitter", 2))):
        env = envkit.make("geo3k-v0", families=[family], level=level)
        observation, _ = env.reset(seed=3)
        figure = observation["images"][0].pil().convert("RGB")
        small = figure.resize((side, side), PilImage.Resampling.LANCZOS)
        picture.paste(small, (column * side, (HEIGHT - side) // 2))
        env.close()
    return picture


def computer_use() -> PilImage.Image:
    """Draw a desktop in the middle of a task."""
    env = ComputerUseEnv(families=["change_settings"], level=4)
    observation, _ = env.reset(seed=11)
    oracle = env.oracle()
    for turn in range(3):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=11)
        observation = env.step(oracle(context)).observation
    return shrunk(observation["images"][0].pil())


def canary() -> PilImage.Image:
    """Enlarge the image, and show the question's end and the answer."""
    env = envkit.make("canary-v0")
    observation, _ = env.reset(seed=5)
    picture = conversation((("env", "What is on the image?"),))
    shown = observation["images"][0].pil().convert("RGB")
    scale = min((WIDTH - 40) / shown.width, (HEIGHT - 44) / shown.height)
    size = (round(shown.width * scale), round(shown.height * scale))
    large = shown.resize(size, PilImage.Resampling.LANCZOS)
    picture.paste(large, ((WIDTH - size[0]) // 2, 38))
    return picture


def search() -> PilImage.Image:
    """Write an exchange in the protocol of the search environment."""
    return conversation(
        (
            ("env", "Which river flows through the capital of the country where Kyoto lies?"),
            ("agent", "<search>capital of Japan</search>"),
            ("env", "<information>Tokyo is the capital of Japan. The Sumida ...</information>"),
            ("agent", "<answer>Sumida</answer>"),
        )
    )


def reasoning_gym() -> PilImage.Image:
    """Write an exchange about a generated problem."""
    return conversation(
        (
            ("env", "A knave always lies, a knight never. Ann: “Bob is a knave.” "
             "Bob: “Ann and I are alike.” Who is what?"),
            ("agent", "Were they alike, both statements would be lies or both true. So Bob lies."),
            ("agent", "<answer>Ann is a knight, Bob is a knave</answer>"),
        )
    )  # fmt: skip


def refine() -> PilImage.Image:
    """Write an exchange between the roles of one episode."""
    return conversation(
        (
            ("env", "How many squares are on a board of 3 x 3?"),
            ("agent", "solver 1: 9"),
            ("agent", "solver 2: 9 + 4 + 1 = 14"),
            ("agent", "rewriter: 9 of side 1, 4 of side 2 and\n1 of side 3 make 14"),
            ("agent", "selector: the second"),
        )
    )


def gymnasium() -> PilImage.Image:
    """Show a Gymnasium world as its adapter shows it."""
    env = envkit.make("gymnasium/Taxi-v4", view="rgb_array")
    observation, _ = env.reset(seed=3)
    picture = shrunk(observation["images"][0].pil())
    env.close()
    return picture


def openenv() -> PilImage.Image:
    """Write an exchange with a server."""
    return conversation(
        (
            ("env", "Echo environment ready!"),
            ("agent", '{"message": "hello"}'),
            ("env", '{"echoed_message": "hello",\n"message_length": 5}'),
        )
    )


DRAWN: Final[dict[str, Callable[[], PilImage.Image]]] = {
    "geo3k": geo3k,
    "computer-use": computer_use,
    "search": search,
    "canary": canary,
    "reasoning-gym": reasoning_gym,
    "refine": refine,
    "gymnasium": gymnasium,
    "openenv": openenv,
}
"""File name -> drawing function."""


def encoded(picture: PilImage.Image) -> bytes:
    """Return WebP at the best quality that fits the size limit."""
    for quality in (90, 80, 70, 60, 50, 40):
        buffer = io.BytesIO()
        picture.save(buffer, format="WEBP", quality=quality, method=6)
        if buffer.tell() < MAX_BYTES:
            return buffer.getvalue()
    raise SystemExit(f"a thumbnail must have under {MAX_BYTES} bytes: choose a plainer image")


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(DRAWN))
    parser.add_argument("--out", type=Path, default=Path("docs/environments/thumbs"))
    parser.add_argument("--screenshot", type=Path, help="shrink this image instead of drawing")
    options = parser.parse_args()
    names = options.names or list(DRAWN)
    if options.screenshot is not None and len(options.names) != 1:
        parser.error(f"--screenshot needs one NAME for the file, got {options.names}")
    if options.screenshot is None and (unknown := [name for name in names if name not in DRAWN]):
        parser.error(f"drawn are {', '.join(DRAWN)}; got {', '.join(unknown)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        if options.screenshot is None:
            picture = DRAWN[name]()
        else:
            with PilImage.open(options.screenshot) as opened:
                picture = shrunk(opened)
        (options.out / f"{name}.webp").write_bytes(encoded(picture))


if __name__ == "__main__":
    main()
