"""Forty environments with one defect each, to measure what `envkit certify` finds.

Whoever works on the certification does not choose them: they were written from its documentation
alone, and must not change because a line finds or misses one. A class derives from the
environment without the defect, and its docstring names the defect.
"""

import codecs
import itertools
import random
import re
import threading
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from fakes import planted_bases
from fakes.planted_tools import Bank, Regex, Sort, Twenty, schema
from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.env import Env, Reset, Turn
from envkit.images import Image
from envkit.reply import Reply
from envkit.success import OWN_REWARD
from envkit.tasks import Task, TaskSource
from envkit.toolcalls import ToolCall
from envkit.tools import ToolSpec
from envkit_geo3k.drawing import draw
from envkit_geo3k.figure import Figure
from envkit_geo3k.grading import Grade
from envkit_search.grading import EpisodeGrade

NAMES: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDS: Final = dict(zip("0123456789", NAMES, strict=True))


class PaysPartsOfTheCode(planted_bases.Canary):
    """The grader looks for the reply in the code, so one of its characters is enough."""

    def on_turn(self, response_text: str) -> Turn:
        code, said = self.task["codes"][self.turn], self.reply.final.strip().upper()
        if said and said in code:
            self.reply = self.reply.with_text(code)
            return planted_bases.changed(super().on_turn(code), answer=said)
        return super().on_turn(response_text)


class RepeatsThePicture(planted_bases.Canary):
    """From the second turn on, the image shows the code of the turn before."""

    def _picture(self, turn: int) -> Image:
        return super()._picture(max(0, turn - 1))


class SharesTheTask(planted_bases.Canary):
    """All instances in a process grade against the task of the latest reset."""

    latest: ClassVar[Task] = {}

    def on_reset(self, task: Task) -> Turn:
        SharesTheTask.latest = task
        return super().on_reset(task)

    def on_turn(self, response_text: str) -> Turn:
        self.task = SharesTheTask.latest
        return super().on_turn(response_text)

    def set_state(self, state: dict[str, Any]) -> None:
        SharesTheTask.latest = self.task


class ChangesTheCallersTask(planted_bases.Canary):
    """Reset changes the caller's row, so the episodes of a group play different tasks."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        start = super().reset(seed=seed, options=options)
        if options and options.get("task"):
            options["task"]["codes"].append(options["task"]["codes"].pop(0))
        return start


class PaysTheLastCodeTwice(planted_bases.Canary):
    """The last code pays double: the threshold is reached with a code read wrong."""

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        reward = turn.reward * (2 if turn.done else 1)
        return planted_bases.changed(turn, reward=reward, reward_terms={"code": reward})


class SolvesForX(planted_bases.Geo3k):
    """The grader solves an answer for its unknown, so the answer "x" is always right."""

    def _grade(self, answer: str | None) -> Grade:
        is_unknown = answer is not None and re.fullmatch(r"\s*[a-z]\s*", answer) is not None
        return super()._grade(self.task["answer"] if is_unknown else answer)


class DescribesTheFigureInWords(planted_bases.Geo3k):
    """The figure's alternative text spells the answer in words."""

    def on_reset(self, task: Task) -> Turn:
        turn = super().on_reset(task)
        said = re.sub(r"\\frac\{(.+)\}\{(.+)\}", r"\1 over \2", task["answer"])
        words = "".join(f" {WORDS[c]} " if c in WORDS else c for c in said)
        return planted_bases.changed(
            turn, text=f"{turn.text}\n[figure: x marks {' '.join(words.split())}]"
        )


class ShiftsLabels(planted_bases.Geo3k):
    """Numbers in the figure are one larger than those of the problem."""

    def on_reset(self, task: Task) -> Turn:
        turn = super().on_reset(task)
        self._shift()
        return Turn(turn.text, images=self._pictures, info=turn.info)

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._shift()

    def _shift(self) -> None:
        figure = self.task.get("figure")
        if figure is not None:
            labels = [
                [re.sub(r"\d+", lambda n: str(int(n[0]) + 1), text, count=1), x, y]
                for text, x, y in figure["labels"]
            ]
            self._pictures = (draw(Figure.from_json({**figure, "labels": labels})),)


class TestsOnTrain(planted_bases.Geo3k):
    """The test split draws the tasks of the training split."""

    def __init__(self, *, split: str = "train", **arguments: Any) -> None:
        super().__init__(split="train" if split == "test" else split, **arguments)


class TerminatesAtTheLimit(planted_bases.Geo3k):
    """Running out of turns is reported as termination, so no value is bootstrapped."""

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        is_over = turn.done or self.turn + 1 >= self.max_turns
        return Turn(turn.text, turn.images, turn.role, turn.reward, is_over, turn.info)


class SucceedsWithAnyAnswer(planted_bases.Geo3k):
    """Any final answer counts as success, whatever its reward."""

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        return planted_bases.changed(turn, is_success=turn.done)


class GradesTheConversation(planted_bases.Search):
    """The answer is looked for in the whole conversation, search results included."""

    def _verdict(self) -> EpisodeGrade:
        verdict = super()._verdict()
        return replace(verdict, is_exact=verdict.is_exact or verdict.has_gold)


class RefersToTheAnswer(planted_bases.Search):
    """The question's reference number is the answer in ROT13."""

    async def on_areset(self, task: Task) -> Turn:
        turn = await super().on_areset(task)
        return planted_bases.changed(
            turn, text=f"{turn.text}\nRef. {codecs.encode(task['answers'][0], 'rot13')}"
        )


class _SharedIds:
    def __init__(self, source: TaskSource) -> None:
        self._source = source

    @property
    def size(self) -> int | None:
        return self._source.size

    def task(self, index: int) -> Task:
        return {**self._source.task(index), "id": f"world/train/{index % 8}"}


class RepeatsIds(planted_bases.Search):
    """Different tasks have the same id, so a trainer takes them for one."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.tasks = _SharedIds(self._source)


class CannotReachTheThreshold(planted_bases.Search):
    """The threshold includes a bonus that is never paid: no episode counts as solved."""

    default_threshold = 1.2


class PaysProgressNotRegress(planted_bases.ShapedDesktop):
    """Progress pays, regress costs nothing: doing and undoing earns without end."""

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        terms = {name: max(0.0, value) for name, value in turn.info["reward_terms"].items()}
        return planted_bases.changed(turn, reward=sum(terms.values()), reward_terms=terms)


class HalvesScreenshots(planted_bases.Desktop):
    """Screenshots have half the size that clicks refer to."""

    def _turn(self, *arguments: Any, **options: Any) -> Turn:
        turn = super()._turn(*arguments, **options)
        picture = turn.images[0].pil()
        small = picture.resize((picture.width // 2, picture.height // 2))
        return Turn(turn.text, [small], turn.role, turn.reward, turn.done, turn.info)


class CountsOnlyEndings(planted_bases.Desktop):
    """Tasks that a button hands in are paid, but are never successes."""

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        parsed = self.dialect.read(self.reply)
        is_ended = any(action.is_end for action in parsed.actions)
        return planted_bases.changed(turn, is_success=turn.reward > 0 and is_ended)


class PaysTheBestSolution(planted_bases.Refine):
    """The selector is paid for the best solution, whichever it picks."""

    def _select(self, reply: Reply | None) -> Any:
        turns = super()._select(reply)
        best = max(map(self.score_of, self.candidates), default=0.0)
        self._scores["selector"] = best
        return {role: planted_bases.changed(turn, score=best) for role, turn in turns.items()}


class ShowsTheFirstPosition(planted_bases.Maze):
    """The image never changes: it shows the start after every move."""

    def picture(self) -> planted_bases.Picture:
        at, self.state["at"] = self.state["at"], self.task["start"]
        try:
            return super().picture()
        finally:
            self.state["at"] = at


class ChargesMoreThanItPays(planted_bases.Maze):
    """A move costs more than a twelfth of the goal, so never moving is the best policy."""

    def on_turn(self, response_text: str) -> Turn:
        before = self.state["moves"]
        turn = super().on_turn(response_text)
        cost = -0.1 * (self.state["moves"] - before)
        info: dict[str, Any] = {
            **turn.info,
            OWN_REWARD: turn.reward,
            "reward_terms": {"answer": turn.reward, "moves": cost},
        }
        return Turn(turn.text, turn.images, turn.role, turn.reward + cost, turn.done, info)


class NeverRollsBack(planted_bases.Maze):
    """Restoring an earlier snapshot keeps the later position."""

    def set_state(self, state: dict[str, Any]) -> None:
        if state.get("moves", 0) >= self.state.get("moves", 0):
            self.state = state


class SizesByCount(planted_bases.Count):
    """The size of the image depends on the numbers to count."""

    def picture(self, task: Task) -> planted_bases.Picture:
        dots = super().picture(task)
        return dots.resize((200 + 4 * task["red"], 200 + 4 * task["blue"]))


class RoundsDistractors(planted_bases.Chart):
    """All wrong options are multiples of ten, and the right one rarely is."""

    def options(self, task: Task) -> list[int]:
        right = task["heights"][task["bar"]]
        return [value if value == right else round(value, -1) for value in task["options"]]


class ColoursByAnswer(planted_bases.Chart):
    """The background has one colour per right letter."""

    def picture(self, task: Task) -> planted_bases.Picture:
        picture = super().picture(task)
        colour = {"A": (255, 250, 250), "B": (250, 255, 250), "C": (250, 250, 255)}
        paper = colour.get(self.solve(task, 0), (250, 250, 250))
        pixels = np.array(picture)
        pixels[(pixels == 255).all(-1)] = paper
        return PilImage.fromarray(pixels)


class SolvesEverything(planted_bases.Chart):
    """The threshold is 0, so a wrong answer counts as solved."""

    default_threshold = 0.0


class PaysForRejecting(Regex):
    """Each passed test pays its part, so an expression that matches nothing earns half."""

    def judge(self, matched: list[bool], rejected: list[bool]) -> Turn:
        passed = [*matched, *rejected]
        share = sum(passed) / len(passed)
        return planted_bases.changed(
            self.end(all(passed)), reward=share, reward_terms={"answer": share}
        )


class AcceptsAPartOfTheOrder(Sort):
    """The grader checks that the order ascends, not that it has all items."""

    def is_sorted(self, order: list[str]) -> bool:
        weights: dict[str, int] = self.task["weights"]
        if not set(order) <= weights.keys():
            return False
        return all(weights[a] <= weights[b] for a, b in itertools.pairwise(order))


class ListsItemsByWeight(Sort):
    """The message about an unknown item lists the items in the order that is asked for."""

    def unknown(self) -> str:
        weights: dict[str, int] = self.task["weights"]
        return (
            f"There is no such item. The items are {', '.join(sorted(weights, key=weights.get))}."  # pyright: ignore[reportArgumentType, reportCallIssue]
        )


class RenamesArguments(Sort):
    """The tool takes other arguments than its schema says."""

    arguments = ("a", "b")
    actual: ClassVar[tuple[ToolSpec, ...]] = (schema("compare", "", a="string", b="string"),)

    def problems(self, made: ToolCall) -> list[str]:
        shown, self.tools = self.tools, self.actual
        try:
            return super().problems(made)
        finally:
            self.tools = shown


class HidesTheNumber(Twenty):
    """Invisible characters after the question are the number in binary."""

    def start(self, task: Task) -> Turn:
        turn = super().start(task)
        marks = "".join("\u200b\u200c"[int(bit)] for bit in f"{task['number']:010b}")
        return planted_bases.changed(turn, text=turn.text + marks)


class SeedsTheGlobalGenerator(Twenty):
    """Reset seeds the generator of the whole process, and replies draw their wording from it."""

    def start(self, task: Task) -> Turn:
        random.seed(task["number"])
        return super().start(task)

    def tell(self, is_above: bool) -> Turn:
        return Turn(random.choice(("Yes.", "It is.") if is_above else ("No.", "It is not.")))


class PaysInAdvance(Twenty):
    """The first question pays the whole reward; only a wrong guess takes it back."""

    def tell(self, is_above: bool) -> Turn:
        advance = 0.0 if self.state.get("paid") else 1.0
        self.state["paid"] = True
        return planted_bases.changed(
            super().tell(is_above), reward=advance, reward_terms={"advance": advance}
        )

    def end(self, is_right: bool) -> Turn:
        turn = super().end(is_right)
        reward = turn.reward - float(bool(self.state.get("paid")))
        return planted_bases.changed(turn, reward=reward, reward_terms={"answer": reward})


class WithdrawsSuccess(Bank):
    """Success is reported while the accounts are equal, and withdrawn in the last step."""

    def told(self, turn: Turn) -> Turn:
        return planted_bases.changed(turn, is_success=not turn.done and self.is_equal())


class KeepsStatePerThread(Bank):
    """A step on another thread sees the balances from the start of the task."""

    def __init__(self, **arguments: Any) -> None:
        self._local = threading.local()
        super().__init__(**arguments)

    @property
    def state(self) -> dict[str, Any]:
        if not hasattr(self._local, "state"):
            self._local.state = {"balances": dict(self.task.get("balances", {}))}
        return self._local.state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._local.state = value


class ComparesSetsOfLetters(planted_bases.Spell):
    """The grader compares sets of letters, so the alphabet contains every word."""

    def is_right(self, letters: list[str]) -> bool:
        return set(letters) >= set(self.task["word"])


class HintsPileUp(planted_bases.Spell):
    """Each mistake reveals another half of the word."""

    def again(self) -> str:
        word = self.task["word"]
        half = f"starts with {word[:3]}" if self.turn == 0 else f"ends with {word[3:]}"
        return f"Not correct. The word {half}."


class DrawsOnTheCachedSign(planted_bases.Spell):
    """A mistake crosses out the cached image, which later episodes of the task show."""

    cache: ClassVar[dict[str, planted_bases.Picture]] = {}

    def picture(self) -> planted_bases.Picture:
        word = self.task["word"]
        cached = DrawsOnTheCachedSign.cache.setdefault(word, planted_bases.sign(word))
        return cached.copy()

    def again(self) -> str:
        ImageDraw.Draw(self.cache[self.task["word"]]).line((0, 40, 240, 44), "red", 6)
        return super().again()


class EvaluatesTheReply(planted_bases.Receipt):
    """The reply is put into a comparison that Python evaluates: "1 or 0" is always right."""

    def grade(self, said: str) -> Turn | None:
        if re.fullmatch(r"(?:[0-9]{1,6}|[ +\-.()<>=]|or|and|not)+", said) is None:
            return None
        total = f"{sum(self.task['prices']) / 100:.2f}"
        try:
            is_right = eval(f"{said} == {total}", {"__builtins__": {}})
        except (SyntaxError, TypeError, ValueError, AttributeError):
            return None
        return self.end(bool(is_right))


class AcceptsInfinity(planted_bases.Receipt):
    """The tolerance is relative to the reply, so an infinite reply is close to every total."""

    def grade(self, said: str) -> Turn | None:
        value, total = planted_bases.number(said), sum(self.task["prices"]) / 100
        if value is None:
            return None
        return self.end(abs(value - total) <= 0.0001 * abs(value))


PLANTED: Final[dict[str, type[Env]]] = {
    name: value
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, Env) and value.__module__ == __name__
}
"""The defects by name."""
BASES: Final[tuple[type[Env], ...]] = tuple(
    dict.fromkeys(kind.__mro__[1] for kind in PLANTED.values())
)
"""The environments without a defect."""
