"""Draw the images of docs/terminal.md: commands in terminals of two sizes.

Each command runs on a pseudo terminal. pyte lays out its output, drawn in DejaVu Sans Mono. Needs
`pip install pyte` and the font.

    python scripts/terminal_images.py docs/images/terminal
"""

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from PIL import Image, ImageDraw, ImageFont

FONTS: Final = Path("/usr/share/fonts/truetype/dejavu")
SIZES: Final = {"wide": (132, 40), "narrow": (80, 24)}
"""Columns and lines."""
CELL: Final = (8, 17)
"""Pixels."""
FOREGROUND: Final = "d8dee9"
BACKGROUND: Final = "10151c"
COLORS: Final = {
    "black": "3b4252",
    "red": "e0717b",
    "green": "8fc97a",
    "brown": "e5b567",
    "blue": "79a6e8",
    "magenta": "c08bd9",
    "cyan": "6fc3c9",
    "white": "d8dee9",
    "brightblack": "7b8494",
    "default": FOREGROUND,
}
EXECUTABLE: Final = str(Path(sys.executable).with_name("envkit"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One image."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    """Seconds until the image is taken, unless the command ends earlier."""
    lines: int | None = None
    """Height of a window that shows everything; None uses the usual height."""


def record(scene: Scene, columns: int, lines: int) -> Any:  # noqa: ANN401  # a screen of pyte
    """Run a scene's command and return the final screen."""
    pyte: Any = import_module("pyte")
    screen = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    variables = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        [EXECUTABLE, *scene.arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=variables,
        start_new_session=True,
    )
    os.close(slave)
    started = time.monotonic()
    while time.monotonic() - started < scene.seconds:
        if select.select([master], [], [], 0.05)[0]:
            try:
                stream.feed(os.read(master, 1 << 16))
            except OSError:  # the command is over
                break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    os.close(master)
    return screen


def draw(screen: Any) -> Image.Image:  # noqa: ANN401  # a screen of pyte
    """Draw a screen without its trailing empty lines."""
    wide, high = CELL
    rows = [index for index, text in enumerate(screen.display) if text.strip()]
    used = range(max(rows, default=0) + 1)
    picture = Image.new(
        "RGB", (wide * screen.columns + 24, high * len(used) + 24), "#" + BACKGROUND
    )
    pen = ImageDraw.Draw(picture)
    regular = ImageFont.truetype(str(FONTS / "DejaVuSansMono.ttf"), 13)
    bold = ImageFont.truetype(str(FONTS / "DejaVuSansMono-Bold.ttf"), 13)
    for line in used:
        for column in range(screen.columns):
            cell = screen.buffer[line][column]
            ink, paper = _color(cell.fg, FOREGROUND), _color(cell.bg, BACKGROUND)
            if cell.reverse:
                ink, paper = paper, ink
            x, y = 12 + column * wide, 12 + line * high
            pen.rectangle((x, y, x + wide - 1, y + high - 1), fill=paper)
            if cell.data == "▀":
                pen.rectangle((x, y, x + wide - 1, y + high // 2), fill=ink)
            elif cell.data == "▄":
                pen.rectangle((x, y + high // 2 + 1, x + wide - 1, y + high - 1), fill=ink)
            elif cell.data.strip():
                pen.text((x, y), cell.data, fill=ink, font=bold if cell.bold else regular)
    return picture


def _color(name: str, default: str) -> str:
    if name == "default":
        return "#" + default
    return "#" + COLORS.get(name.replace("bright", ""), name)


def main() -> None:
    """Draw every scene at every size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder for the images")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        run = str(Path(name) / "noisy")
        noisy = ("rollout", "geo3k-v0", "--policy", "noisy-oracle", "--seed", "0")
        subprocess.run([EXECUTABLE, *noisy, "-n", "16", "--out", run, "--quiet"], check=True)
        live = (*noisy, "-n", "4000", "--out", str(Path(name) / "live"), "--overwrite")
        end = (*noisy, "-n", "32", "--out", run, "--overwrite")
        scenes = (
            Scene(name="live", arguments=live, seconds=45.0),
            Scene(name="end", arguments=end, seconds=90.0),
            Scene(name="run", arguments=("view", run), seconds=12.0, lines=120),
            Scene(name="view", arguments=("view", run, "-e", "1"), seconds=12.0, lines=120),
        )
        for scene in scenes:
            for size, (columns, lines) in SIZES.items():
                picture = draw(record(scene, columns, scene.lines or lines))
                picture.save(
                    folder / f"{scene.name}-{size}.webp", lossless=True, quality=100, method=6
                )
                print(scene.name, size, picture.size)  # noqa: T201


if __name__ == "__main__":
    main()
