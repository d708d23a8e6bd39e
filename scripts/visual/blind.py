"""Policies that never see a picture, for the certificates of the visual worlds.

They learn from the oracle's play of other tasks of the same world and level, and choose between
their variants on tasks that are not counted. So each is the best of its kind.
"""

import functools
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from envkit.reply import FinishReason, Reply
from envkit.seeds import derive_seed
from envkit_visual.env import VisualEnv

_TRAINED: Final = 60
"""Tasks from which a policy learns."""
_TRIED: Final = 20
"""Tasks on which variants are compared."""
_VARIANTS: Final = 12
_DIGITS: Final = re.compile(r"\d+")
_STEPS: Final = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


class Player(Protocol):
    """A policy in one episode."""

    def __call__(self, text: str, turn: int) -> str:
        """Return the reply to a text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the oracle did in tasks that are not counted."""

    plans: tuple[tuple[str, ...], ...]
    """Its replies, task by task."""
    heard: dict[str, Counter[str]]
    """Its replies after each text, with and without the text's numbers."""
    at_turn: tuple[Counter[str], ...]
    """Its replies at each turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One world at one level."""

    name: str
    level: int

    def env(self) -> VisualEnv:
        """Return an environment that draws nothing."""
        return VisualEnv(name=self.name, level=self.level, shows_picture=False)

    def seeds(self, purpose: str, count: int) -> list[int]:
        """Return seeds of tasks for a purpose."""
        return [derive_seed("blind", purpose, self.name, self.level, at) for at in range(count)]


Policy = Callable[[VisualEnv, random.Random], Player]
"""Starts an episode of a policy. It reads only `env.choices()` and the texts."""


def solves(env: VisualEnv, seed: int, policy: Policy) -> bool:
    """Return whether a policy solves the task of a seed."""
    text = env.reset(options={"task": {"seed": seed}}).observation["text"]
    player = policy(env, random.Random(seed))
    while True:
        step = env.step(player(text, env.turn))
        if step.terminated or step.truncated:
            return bool(step.info["is_success"])
        text = step.observation["text"]


@functools.lru_cache(maxsize=4)
def memory_of(cell: Cell) -> Memory:
    """Watch the oracle."""
    env, plans = cell.env(), list[tuple[str, ...]]()
    heard: dict[str, Counter[str]] = defaultdict(Counter)
    at_turn: list[Counter[str]] = []
    for seed in cell.seeds("training", _TRAINED):
        text = env.reset(options={"task": {"seed": seed}}).observation["text"]
        plan: list[str] = []
        done = False
        while not done:
            plan.append(env.next_actions())
            for key in (text, _without_numbers(text)):
                heard[key][plan[-1]] += 1
            at_turn += [Counter[str]()] if len(at_turn) < len(plan) else []
            at_turn[len(plan) - 1][plan[-1]] += 1
            step = env.step(plan[-1])
            text, done = step.observation["text"], step.terminated
        plans.append(tuple(plan))
    return Memory(plans=tuple(plans), heard=dict(heard), at_turn=tuple(at_turn))


def best_of(cell: Cell, variants: Sequence[Policy]) -> Policy:
    """Return the variant that solves the most tasks that are not counted."""
    env, seeds = cell.env(), cell.seeds("choice", _TRIED)
    return max(variants, key=lambda variant: sum(solves(env, seed, variant) for seed in seeds))


def _random(env: VisualEnv, rng: random.Random) -> Player:
    choices = env.choices()
    return lambda text, turn: rng.choice(choices)


def _constant(index: int) -> Policy:
    def start(env: VisualEnv, rng: random.Random) -> Player:
        del rng
        choices = env.choices()
        return lambda text, turn: choices[index % len(choices)]

    return start


def _most_frequent(memory: Memory) -> Policy:
    usual = [counted.most_common(1)[0][0] for counted in memory.at_turn]

    def start(env: VisualEnv, rng: random.Random) -> Player:
        del env, rng
        return lambda text, turn: usual[min(turn, len(usual) - 1)]

    return start


def _plan(plan: Sequence[str]) -> Policy:
    def start(env: VisualEnv, rng: random.Random) -> Player:
        del env, rng
        return lambda text, turn: plan[turn % len(plan)]

    return start


def _text_only(memory: Memory) -> Policy:
    """Reply as the oracle did after the same text, or else name a choice that the text names."""

    def start(env: VisualEnv, rng: random.Random) -> Player:
        choices = env.choices()

        def reply(text: str, turn: int) -> str:
            for key in (text, _without_numbers(text)):
                if key in memory.heard:
                    known = memory.heard[key]
                    return rng.choices([*known], [*known.values()])[0]
            words = set(re.findall(r"\w+", text.casefold()))
            named = [c for c in choices if words & set(re.findall(r"\w+", c.casefold()[8:-9]))]
            return rng.choice(named or choices)

        return reply

    return start


def _sweep(*, is_shuffled: bool) -> Policy:
    """Try each choice in turn."""

    def start(env: VisualEnv, rng: random.Random) -> Player:
        choices = env.choices()
        if is_shuffled:
            rng.shuffle(choices)
        return lambda text, turn: choices[turn % len(choices)]

    return start


def _follower(memory: Memory) -> Policy:
    """Keep a hand on the wall: after a move turn left, and where one fails turn right.

    A move failed if its text differs from the one that the oracle hears most.
    """
    usual = _usual(memory)

    def start(env: VisualEnv, rng: random.Random) -> Player:
        choices = sorted(env.choices(), key=_clockwise)
        tried = rng.randrange(len(choices))

        def reply(text: str, turn: int) -> str:
            nonlocal tried
            if turn and _without_numbers(text) == usual:
                tried -= 1
            elif turn:
                tried += 1
            return choices[tried % len(choices)]

        return reply

    return start


def _mapper(memory: Memory) -> Policy:
    """Draw a map of moves that failed, and walk to the nearest cell that was not tried."""
    usual = _usual(memory)

    def start(env: VisualEnv, rng: random.Random) -> Player:
        del env
        here, heading, known = (0, 0), rng.choice([*_STEPS]), {(0, 0): True}

        def reply(text: str, turn: int) -> str:
            nonlocal here, heading
            if turn:
                tried = _beside(here, heading)
                known[tried] = _without_numbers(text) == usual
                here = tried if known[tried] else here
            heading = _unknown_way(known, here, heading, rng)
            return f"<action>{heading}</action>"

        return reply

    return start


def _unknown_way(
    known: dict[tuple[int, int], bool], here: tuple[int, int], heading: str, rng: random.Random
) -> str:
    """Return the first move to the nearest cell that is not known, straight on if possible."""
    ways = sorted(rng.sample([*_STEPS], len(_STEPS)), key=lambda way: way != heading)
    waiting = deque((_beside(here, way), way) for way in ways)
    seen = {here}
    while waiting:
        cell, first = waiting.popleft()
        if cell not in known:
            return first
        if known[cell] and cell not in seen:
            seen.add(cell)
            waiting.extend((_beside(cell, way), first) for way in ways)
    return heading


def _beside(cell: tuple[int, int], way: str) -> tuple[int, int]:
    return cell[0] + _STEPS[way][0], cell[1] + _STEPS[way][1]


def _usual(memory: Memory) -> str:
    """Return the text that the oracle hears most, without its numbers."""
    totals = Counter({text: sum(said.values()) for text, said in memory.heard.items()})
    return _without_numbers(totals.most_common(1)[0][0])


def _clockwise(reply: str) -> int:
    return next((at for at, way in enumerate(_STEPS) if f">{way}<" in reply), 0)


def _without_numbers(text: str) -> str:
    return _DIGITS.sub("0", text)


def _cut(env: VisualEnv, rng: random.Random) -> Player:
    """Write the oracle's replies, and be cut right after each."""
    del rng
    plan = env.plan()

    def reply(text: str, turn: int) -> str:
        said = plan[min(turn, len(plan) - 1)]
        env.announce(Reply(text=said, finish=FinishReason.LENGTH))
        return said

    return reply


def _best_constant(cell: Cell) -> Policy:
    few = random.Random(0).sample(range(_VARIANTS * 4), _VARIANTS)
    return best_of(cell, [_constant(index) for index in few])


def _best_plan(cell: Cell) -> Policy:
    return best_of(cell, [_plan(plan) for plan in memory_of(cell).plans[:_VARIANTS]])


def _best_explorer(cell: Cell) -> Policy:
    sweeps = [_sweep(is_shuffled=shuffled) for shuffled in (False, True)]
    memory = memory_of(cell)
    return best_of(cell, [*sweeps, _follower(memory), _mapper(memory)])


POLICIES: Final[dict[str, Callable[[Cell], Policy]]] = {
    "random": lambda cell: _random,
    "constant": _best_constant,
    "most frequent": lambda cell: _most_frequent(memory_of(cell)),
    "blind": _best_plan,
    "text only": lambda cell: _text_only(memory_of(cell)),
    "feedback only": _best_explorer,
    "cut": lambda cell: _cut,
}
"""What makes each blind policy for a cell: the best of its kind."""
