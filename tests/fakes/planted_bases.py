"""Bases of `fakes.planted` without a defect: built-in environments, and five that show images."""

import math
import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont

from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.errors import DatasetError
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit_canary.env import CanaryEnv
from envkit_desktop.env import ComputerUseEnv
from envkit_geo3k.env import Geo3kEnv
from envkit_refine import RefineEnv
from envkit_search.env import SearchEnv

Picture = PilImage.Image


class Canary(CanaryEnv):
    """canary-v0, which declares its threshold itself."""

    default_threshold = 1.0


class Geo3k(Geo3kEnv):
    """geo3k-v0, which declares its threshold itself."""

    default_threshold = 1.0


class Search(SearchEnv):
    """search-v0, which declares its threshold itself."""

    default_threshold = 1.0


class Desktop(ComputerUseEnv):
    """computer-use-v0, which declares its threshold itself."""

    default_threshold = 1.0


class ShapedDesktop(Desktop):
    """computer-use-v0, which also pays for progress."""

    def __init__(self, *, shaping: float = 0.2, **arguments: Any) -> None:
        super().__init__(shaping=shaping, **arguments)


class Refine(RefineEnv):
    """refine-v0."""


class Generated:
    """Endless tasks from a function of a generator."""

    size = None

    def __init__(self, name: str, draw: Callable[[random.Random], Task]) -> None:
        self._name, self._draw = name, draw

    def task(self, index: int) -> Task:
        return self._draw(random.Random(derive_seed(self._name, index)))


class Small(Env):
    """What the environments below share: generated tasks, JSON state and an oracle."""

    capabilities = Capabilities(
        thread_safe=True, compute_bound=True, replay_safe=True, snapshot=True, deterministic=True
    )
    default_threshold = 1.0
    replies: ClassVar[int] = 2
    """A second one, in case the first cannot be read."""
    fields: ClassVar[dict[str, type]] = {}
    """Keys of a task and their types."""

    def __init__(self, *, render_mode: str | None = None) -> None:
        super().__init__(max_turns=self.replies, render_mode=render_mode)
        self.tasks = Generated(self.draw.__qualname__, self.draw)
        self.state: dict[str, Any] = {}

    @staticmethod
    def draw(rng: random.Random) -> Task:
        raise NotImplementedError

    def start(self, task: Task) -> Turn:
        raise NotImplementedError

    def solve(self, task: Task, turn: int) -> str:
        raise NotImplementedError

    def on_reset(self, task: Task) -> Turn:
        for name, kind in self.fields.items():
            if not isinstance(task.get(name), kind):
                raise DatasetError(
                    f"a task needs {name!r} of type {kind.__name__}, got {task!r:.100}"
                )
        self.state = {}
        return self.start(task)

    def end(self, is_right: bool) -> Turn:
        reward = float(is_right)
        info = {"reward_terms": {"answer": reward}}
        return Turn("Correct." if is_right else "Not correct.", reward=reward, done=True, info=info)

    def misread(self, form: str) -> Turn:
        return Turn(f"Reply in the form: {form}", info={"parse_error": f"not in the form {form}"})

    def get_state(self) -> dict[str, Any]:
        return self.state

    def set_state(self, state: dict[str, Any]) -> None:
        self.state = state

    def oracle(self) -> Policy:
        def reply(context: PolicyContext) -> str:
            return self.solve(context.task, context.turn)

        return reply


def changed(
    turn: Turn, *, text: str | None = None, reward: float | None = None, **info: Any
) -> Turn:
    """Return the turn with another text, reward or entries of info."""
    return Turn(
        turn.text if text is None else text,
        images=turn.images,
        role=turn.role,
        reward=turn.reward if reward is None else reward,
        done=turn.done,
        info={**turn.info, **info},
    )


def sheet(width: int, height: int) -> tuple[Picture, ImageDraw.ImageDraw]:
    picture = PilImage.new("RGB", (width, height), "white")
    return picture, ImageDraw.Draw(picture)


def write(pen: ImageDraw.ImageDraw, x: float, y: float, text: str, size: int = 20) -> None:
    pen.text((x, y), text, fill="black", font=ImageFont.load_default(size))


SIDE = 7
STEPS = {"U": (0, -1), "D": (0, 1), "L": (-1, 0), "R": (1, 0)}
BACK = {"U": "D", "D": "U", "L": "R", "R": "L"}


class Maze(Small):
    """Reach the green cell of a maze that only the image shows, in at most four replies."""

    replies = 4
    fields: ClassVar[dict[str, type]] = {"cells": list, "start": list, "goal": list}
    form = "moves: UDLR, for example moves: RRDL"

    @staticmethod
    def draw(rng: random.Random) -> Task:
        while True:
            cells = carve(rng)
            start, goal = ([rng.randrange(SIDE), rng.randrange(SIDE)] for _ in range(2))
            if 12 <= len(route(cells, start, goal)) <= 40:
                return {"cells": cells, "start": start, "goal": goal}

    def start(self, task: Task) -> Turn:
        self.state = {"at": list(task["start"]), "moves": 0}
        return Turn(
            "Move the red dot to the green cell. A wall stops it, and the rest of your moves is "
            f"ignored. You have four replies. Reply with {self.form}",
            images=[self.picture()],
        )

    def picture(self) -> Picture:
        return maze_picture(self.task, self.state["at"])

    def walk(self, moves: str) -> None:
        for move in moves:
            x, y = self.state["at"]
            if move not in self.task["cells"][y][x] or self.state["at"] == self.task["goal"]:
                return
            self.state["at"] = [x + STEPS[move][0], y + STEPS[move][1]]
            self.state["moves"] += 1

    def on_turn(self, response_text: str) -> Turn:
        found = re.fullmatch(r"moves: *([UDLR]{1,40})", self.reply.final.strip())
        if found is None:
            return self.misread(self.form)
        self.walk(found[1])
        if self.state["at"] == self.task["goal"]:
            return self.end(True)
        return Turn("Not there yet.", images=[self.picture()])

    def solve(self, task: Task, turn: int) -> str:
        path = route(task["cells"], task["start"], task["goal"])
        return f"moves: {path[: len(path) // 2] if turn == 0 else path[len(path) // 2 :]}"


def carve(rng: random.Random) -> list[list[str]]:
    """Return a maze without loops: for each cell, the directions that are open."""
    cells = [["" for _ in range(SIDE)] for _ in range(SIDE)]
    stack = [(rng.randrange(SIDE), rng.randrange(SIDE))]
    while stack:
        x, y = stack[-1]
        near = [(d, x + u, y + v) for d, (u, v) in STEPS.items()]
        free = [(d, u, v) for d, u, v in near if 0 <= u < SIDE and 0 <= v < SIDE]
        free = [(d, u, v) for d, u, v in free if not cells[v][u]]
        if not free:
            stack.pop()
            continue
        d, u, v = rng.choice(free)
        cells[y][x] += d
        cells[v][u] += BACK[d]
        stack.append((u, v))
    return cells


def route(cells: list[list[str]], start: list[int], goal: list[int]) -> str:
    ways = {tuple(start): ""}
    queue = [tuple(start)]
    for x, y in queue:
        for d in cells[y][x]:
            cell = (x + STEPS[d][0], y + STEPS[d][1])
            if cell not in ways:
                ways[cell] = ways[x, y] + d
                queue.append(cell)
    return ways[tuple(goal)]


def maze_picture(task: Task, at: list[int]) -> Picture:
    picture, pen = sheet(SIDE * 32 + 8, SIDE * 32 + 8)
    for place, colour in ((task["goal"], "lightgreen"), (at, "red")):
        x, y = 4 + 32 * place[0], 4 + 32 * place[1]
        (pen.ellipse if colour == "red" else pen.rectangle)((x + 6, y + 6, x + 26, y + 26), colour)
    for y, row in enumerate(task["cells"]):
        for x, open_ in enumerate(row):
            a, b, c, d = 4 + 32 * x, 4 + 32 * y, 36 + 32 * x, 36 + 32 * y
            walls = {"U": (a, b, c, b), "D": (a, d, c, d), "L": (a, b, a, d), "R": (c, b, c, d)}
            for wall in walls.keys() - set(open_):
                pen.line(walls[wall], "black", 3)
    return picture


class Count(Small):
    """Count the red and the blue dots."""

    chance_level = 0.01
    fields: ClassVar[dict[str, type]] = {"red": int, "blue": int, "look": int}
    form = "two numbers, first red, then blue, for example 4, 11"

    @staticmethod
    def draw(rng: random.Random) -> Task:
        return {
            "red": rng.randint(3, 12),
            "blue": rng.randint(3, 12),
            "look": rng.getrandbits(31),
        }

    def start(self, task: Task) -> Turn:
        text = f"How many dots are red, and how many are blue? Reply with {self.form}"
        return Turn(text, images=[self.picture(task)])

    def picture(self, task: Task) -> Picture:
        rng = random.Random(task["look"])
        picture, pen = sheet(210, 210)
        cells = rng.sample(range(36), task["red"] + task["blue"])
        for number, cell in enumerate(cells):
            x, y = 35 * (cell % 6) + rng.randint(4, 10), 35 * (cell // 6) + rng.randint(4, 10)
            pen.ellipse((x, y, x + 18, y + 18), "red" if number < task["red"] else "blue")
        return picture

    def on_turn(self, response_text: str) -> Turn:
        found = re.fullmatch(r"([0-9]{1,2}), *([0-9]{1,2})", self.reply.final.strip())
        if found is None:
            return self.misread(self.form)
        return self.end((int(found[1]), int(found[2])) == (self.task["red"], self.task["blue"]))

    def solve(self, task: Task, turn: int) -> str:
        return f"{task['red']}, {task['blue']}"


class Chart(Small):
    """Choose the height of a bar."""

    chance_level = 0.25
    fields: ClassVar[dict[str, type]] = {"heights": list, "bar": int, "options": list}

    @staticmethod
    def draw(rng: random.Random) -> Task:
        heights = [rng.randint(11, 99) for _ in range(5)]
        bar = rng.randrange(5)
        options = [heights[bar]]
        while len(options) < 4:
            value = rng.randint(11, 99)
            if all(abs(value - other) >= 12 for other in options):
                options.append(value)
        rng.shuffle(options)
        return {"heights": heights, "bar": bar, "options": options}

    def options(self, task: Task) -> list[int]:
        return task["options"]

    def start(self, task: Task) -> Turn:
        lines = [f"{a}) {value}" for a, value in zip("ABCD", self.options(task), strict=True)]
        question = f"Which is the height of bar {'PQRST'[task['bar']]}? Reply with one letter."
        return Turn("\n".join([question, *lines]), images=[self.picture(task)])

    def picture(self, task: Task) -> Picture:
        picture, pen = sheet(300, 250)
        for value in range(0, 101, 10):
            pen.line((40, 220 - 2 * value, 300, 220 - 2 * value), "gray")
            write(pen, 4, 212 - 2 * value, str(value), 12)
        for place, value in enumerate(task["heights"]):
            left = 50 + 50 * place
            pen.rectangle((left, 220 - 2 * value, left + 30, 220), "steelblue")
            write(pen, left + 8, 222, "PQRST"[place])
        return picture

    def on_turn(self, response_text: str) -> Turn:
        found = re.fullmatch(r"([A-D])[).]?", self.reply.final.strip())
        if found is None:
            return self.misread("A, B, C or D")
        return self.end(found[1] == self.solve(self.task, 0))

    def solve(self, task: Task, turn: int) -> str:
        return "ABCD"[task["options"].index(task["heights"][task["bar"]])]


class Spell(Small):
    """Spell the word on a sign; three tries."""

    replies = 3
    fields: ClassVar[dict[str, type]] = {"word": str}
    form = "letters with hyphens, for example c-a-t"

    @staticmethod
    def draw(rng: random.Random) -> Task:
        return {"word": "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in "abc")}

    def start(self, task: Task) -> Turn:
        return Turn(f"Spell the word on the sign. Reply with {self.form}", images=[self.picture()])

    def picture(self) -> Picture:
        return sign(self.task["word"])

    def on_turn(self, response_text: str) -> Turn:
        found = re.fullmatch(r"[a-z](?:-[a-z]){0,30}", self.reply.final.strip())
        if found is None:
            return self.misread(self.form)
        if self.is_right(found[0].split("-")):
            return self.end(True)
        return Turn(self.again(), images=[self.picture()])

    def is_right(self, letters: list[str]) -> bool:
        return letters == list(self.task["word"])

    def again(self) -> str:
        return "Not correct. Look again."

    def solve(self, task: Task, turn: int) -> str:
        return "-".join(task["word"])


def sign(word: str) -> Picture:
    picture, pen = sheet(240, 80)
    write(pen, 30, 14, word, 44)
    return picture


class Receipt(Small):
    """Add the prices on a receipt."""

    fields: ClassVar[dict[str, type]] = {"prices": list}

    @staticmethod
    def draw(rng: random.Random) -> Task:
        return {"prices": [rng.randint(100, 4000) for _ in range(4)]}

    def start(self, task: Task) -> Turn:
        picture, pen = sheet(200, 150)
        for line, price in enumerate(task["prices"]):
            write(pen, 20, 10 + 32 * line, f"{'ABCD'[line]}   {price / 100:.2f}", 24)
        return Turn("What do the four prices add up to? Reply with a number.", images=[picture])

    def on_turn(self, response_text: str) -> Turn:
        said = self.reply.final.strip()
        is_short = 0 < len(said) <= 60 and said.isascii()
        return (self.grade(said) if is_short else None) or self.misread("a number such as 12.34")

    def grade(self, said: str) -> Turn | None:
        value = number(said)
        if value is None or not math.isfinite(value):
            return None
        return self.end(self.is_close(value, sum(self.task["prices"]) / 100))

    def is_close(self, value: float, total: float) -> bool:
        return abs(value - total) < 0.005

    def solve(self, task: Task, turn: int) -> str:
        return f"{sum(task['prices']) / 100:.2f}"


def number(said: str) -> float | None:
    try:
        return float(said)
    except ValueError:
        return None
