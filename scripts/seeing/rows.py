"""Training rows: episodes played by the environments' oracles in envkit's own rollout loop.

Prompts, masks and expanded image placeholders are therefore those of a real rollout. Rows come in
chunks. A chunk depends only on its number and the seed, so a worker process can prepare it ahead of
training and an interrupted run can recreate it.
"""

import asyncio
import multiprocessing
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import envkit
from envkit.env import PolicyContext
from envkit.messages import message
from envkit.rollout import RolloutConfig, ScriptedEngine, collect
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec, ImageFeatures, load_codec
from envkit.trajectory import Row, whole_row
from envkit_visual.scenes.scene import COLOR_NAMES, SHAPE_NAMES, Group, draw_group

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
    pictures: tuple[ImageFeatures, ...]
    described: int = 0
    """Number of last masked tokens that describe the picture instead of answering."""


Chunk = dict[str, list[Example]]
"""Kind -> examples. The canary stage has three times as many canaries and nothing else."""


_MORE: Final = 3
"""Other questions about a picture."""


def _other_groups(state: Any, rng: random.Random) -> list[Any]:  # noqa: ANN401  # a world's state
    def size(group: Group) -> int:
        return sum(map(group.has, state.things))

    groups = [group for _ in range(40) if 1 <= size(group := draw_group(rng)) <= 10]
    sizes = [size(group) for group in groups]
    # Most groups are small, and every number is asked for as often.
    weights = [1 / sizes.count(one) for one in sizes]
    return [replace(state, group=one) for one in rng.choices(groups, weights, k=_MORE)]


def _other_values(state: Any, rng: random.Random) -> list[Any]:  # noqa: ANN401  # a world's state
    others = [index for index in range(len(state.shades)) if index != state.asked]
    return [replace(state, asked=index) for index in rng.sample(others, _MORE)]


_QUESTIONS: Final[Mapping[str, Callable[[Any, random.Random], list[Any]]]] = {
    "visual/count-v0": _other_groups,
    "visual/heat-v0": _other_values,
}
"""World -> what asks other questions about the same picture."""
DESCRIBE: Final = "Describe the picture."
_CELLED: Final = ("lights", "lake", "fold", "pegs", "sudoku")
_CELLS: Final = 15
"""Cells that a description tells, in any order, so that each is looked for by its name."""


def _cells(told: Mapping[str, str], rng: random.Random) -> str:
    """Return marks of some cells; rare ones are more likely."""
    marks = list(told.values())
    ranks = {name: rng.random() ** marks.count(mark) for name, mark in told.items()}
    chosen = sorted(told, key=ranks.__getitem__)[-_CELLS:]
    return "".join(f"{name}{told[name]}" for name in rng.sample(chosen, _CELLS))


def _describe(env: Any, rng: random.Random) -> str:  # noqa: ANN401  # an environment of the worlds
    """Say what the tasks hang on, as a second target; "" says nothing.

    A description is made of many short answers, each of which needs one place in the picture.
    """
    world, state, twin = env.world, env._state, env.text_twin()
    lines = twin.split("\n")
    match world.name:
        case "lights":
            marks = zip(_SQUARE, re.findall(r"[.*]", "\n".join(lines[1:])), strict=True)
            return f"{_cells(dict(marks), rng)}\n{', '.join(world.plan(state))}"
        case "lake":
            return _cells(dict(zip(_SQUARE, "".join(lines[1:]), strict=True)), rng)
        case "pegs":
            marks = [cell for line in lines[2:] for cell in line[2:].ljust(13)[::2]]
            board = dict(zip(_BOARD, marks, strict=True))
            return _cells({cell: mark for cell, mark in board.items() if mark != " "}, rng)
        case "sudoku":
            marks = re.findall(r"circle|square|triangle|star|\.", "\n".join(lines[2:]))
            return _cells({c: m[0] for c, m in zip(_QUARTER, marks, strict=True)}, rng)
        case "fold":
            holes = re.findall(r"[A-F][1-6]", lines[1])
            way = _FOLDS[re.findall("left|right|top|bottom", lines[0])[1]]
            line = " ".join(re.findall(r"\b[A-F1-6]\b", lines[0]))
            return f"{_cells({one: '.o'[one in holes] for one in _SHEET}, rng)}\n{way}, {line}"
        case "tint":
            pairs = re.findall(r"([A-D]): target at (\d+) degrees, yours at (\d+)", twin)
            rng.shuffle(pairs)
            told = ", ".join(" ".join(pair) for pair in pairs)
            return f"{told}\n{', '.join(world.plan(state))}"
        case "count":
            colors = rng.sample(COLOR_NAMES, 4)
            shapes = rng.sample(SHAPE_NAMES, 4)
            groups = [Group(color=one) for one in colors] + [Group(shape=one) for one in shapes]
            names = [f"{one} " for one in colors] + [f"{one}s" for one in shapes]
            sizes = [sum(map(group.has, state.things)) for group in groups]
            return ", ".join(f"{name}{size}" for name, size in zip(names, sizes, strict=True))
        case "heat" | "pie":
            return twin
        case _:
            return ""


_FOLDS: Final = {"left": "left", "right": "right", "top": "up", "bottom": "down"}
_SQUARE: Final = [f"{column}{row}" for row in range(1, 6) for column in "ABCDE"]
_BOARD: Final = [f"{column}{row}" for row in range(1, 8) for column in "ABCDEFG"]
_QUARTER: Final = [f"{column}{row}" for row in range(1, 5) for column in "ABCD"]
_SHEET: Final = [f"{column}{row}" for row in range(1, 7) for column in "ABCDEF"]


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

    def mixture(self, number: int, counts: Mapping[str, int]) -> Chunk:
        """Return a chunk with codes, windows and worlds.

        Args:
            number: Number of the chunk.
            counts: Episodes per kind: "canary", a family of desktop tasks, or the id of a world,
                which a space and a width of its pictures may follow.
        """
        rng = random.Random(derive_seed("mixture", self._seed, number))
        made: Chunk = {}
        for kind, count in counts.items():
            env_id, arguments, cuts = DESKTOP_ID, {"level": 1, "families": [kind]}, 0.9
            if kind == "canary":
                env_id, arguments, cuts = CANARY_ID, canary_arguments(rng, is_mixed=True), 0.0
            elif "/" in kind:
                env_id, _, pixels = kind.partition(" ")
                arguments = {"level": 1}
                env: Any = envkit.make(env_id, level=1).unwrapped
                env._pixels = int(pixels or env._pixels)  # also smaller than it accepts
                is_whole = env.world.is_multi_turn and not pixels
                described = count // 2 if is_whole else count
                made[kind] = [self._described(env, rng) for _ in range(described)]
                count, cuts = count - described, 0.0
            if count:
                rows = oracle_rows(self._codec, env_id, arguments, count, rng.getrandbits(40))
                made.setdefault(kind, []).extend(
                    self._example(row, cut=rng.random() < cuts) for row in rows
                )
        # A reader who errs in every turn leaves nothing to learn.
        return {kind: [one for one in part if any(one.mask)] for kind, part in made.items()}

    def _described(self, env: Any, rng: random.Random) -> Example:  # noqa: ANN401  # an environment
        """Return one turn of a task, other questions about its picture, and a description.

        Looking is what costs, so one picture teaches several things.
        """
        observation, _ = env.reset(seed=rng.getrandbits(40))
        world, env_id = env.world, f"visual/{env.world.name}-v0"
        if world.is_multi_turn:
            observation = _later(env, rng)
        state = env._state
        opening = [
            message("system", env.system_prompt),
            message("user", observation["text"], observation["images"]),
        ]
        prompt = self._codec.encode_prompt(opening)
        ids, mask = [*prompt.train_ids], [False] * len(prompt.train_ids)
        turns = [("", env.next_actions())]
        if env_id in _QUESTIONS:
            for other in _QUESTIONS[env_id](state, rng):
                turns.append((world.ask(other), f"<action>{world.answer(other)}</action>"))
        more = _describe(env, rng)
        if more:
            turns.append((DESCRIBE, more))
        reply: tuple[int, ...] = ()
        for asked, answer in turns:
            if asked:
                text = self._codec.encode_observation([message("user", asked)], sampled_ids=ids)
                ids += text.train_ids
                mask += [False] * len(text.train_ids)
            reply = self._codec.encode_reply(answer)
            ids += reply
            mask += [True] * len(reply)
        described = len(reply) if more else 0
        if world.name in _CELLED:
            # The names of the cells are drawn at random, so only what follows them is learned.
            named = 3 * _CELLS
            start = len(mask) - described
            mask[start : start + named] = [place % 3 == 2 for place in range(named)]
            described -= named - _CELLS
        return Example(
            ids=tuple(ids), mask=tuple(mask), pictures=prompt.features, described=described
        )

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


def _later(env: Any, rng: random.Random) -> Any:  # noqa: ANN401  # an environment of the worlds
    """Move the environment to a later turn, after good and bad moves; returns the observation."""
    world, state = env.world, env._state
    for _ in range(rng.randrange(5)):
        good, bad = world.plan(state), rng.choice(world.choices(state))
        action = rng.choice(good) if rng.random() < 0.6 and env.world.name != "lake" else bad
        if env.world.name == "lake" and rng.random() < 0.5:
            action = good[0]
        after = world.act(state, action).state
        if not world.is_over(after):
            state = after
    env._state, env._left = state, rng.randint(2, 14)
    turn = env._turn(world.ask(state), {})
    return {"text": turn.text, "images": turn.images}


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


def worker_pool(folder: Path, seed: int) -> ProcessPoolExecutor:
    """Return a pool of one process, which makes rows with a policy's folder while others train."""
    return ProcessPoolExecutor(
        1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(folder, seed),
    )


def _start_worker(folder: Path, seed: int) -> None:
    """Prepare a worker process with lower priority than training."""
    global _maker  # noqa: PLW0603  # what a pool's initializer leaves for its calls
    os.nice(5)
    _maker = RowMaker(folder, seed)


def worker_chunk(number: int, families: Mapping[str, int]) -> Chunk:
    """Return a chunk, in a worker process."""
    assert _maker is not None
    return _maker.chunk(number, families)


def worker_mixture(number: int, counts: Mapping[str, int]) -> Chunk:
    """Return a chunk of codes, windows and worlds, in a worker process."""
    assert _maker is not None
    return _maker.mixture(number, counts)
