"""What every contest between a trainer's own rollout loop and envkit's adapter shares.

One script of replies, one strict fake server without latency, one set of images: 224 by 224
pixels with text and boxes, as PNG files, the way a browser or a simulator hands out screenshots.
Every episode has its own images and every turn a new one, drawn before the clock starts. What
the server computes is taken off both sides, for it stands for a GPU; what the trainer does with
finished episodes, which is its own code on both sides, is told apart.
"""

import argparse
import io
import json
import random
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image as PilImage
from PIL import ImageDraw

REPLY: Final = (
    "I look at the picture once more.\n"
    '<tool_call>\n{"name": "look", "arguments": {"place": "the next door"}}\n</tool_call>'
)
"""Said in every turn; the last one of an episode is cut short by the turn limit."""
QUESTION: Final = "Where is the way out? Look around."
ANSWER: Final = "You see another room. Where do you want to look next?"
SIZE: Final = 224
TOKENS: Final = 64
"""Of one image, for Qwen2.5-VL."""
WARM_UP: Final = 1_000_000
"""Number of the episode that warms a side up: its images are seen in no other."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much is played."""

    episodes: int
    turns: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """One side of a contest."""

    cpu_ms_per_turn: float
    """Of the rollout: encode, request, decode, environment, append."""
    batch_ms_per_turn: float
    """Of what the trainer makes of finished episodes afterwards."""
    turns: int
    images: int
    """Pictures that reached the server, over all requests."""


_screenshots: dict[tuple[int, int], bytes] = {}


def screenshot(episode: int, number: int) -> bytes:
    """Return an image of an episode as PNG; drawn on first use, see `draw_all`."""
    key = episode, number
    if key not in _screenshots:
        _screenshots[key] = _draw(random.Random(episode * 1000 + number))
    return _screenshots[key]


def picture(episode: int, number: int) -> PilImage.Image:
    """Return the same image decoded, for loops that take nothing else."""
    with PilImage.open(io.BytesIO(screenshot(episode, number))) as opened:
        opened.load()
        return opened


def draw_all(load: Load) -> None:
    """Draw every image of a contest."""
    for episode in (WARM_UP, *range(load.episodes)):
        for number in range(load.turns + 1):
            screenshot(episode, number)


def _draw(rng: random.Random) -> bytes:
    image = PilImage.new("RGB", (SIZE, SIZE), (245, 245, 248))
    pen = ImageDraw.Draw(image)
    for number in range(12):
        x, y = rng.randrange(SIZE - 40), rng.randrange(SIZE - 20)
        colour = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        corner = (x + rng.randrange(10, 90), y + rng.randrange(8, 40))
        pen.rectangle((x, y, *corner), fill=colour, outline=(0, 0, 0))
        pen.text((x + 2, y + 1), f"Button {rng.randrange(1000)} {number}", fill=(20, 20, 20))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


class Clock:
    """Counts CPU time that is not part of the rollout; what it counts must not wait."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Generator[None]:
        """Count what runs inside, on this thread."""
        started = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - started


async def measured(
    play: Callable[[], Awaitable[tuple[int, int]]], *, server: Clock, batch: Clock
) -> Result:
    """Return what a side costs.

    Args:
        play: Plays it and returns its turns and its images.
        server: Counts the fake server.
        batch: Counts what the trainer does with finished episodes.
    """
    server.seconds = batch.seconds = 0.0
    started = time.process_time()
    turns, images = await play()
    seconds = time.process_time() - started - server.seconds - batch.seconds
    return Result(
        cpu_ms_per_turn=1e3 * seconds / turns,
        batch_ms_per_turn=1e3 * batch.seconds / turns,
        turns=turns,
        images=images,
    )


def options(description: str | None) -> tuple[Load, Path | None]:
    """Parse what every contest takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parsed = parser.parse_args()
    return Load(episodes=parsed.episodes, turns=parsed.turns), parsed.json


def report(name: str, load: Load, own: Result, envkit: Result, path: Path | None) -> None:
    """Print both sides and write them as JSON where asked.

    Raises:
        SystemExit: The sides did not play the same.
    """
    if (own.turns, own.images) != (envkit.turns, envkit.images):
        raise SystemExit(f"{name}: the sides did not play the same: {own} and {envkit}")
    ratio = own.cpu_ms_per_turn / envkit.cpu_ms_per_turn
    print(
        f"{name}: own loop {own.cpu_ms_per_turn:.2f} ms, envkit {envkit.cpu_ms_per_turn:.2f} ms of "
        f"CPU a turn, {ratio:.1f}x ({load.episodes} episodes of {load.turns} turns); the trainer's "
        f"batch {own.batch_ms_per_turn:.2f} and {envkit.batch_ms_per_turn:.2f} ms"
    )
    if path is not None:
        figures: dict[str, Any] = {
            "name": name,
            "load": asdict(load),
            "own": asdict(own),
            "envkit": asdict(envkit),
            "ratio": ratio,
        }
        path.write_text(json.dumps(figures, indent=1) + "\n")
