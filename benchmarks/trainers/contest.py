"""What every contest between a trainer's own rollout loop and envkit's adapter shares.

One environment (a new picture after every reply), one script of replies, one strict fake server
without latency. What the server itself computes is taken off both sides: it stands for a GPU.
"""

import argparse
import json
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image as PilImage

REPLY: Final = (
    "I look at the picture once more.\n"
    '<tool_call>\n{"name": "look", "arguments": {"place": "the next door"}}\n</tool_call>'
)
"""Said in every turn; the last one of an episode is cut short by the turn limit."""
ANSWER: Final = "You see another room. Where do you want to look next?"
SIZE: Final = 56


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much is played."""

    episodes: int
    turns: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """One side of a contest."""

    cpu_ms_per_turn: float
    turns: int
    images: int
    """Pictures that reached the server, over all requests."""


def picture(number: int) -> PilImage.Image:
    """Return a picture, another one for another number."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    return PilImage.fromarray(pixels)


class ServerClock:
    """Counts the CPU time of a fake server, which belongs to neither side."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Generator[None]:
        """Count what runs inside; nothing in it may wait."""
        started = time.thread_time()
        yield
        self.seconds += time.thread_time() - started


async def measured(play: Callable[[], Awaitable[tuple[int, int]]], clock: ServerClock) -> Result:
    """Return what a side costs; `play` returns its turns and its pictures."""
    clock.seconds = 0.0
    started = time.process_time()
    turns, images = await play()
    seconds = time.process_time() - started - clock.seconds
    return Result(cpu_ms_per_turn=1e3 * seconds / turns, turns=turns, images=images)


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
        f"CPU a turn, {ratio:.1f}x ({load.episodes} episodes of {load.turns} turns)"
    )
    if path is not None:
        figures: dict[str, Any] = {
            "load": asdict(load),
            "own": asdict(own),
            "envkit": asdict(envkit),
            "ratio": ratio,
        }
        path.write_text(json.dumps(figures, indent=1) + "\n")
