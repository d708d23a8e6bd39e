"""Training rows: episodes played by the environments' oracles in envkit's own rollout loop.

Prompts, masks and expanded image placeholders are therefore those of a real rollout. Rows come in
chunks. A chunk depends only on its number and the seed, so a worker process can prepare it ahead of
training and an interrupted run can recreate it.
"""

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import envkit
from envkit.env import PolicyContext
from envkit.rollout import RolloutConfig, ScriptedEngine, collect
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec, load_codec
from envkit.trajectory import Row, whole_row

DIGITS: Final = "0123456789"
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CANARY_ID: Final = "canary-v0"
DESKTOP_ID: Final = "computer-use-v0"
GROUPS: Final = 32
"""Canary episodes per chunk."""
_PER_DRAW: Final = 4
"""Canary episodes that share lengths and alphabet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The parts of a row that a step needs."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...]  # as long as ids; True if the oracle replied
    pictures: tuple[Mapping[str, Any], ...]


Chunk = dict[str, list[Example]]
"""Kind -> examples. The canary stage has three times as many canaries and nothing else."""


class RowMaker:
    """Creates chunks with the tokenizer in a model folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._codec = load_codec(folder)
        self._seed = seed

    def chunk(self, number: int, families: Mapping[str, int]) -> Chunk:
        """Return a chunk.

        Args:
            number: Number of the chunk.
            families: Episodes per family of desktop tasks; if empty, codes are short.
        """
        rng = random.Random(derive_seed("chunk", self._seed, number))
        draws = (GROUPS if families else 3 * GROUPS) // _PER_DRAW
        made: Chunk = {"canary": []}
        for _ in range(draws):
            arguments = canary_arguments(rng, is_mixed=bool(families))
            rows = oracle_rows(self._codec, CANARY_ID, arguments, _PER_DRAW, rng.getrandbits(40))
            made["canary"] += [self._example(row) for row in rows]
        for family, count in families.items():
            arguments = {"level": 1, "families": [family]}
            rows = oracle_rows(self._codec, DESKTOP_ID, arguments, count, rng.getrandbits(40))
            made[family] = [self._example(row, cut=rng.random() >= 0.1) for row in rows]
        return made

    def digits(self, episodes: int, seed: int) -> list[Example]:
        """Return examples of one digit per image, for measuring."""
        arguments = {"turns": 2, "length": 1, "alphabet": DIGITS}
        rows = oracle_rows(self._codec, CANARY_ID, arguments, episodes, seed)
        return [self._example(row) for row in rows]

    def _example(self, row: Row, *, cut: bool = False) -> Example:
        """Return the row, optionally cut after its first reply: each later one costs an image."""
        ids = row.prompt_ids + row.response_ids
        mask = [False] * len(row.prompt_ids) + _mask_of_right_replies(row)
        pictures = row.features
        if cut:
            first = mask.index(True)
            end = next((n for n in range(first, len(mask)) if not mask[n]), len(mask))
            ids, mask = ids[:end], mask[:end]
            pictures = pictures[:1]
        return Example(ids=tuple(ids), mask=tuple(mask), pictures=tuple(pictures))


def _mask_of_right_replies(row: Row) -> list[bool]:
    """Return the loss mask without deliberately wrong replies."""
    mask = [bool(one) for one in row.loss_mask]
    if not row.turn_rewards or row.reward == 1.0:
        return mask
    right = {index for index, reward in row.turn_rewards if reward > 0}
    start = 0
    for index, is_reply in enumerate(row.loss_mask):
        if not is_reply:
            start = index + 1
        elif index + 1 == len(mask) or not row.loss_mask[index + 1]:
            if index not in right:
                mask[start : index + 1] = [False] * (index + 1 - start)
            start = index + 1
    return mask


def _erring_reader(context: PolicyContext) -> str:
    """Read the code, but err in one turn of ten, so training also sees what follows "Wrong."."""
    code: str = context.task["codes"][context.turn]
    rng = random.Random(derive_seed("error", context.seed, context.turn))
    if rng.random() < 0.1:
        return "".join(rng.choice(LETTERS + DIGITS) for _ in code)
    return code


def canary_arguments(rng: random.Random, *, is_mixed: bool) -> dict[str, Any]:
    """Draw arguments of the canary environment."""
    lengths, weights = (
        ((1, 2, 3, 4, 5, 6, 8), (10, 10, 8, 50, 8, 8, 6)) if is_mixed else ((1, 2, 4), (30, 40, 30))
    )
    alphabets = (None, LETTERS + DIGITS, DIGITS, "".join(rng.sample(LETTERS + DIGITS, 12)))
    alphabet = rng.choices(alphabets, (40, 40, 10, 10))[0]
    arguments = {"turns": 3, "length": rng.choices(lengths, weights)[0]}
    return arguments if alphabet is None else {**arguments, "alphabet": alphabet}


def oracle_rows(
    codec: ChatCodec, env_id: str, arguments: Mapping[str, Any], episodes: int, seed: int
) -> Sequence[Row]:
    """Return the rows of the oracle's episodes in seed order."""
    env: Any = envkit.make(env_id, **arguments).unwrapped
    engine = ScriptedEngine(codec, _erring_reader if env_id == CANARY_ID else env.oracle())

    async def play() -> list[Row]:
        config = RolloutConfig(env_kwargs=arguments, seed=seed)
        found = collect(env_id, engine, codec, episodes=episodes, config=config)
        # They arrive as they finish, and training must be reproducible.
        played = sorted([one async for one in found], key=lambda one: one.seed or 0)
        assert env_id == CANARY_ID or all(one.reward == 1.0 for one in played)
        return [whole_row(one, filler_id=codec.stop_ids[0]) for one in played]

    return asyncio.run(play())


_maker: RowMaker | None = None


def start_worker(folder: Path, seed: int) -> None:
    """Prepare a worker process with lower priority than training."""
    global _maker  # noqa: PLW0603  # what a pool's initializer leaves for its calls
    os.nice(5)
    _maker = RowMaker(folder, seed)


def worker_chunk(number: int, families: Mapping[str, int]) -> Chunk:
    """Return a chunk, in a worker process."""
    assert _maker is not None
    return _maker.chunk(number, families)
