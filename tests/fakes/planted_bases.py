"""Environments without a defect, as third parties write them: the bases of `fakes.planted`."""

import json
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
from envkit.toolcalls import ToolCall, call_errors, parse_tool_calls
from envkit.tools import ToolSpec
from envkit_canary.env import CanaryEnv
from envkit_desktop.env import ComputerUseEnv
from envkit_geo3k.env import Geo3kEnv
from envkit_refine import RefineEnv
from envkit_search.env import SearchEnv

Picture = PilImage.Image
NAMES = [
    "Ana",
    "Bo",
    "Cem",
    "Dora",
    "Emil",
    "Fay",
    "Gus",
    "Hana",
    "Ivo",
    "Jun",
    "Kai",
    "Lea",
    "Max",
    "Nora",
    "Otto",
    "Pia",
    "Rui",
    "Sam",
    "Tess",
    "Ula",
]


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


CLASSES = {"[A-Z]": "ABCDEFGHJKLMN", "[a-z]": "abcdefghijkmn", "[0-9]": "0123456789"}


class Regex(Small):
    """Write a regular expression; hidden examples test it."""

    fields: ClassVar[dict[str, type]] = {"pattern": str, "good": list, "bad": list}

    @staticmethod
    def draw(rng: random.Random) -> Task:
        parts: list[tuple[str, int]] = []
        while len(parts) < 5:
            kind = rng.choice([*CLASSES, "-", "_", "#", ":"])
            if not parts or kind != parts[-1][0]:
                parts.append((kind, rng.randint(2, 4) if kind in CLASSES else 1))
        good = [sample(parts, rng) for _ in range(9)]
        bad: list[str] = []
        pattern = "".join(kind if n == 1 else f"{kind}{{{n}}}" for kind, n in parts)
        while len(bad) < 9:
            other = [(kind, max(1, n + rng.choice([0, 0, -1, 1]))) for kind, n in parts]
            if rng.random() < 0.5:
                rng.shuffle(other)
            text = sample(other, rng)
            if re.fullmatch(pattern, text) is None:
                bad.append(text)
        return {"pattern": pattern, "good": good, "bad": bad}

    def start(self, task: Task) -> Turn:
        return Turn(
            "Write a Python regular expression of characters, classes in brackets and counts in "
            f"braces. It must match all of: {'  '.join(task['good'][:4])}\nand none of: "
            f"{'  '.join(task['bad'][:4])}\nMore strings of the same form test it. Reply with the "
            "expression alone."
        )

    def on_turn(self, response_text: str) -> Turn:
        pattern = self.reply.final.strip()
        try:
            is_valid = 0 < len(pattern) <= 80 and not set(pattern) & set("()*+?|\\.")
            expression = re.compile(pattern) if is_valid else None
        except (re.error, OverflowError):
            expression = None
        if expression is None:
            return self.misread("a valid expression of at most 80 characters without ()*+?|.")
        return self.judge(
            [expression.fullmatch(text) is not None for text in self.task["good"]],
            [expression.fullmatch(text) is None for text in self.task["bad"]],
        )

    def judge(self, matched: list[bool], rejected: list[bool]) -> Turn:
        return self.end(all(matched) and all(rejected))

    def solve(self, task: Task, turn: int) -> str:
        return task["pattern"]


def sample(parts: list[tuple[str, int]], rng: random.Random) -> str:
    return "".join(rng.choice(CLASSES.get(kind, kind)) for kind, n in parts for _ in range(n))


def call(name: str, **arguments: object) -> str:
    """Write a tool call."""
    made = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{made}</tool_call>"


def schema(name: str, description: str, **kinds: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(kinds)}
    return ToolSpec(name=name, description=description, parameters=parameters)


class ToolGame(Small):
    """One tool call per reply; a call that is unknown or has wrong arguments is data."""

    def called(self) -> ToolCall | None:
        reply = parse_tool_calls(self.reply, tools=self.tools)
        return reply.calls[0] if len(reply.calls) == 1 and not reply.errors else None

    def problems(self, made: ToolCall) -> list[str]:
        return call_errors(made, self.tools)

    def refuse(self, why: str) -> Turn:
        return Turn(why, role="tool", info={"parse_error": why})


class Sort(ToolGame):
    """Sort items by a weight that only a tool compares."""

    replies = 12
    fields: ClassVar[dict[str, type]] = {"weights": dict}
    tools = (schema("compare", "Say which is heavier.", first="string", second="string"),)
    arguments: ClassVar[tuple[str, str]] = ("first", "second")

    @staticmethod
    def draw(rng: random.Random) -> Task:
        items = sorted(rng.sample("ABCDEFGHJKLMNPQRSTUVWX", 5))
        weights = rng.sample(range(100, 1000), 5)
        return {"weights": dict(zip(items, weights, strict=True))}

    def start(self, task: Task) -> Turn:
        return Turn(
            f"Sort the items {', '.join(task['weights'])}. Compare two with the tool compare. At "
            "the end, reply with all items, lightest first, for example order: B, A, C"
        )

    def on_turn(self, response_text: str) -> Turn:
        weights: dict[str, int] = self.task["weights"]
        found = re.fullmatch(r"order: *([A-Z](?:, *[A-Z]){0,9})", self.reply.final.strip())
        if found is not None:
            return self.end(self.is_sorted(re.findall("[A-Z]", found[1])))
        made = self.called()
        if made is None:
            return self.misread("one call of compare, or order: B, A, C")
        if problems := self.problems(made):
            return self.refuse(problems[0])
        first, second = (str(made.arguments.get(name)) for name in self.arguments)
        if first not in weights or second not in weights:
            return self.refuse(self.unknown())
        heavier = first if weights[first] > weights[second] else second
        return Turn(f"{heavier} is heavier." if first != second else "Equal.", role="tool")

    def unknown(self) -> str:
        return f"There is no such item. The items are {', '.join(self.task['weights'])}."

    def is_sorted(self, order: list[str]) -> bool:
        return order == sorted(self.task["weights"], key=self.task["weights"].__getitem__)

    def solve(self, task: Task, turn: int) -> str:
        order = sorted(task["weights"], key=task["weights"].__getitem__)
        if turn == 0:
            return call("compare", **dict(zip(self.arguments, order[:2], strict=True)))
        return f"order: {', '.join(order)}"


class Twenty(Small):
    """Guess a number by asking whether it is larger than others."""

    replies = 12
    fields: ClassVar[dict[str, type]] = {"number": int}
    form = "above 500? or guess 123"

    @staticmethod
    def draw(rng: random.Random) -> Task:
        return {"number": rng.randint(1, 1000)}

    def start(self, task: Task) -> Turn:
        return Turn(
            f"I think of a number from 1 to 1000. Ask or guess once, in the form {self.form}"
        )

    def on_turn(self, response_text: str) -> Turn:
        found = re.fullmatch(r"(above|guess) ([0-9]{1,4})[?.]?", self.reply.final.strip())
        if found is None:
            return self.misread(self.form)
        if found[1] == "guess":
            return self.end(int(found[2]) == self.task["number"])
        return self.tell(self.task["number"] > int(found[2]))

    def tell(self, is_above: bool) -> Turn:
        return Turn("Yes." if is_above else "No.")

    def solve(self, task: Task, turn: int) -> str:
        low, high = 1, 1000
        for _ in range(turn):
            middle = (low + high) // 2
            low, high = (middle + 1, high) if task["number"] > middle else (low, middle)
        return f"guess {low}" if low == high else f"above {(low + high) // 2}?"


class Bank(ToolGame):
    """Transfer money until two accounts have the same balance; only a tool tells balances."""

    replies = 8
    fields: ClassVar[dict[str, type]] = {"balances": dict, "pair": list}
    tools = (
        schema("balance", "Return the balance of an account.", account="string"),
        schema("transfer", "Move money.", source="string", target="string", amount="integer"),
        schema("finish", "Hand in the accounts as they are."),
    )

    @staticmethod
    def draw(rng: random.Random) -> Task:
        names = rng.sample(NAMES, 4)
        balances = {name: rng.randint(50, 2000) for name in names}
        one, two = names[:2]
        balances[two] = balances[one] + 2 * rng.randint(20, 700) * rng.choice([1, -1])
        if balances[two] < 10:
            balances[two] = balances[one] + 2 * rng.randint(20, 700)
        return {"balances": balances, "pair": [one, two]}

    def start(self, task: Task) -> Turn:
        self.state = {"balances": dict(task["balances"])}
        one, two = task["pair"]
        text = (
            f"Transfer money between {one} and {two} until they have the same balance. Then finish."
        )
        return Turn(f"{text} Accounts: {', '.join(task['balances'])}.", info={"is_success": False})

    def on_turn(self, response_text: str) -> Turn:
        made = self.called()
        if made is None:
            return self.told(self.misread("one tool call"))
        if problems := self.problems(made):
            return self.told(self.refuse(problems[0]))
        if made.name == "finish":
            return self.told(self.end(self.is_equal()))
        text = self.move(made) if made.name == "transfer" else self.look(made)
        return self.told(Turn(text, role="tool"))

    def told(self, turn: Turn) -> Turn:
        return changed(turn, is_success=turn.done and turn.reward > 0)

    def is_equal(self) -> bool:
        """Return whether the pair has what it had together, in equal parts."""
        one, two = self.task["pair"]
        now, before = self.state["balances"], self.task["balances"]
        return now[one] == now[two] and now[one] + now[two] == before[one] + before[two]

    def look(self, made: ToolCall) -> str:
        balance = self.state["balances"].get(made.arguments["account"])
        return "There is no such account." if balance is None else f"Balance: {balance}"

    def move(self, made: ToolCall) -> str:
        source, target = made.arguments["source"], made.arguments["target"]
        amount, balances = int(made.arguments["amount"]), self.state["balances"]
        if not {source, target} <= balances.keys() or not 0 < amount <= balances[source]:
            return "Refused: an unknown account, or an amount that the source does not have."
        balances[source] -= amount
        balances[target] += amount
        return "Done."

    def solve(self, task: Task, turn: int) -> str:
        poor, rich = sorted(task["pair"], key=task["balances"].__getitem__)
        amount = (task["balances"][rich] - task["balances"][poor]) // 2
        plan = [
            call("balance", account=poor),
            call("balance", account=rich),
            call("transfer", source=rich, target=poor, amount=amount),
            call("finish"),
        ]
        return plan[min(turn, 3)]


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


BUILT_IN = (Canary, Geo3k, Search, Desktop, Refine)
SMALL = (Maze, Count, Chart, Regex, Sort, Twenty, Bank, Spell, Receipt)
BASES: tuple[type[Env], ...] = (*BUILT_IN, *SMALL)
