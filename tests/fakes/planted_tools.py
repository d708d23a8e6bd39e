"""Bases of `fakes.planted` without a defect and without images."""

import json
import random
import re
from typing import ClassVar

from fakes.planted_bases import Small, changed

from envkit.env import Turn
from envkit.tasks import Task
from envkit.toolcalls import ToolCall, call_errors, parse_tool_calls
from envkit.tools import ToolSpec

NAMES = (
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
)
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
