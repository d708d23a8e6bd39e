"""Shared code of the comparisons between a trainer's own rollout loop and envkit's adapter.

One script of replies, one strict fake server without latency, one set of images: 224 by 224 pixels
with text and boxes, as PNG files, like screenshots of a browser or simulator. Every episode has its
own images and every turn a new one, drawn before timing starts. The server's time is subtracted
from both sides, because it stands in for a GPU. The trainer's processing of finished episodes, the
same code on both sides, is reported separately.
"""

import asyncio
import ctypes
import gc
import io
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image as PilImage
from PIL import ImageDraw

sys.path.append(str(Path(__file__).parents[1]))  # last, so that it hides no package

from harness import memory_mb, run, sized

REPLY: Final = (
    "I look at the picture once more.\n"
    '<tool_call>\n{"name": "look", "arguments": {"place": "the next door"}}\n</tool_call>'
)
"""The reply of every turn; the turn limit ends the episode."""
QUESTION: Final = "Where is the way out? Look around."
ANSWER: Final = "You see another room. Where do you want to look next?"
SIZE: Final = 224
TOKENS: Final = 64
"""Tokens of one image in Qwen2.5-VL."""
WARM_UP: Final = 1_000_000
"""Number of the warm-up episode, whose images appear in no other."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Amount of work."""

    episodes: int
    turns: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """One side of a contest."""

    cpu_ms_per_turn: float
    """CPU time of the rollout: encode, request, decode, environment, append."""
    batch_ms_per_turn: float
    """CPU time of the trainer's processing of finished episodes."""
    turns: int
    images: int
    """Images that reached the server, over all requests."""
    mb_per_1000_episodes: float
    """Memory that the output of finished episodes holds, in megabytes, without bounded caches."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a side did."""

    turns: int
    images: int
    episodes: int
    output: object
    """The finished episodes as the trainer gets them; held while memory is measured."""


_CACHES: Final = frozenset({"ImageEncoder", "ImageRenderer"})
"""By name: each contest has the packages of its trainer alone."""
_screenshots: dict[tuple[int, int], bytes] = {}


def screenshot(episode: int, number: int) -> bytes:
    """Return an image of an episode as PNG; drawn on first use, see `draw_all`."""
    key = episode, number
    if key not in _screenshots:
        _screenshots[key] = _draw(random.Random(episode * 1000 + number))
    return _screenshots[key]


def picture(episode: int, number: int) -> PilImage.Image:
    """Return the same image decoded, for loops that need it."""
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
    """Counts CPU time that is not part of the rollout; the counted code must not wait."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Generator[None]:
        """Count CPU time of this thread inside the block."""
        started = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - started


async def measured(play: Callable[[], Awaitable[Played]], *, server: Clock, batch: Clock) -> Result:
    """Return the cost of a side.

    Args:
        play: Plays the side.
        server: Counts the fake server's time.
        batch: Counts the trainer's processing of finished episodes.
    """
    server.seconds = batch.seconds = 0.0
    await asyncio.sleep(0.1)  # finished tasks of the other side still hold its output
    before = _resident_mb()
    started = time.process_time()
    played = await play()
    seconds = time.process_time() - started - server.seconds - batch.seconds
    return Result(
        cpu_ms_per_turn=1e3 * seconds / played.turns,
        batch_ms_per_turn=1e3 * batch.seconds / played.turns,
        turns=played.turns,
        images=played.images,
        mb_per_1000_episodes=1e3
        * (_resident_mb(is_without_caches=True) - before)
        / played.episodes,
    )


def _resident_mb(*, is_without_caches: bool = False) -> float:
    """Return the memory of the process, without what is free but not yet returned to Linux.

    Args:
        is_without_caches: Empty envkit's caches of images' tensors first. Their size is bounded per
            process, so a short contest would charge its few episodes with all of it.
    """
    if is_without_caches:
        for found in gc.get_objects():
            if type(found).__name__ in _CACHES:
                found._kept.clear()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory_mb()


def play(name: str, contest: Callable[[Load], Coroutine[Any, Any, tuple[Result, Result]]]) -> None:
    """Read the options of a contest, play both sides, and print and write the figures.

    Raises:
        SystemExit: The sides played different episodes.
    """

    def measure(**sizes: int) -> dict[str, Any]:
        load = Load(**sizes)
        draw_all(load)
        own, envkit = asyncio.run(contest(load))
        if (own.turns, own.images) != (envkit.turns, envkit.images):
            raise SystemExit(f"{name}: the sides played different episodes: {own} and {envkit}")
        sides = {"own": asdict(own), "envkit": asdict(envkit)}
        ratio = own.cpu_ms_per_turn / envkit.cpu_ms_per_turn
        return {"name": name, "load": asdict(load), **sides, "ratio": ratio}

    run(measure, episodes=sized(64, 2), turns=sized(20, 2))
