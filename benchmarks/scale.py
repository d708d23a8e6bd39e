"""Measure the cost of tokens and images: bytes per ledger token, CPU time per image turn.

Ledger: a conversation of 16,384 tokens, as an engine that computes in single precision reports it.
Counts the columns of its segments with their objects, and the contents of a waiting request.

Image turns: oracle episodes of the simulated desktop through the rollout, at two screen sizes. CPU
time of the whole process divided by turns; every turn has a new screenshot. The minimum of five
runs counts, because other load only adds time. The tensors of each finished episode are read, as by
a trainer, or not, as in an evaluation.

Stages: the processing steps of one new image, measured separately. Pickling: an episode sent to
another process.
"""

import asyncio
import gc
import io
import pickle
import random
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from harness import best_ms, run, sized
from PIL import Image as PilImage

import envkit
from envkit.images import Image
from envkit.rollout import Limits, RolloutConfig, ScriptedEngine, collect
from envkit.tokens import ChatCodec, load_codec
from envkit.tokens.encoded import Encoded
from envkit.trajectory import Ledger, Trajectory
from envkit_desktop.policies import oracle
from envkit_transformers import builtin_model_dir

SIZES = ((672, 448), (1280, 800))
TURNS, RUN_TOKENS = 32, 256
LIMITS = Limits(max_turns=40, max_response_tokens=100_000, max_context_tokens=100_000)
PARTS: Final = ("ledger", "turns", "stages", "pickle")

Figures = dict[str, float]


def ledger() -> Figures:
    """Return bytes per token of a recorded conversation, and of a waiting request."""
    rng, recorded = random.Random(0), Ledger()

    def ids() -> tuple[int, ...]:
        return tuple(rng.randrange(1000, 150_000) for _ in range(RUN_TOKENS))

    for turn in range(TURNS):
        said = ids()
        encoded = Encoded(wire_ids=said, train_ids=said)
        if turn:
            recorded.add_observation(encoded, turn=turn)
        else:
            recorded.start(encoded, turn=turn)
        singles = [struct.unpack("f", struct.pack("f", -rng.random()))[0] for _ in said]
        recorded.add_reply(
            ids(), singles, turn=turn, finish_reason="stop", weight_version=None, extras={}
        )
    tokens = recorded.train_length
    return {
        "bytes per token, recorded": deep_size(recorded.segments) / tokens,
        "bytes per token, a request": deep_size([recorded.wire_ids]) / tokens,
    }


def deep_size(roots: Iterable[object]) -> int:
    """Return the bytes of objects and everything they hold, each once, without classes."""
    seen, size, todo = set[int](), 0, list(roots)
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        todo += gc.get_referents(one)
        if isinstance(one, np.ndarray):  # the collector does not see what a view is a view of
            todo.append(one.base)
    return size


async def play(
    codec: ChatCodec, size: tuple[int, int], episodes: int, *, seed: int, reads: bool
) -> tuple[float, list[Trajectory]]:
    """Return milliseconds of CPU time per turn, and the episodes."""
    config = RolloutConfig(limits=LIMITS, seed=seed, sanity="off")
    started, played = time.process_time(), list[Trajectory]()
    async for trajectory in collect(
        lambda: envkit.make("computer-use-v0", width=size[0], height=size[1]),
        ScriptedEngine(codec, oracle()),
        codec,
        episodes=episodes,
        concurrency=8,
        config=config,
    ):
        assert trajectory.fault is None, trajectory.fault
        played.append(trajectory)
        for segment in trajectory.segments if reads else ():
            for feature in segment.features:
                assert feature.tensors["pixel_values"].size
    turns = sum(len(trajectory.turns) for trajectory in played)
    return (time.process_time() - started) / turns * 1e3, played


def turns(codec: ChatCodec, lazy: ChatCodec, episodes: int) -> Figures:
    """Return CPU milliseconds of a turn with a new screenshot."""
    figures: Figures = {}
    for size in SIZES:
        shape = f"{size[0]}x{size[1]}"
        for name, one in (("tensors read", codec), ("tensors unread", lazy)):
            asyncio.run(play(one, size, 4, seed=1, reads=one is codec))
            runs = [
                asyncio.run(play(one, size, episodes, seed=seed, reads=one is codec))[0]
                for seed in range(2, 7)
            ]
            figures[f"ms per turn at {shape}, {name}"] = min(runs)  # other load only adds time
    return figures


def stages(codec: ChatCodec) -> Figures:
    """Return CPU milliseconds of each processing step of a new image."""
    figures: Figures = {}
    for size in SIZES:
        observation, _ = envkit.make("computer-use-v0", width=size[0], height=size[1]).reset(seed=5)
        picture, shape = observation["images"][0].pil(), f"{size[0]}x{size[1]}"
        for name in ("PNG", "JPEG", "WEBP"):
            buffer = io.BytesIO()
            picture.save(buffer, name, quality=80)
            data = buffer.getvalue()
            figures[f"{shape}: identity and file, from {name}"] = best_ms(
                lambda data=data: known(Image.from_bytes(data))
            )
        figures[f"{shape}: identity and file, drawn"] = best_ms(
            lambda picture=picture: known(Image.from_pil(picture))
        )
        shades = iter(range(100))

        def tensors(picture: PilImage.Image = picture, shades: Iterator[int] = shades) -> None:
            changed = picture.copy()
            changed.putpixel((0, 0), (next(shades), 0, 0))
            (features,) = codec.image_features([Image.from_pil(changed)])
            assert features.tensors["pixel_values"].dtype == np.float32

        figures[f"{shape}: tensors, identity included"] = best_ms(tensors)
    return figures


def known(image: Image) -> None:
    """Compute what every turn needs of a new image: its identity and file bytes."""
    name: Any = getattr(image, "file_format", "png")
    assert image.sha256
    assert image.encoded(name)


def sent(codec: ChatCodec) -> Figures:
    """Return the cost of sending an episode without tensors to another process."""
    _, played = asyncio.run(play(codec, SIZES[0], 8, seed=9, reads=False))
    light = [
        replace(one, segments=tuple(replace(segment, features=()) for segment in one.segments))
        for one in played
    ]
    data = [pickle.dumps(one, 5) for one in light]

    def identities() -> None:
        for one in data:
            found = pickle.loads(one)
            assert all(image.sha256 for image in found.images())

    return {
        "kB per episode": sum(map(len, data)) / len(data) / 1e3,
        "ms to send": best_ms(lambda: [pickle.dumps(one, 5) for one in light]) / len(data),
        "ms to receive, with identities": best_ms(identities) / len(data),
    }


def measure(part: list[str] | None, episodes: int) -> dict[str, Figures]:
    """Return the figures of each part."""
    eager, lazy = (
        load_codec(builtin_model_dir(), lazy_features=is_lazy) for is_lazy in (False, True)
    )
    parts: dict[str, Callable[[], Figures]] = {
        "ledger": ledger,
        "turns": lambda: turns(eager, lazy, episodes),
        "stages": lambda: stages(eager),
        "pickle": lambda: sent(eager),
    }
    return {name: parts[name]() for name in part or PARTS}


if __name__ == "__main__":
    run(
        measure,
        part={"choices": PARTS, "action": "append", "help": "default: all"},
        episodes=sized(10, 1, "episodes per run of image turns"),
    )
