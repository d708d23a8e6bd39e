"""The planted defects are real, and the environments they are planted in do not have them."""

import codecs
import copy
import json
import random
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fakes.planted import BASES, PLANTED, WORDS
from fakes.planted_bases import Desktop, Small
from fakes.planted_tools import call

import envkit
from envkit.env import Env, Observation, PolicyContext, Step
from envkit.success import reaches
from envkit_geo3k.drawing import draw
from envkit_geo3k.figure import Figure

pytestmark = pytest.mark.slow

Reply = Callable[[Any, Sequence[Observation]], str]
Kind = type[Any]


def play(env: Env, reply: Reply, seed: int = 0) -> tuple[list[Observation], list[Step]]:
    seen, steps = [env.reset(seed=seed).observation], list[Step]()
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        steps.append(env.step(reply(env, seen)))
        seen.append(steps[-1].observation)
    return seen, steps


def earned(kind: Kind, reply: Reply, episodes: int = 25) -> float:
    env = kind()
    returns = [sum(step.reward for step in play(env, reply, seed)[1]) for seed in range(episodes)]
    return sum(returns) / episodes


def solve(env: Any, seen: Sequence[Observation]) -> str:
    context = PolicyContext(env=env, task=env.task, turn=env.turn, messages=[], seed=0)
    return env.oracle()(context)


def always(reply: str) -> Reply:
    return lambda env, seen: reply


def pays(reply: Reply, above: float = 0.1) -> Callable[[Kind], bool]:
    return lambda kind: earned(kind, reply) > above


def ends(kind: Kind, reply: Reply, episodes: int = 10) -> list[Step]:
    return [play(kind(), reply, seed)[1][-1] for seed in range(episodes)]


def started(kind: Kind, **arguments: Any) -> tuple[Any, Observation]:
    env = kind(**arguments)
    return env, env.reset(seed=0).observation


def has_no_success(step: Step) -> bool:
    return step.reward == 1 and step.info.get("is_success") is False


def keeps_its_image(kind: Kind) -> bool:
    env, first = started(kind)
    return env.step(solve(env, [])).observation["images"] == first["images"]


def mixes_instances(kind: Kind) -> bool:
    (one, _), two = started(kind), kind()
    codes = one.task["codes"]
    two.reset(seed=1)
    return sum(one.step(code).reward for code in codes) < 0.99


def changes_the_row(kind: Kind) -> bool:
    env = kind()
    row = env.tasks.task(3)
    before = copy.deepcopy(row)
    env.reset(options={"task": row})
    return row != before


def reaches_the_threshold_with_a_mistake(kind: Kind) -> bool:
    steps = play(kind(), lambda env, seen: "?" if env.turn == 0 else solve(env, seen))[1]
    return reaches(sum(step.reward for step in steps), kind.default_threshold)


def says_the_answer_in_words(env: Any, seen: Sequence[Observation]) -> str:
    words = seen[0]["text"].rpartition("x marks ")[2].rstrip("]")
    digits = {word: digit for digit, word in WORDS.items()}
    plain = "".join(digits.get(word, word) for word in words.split())
    return f"\\boxed{{{plain.replace('over', '/')}}}"


def draws_other_figures(kind: Kind) -> bool:
    env, pairs = kind(), list[bool]()
    for seed in range(10):
        shown = env.reset(seed=seed).observation["images"]
        pairs.append(shown == (draw(Figure.from_json(env.task["figure"])),))
    return not all(pairs)


def shares_tasks_of_splits(kind: Kind) -> bool:
    train, test = ({str(kind(split=s).tasks.task(n)) for n in range(9)} for s in ("train", "test"))
    return bool(train & test)


def searches_then_guesses(env: Any, seen: Sequence[Observation]) -> str:
    reply = solve(env, seen)
    return re.sub(r"<answer>.*?</answer>", "<answer>unknown</answer>", reply)


def leaks_in_rot13(kind: Kind) -> bool:
    env, start = started(kind)
    return env.task["answers"][0] in codecs.encode(start["text"], "rot13")


def shares_ids(kind: Kind) -> bool:
    rows = [kind().tasks.task(n) for n in range(30)]
    return len({row["id"] for row in rows}) < len({row["question"] for row in rows})


def pays_for_undoing(kind: Kind) -> bool:
    env, _ = started(kind, level=1, families=["toggle_checks"], shaping=0.2)
    click = solve(env, [])
    return sum(env.step(click).reward for _ in range(12)) > 0.2


def pays_for_the_wrong_pick(kind: Kind) -> bool:
    env = kind()

    def write(env: Any, seen: Sequence[Observation]) -> str:
        parts = json.loads(solve(env, seen))
        wrong = {"rewriter-2": "\\boxed{0.123}", "selector": "Judgment: 2"}
        return json.dumps({role: wrong.get(role, part) for role, part in parts.items()})

    play(env, write)
    return env.score_of("selector") > 0


def does_not_roll_back(kind: Kind) -> bool:
    env, _ = started(kind)
    first, start = solve(env, []), env.snapshot()
    env.step(first)
    env.restore(start)
    env.step(first)
    return env.step(solve(env, [])).reward < 1


def reads_the_size(env: Any, seen: Sequence[Observation]) -> str:
    red, blue = ((side - 200) // 4 for side in seen[0]["images"][0].size)
    return f"{red}, {blue}"


def picks_the_odd_one(env: Any, seen: Sequence[Observation]) -> str:
    options = re.findall(r"([A-D])\) (\d+)", seen[0]["text"])
    return next((letter for letter, value in options if int(value) % 10), "A")


def reads_the_corner(env: Any, seen: Sequence[Observation]) -> str:
    corner = seen[0]["images"][0].array()[2, 2]
    return "ABCD"[int(corner.argmax()) if corner.max() > 250 else 3]


def asks_then_sorts(env: Any, seen: Sequence[Observation]) -> str:
    if len(seen) == 1:
        return call("compare", first="?", second="?")
    return f"order: {seen[1]['text'].rpartition('are ')[2].rstrip('.')}"


def refuses_its_schema(kind: Kind) -> bool:
    env, _ = started(kind)
    one, two, *_ = env.task["weights"]
    made = call(
        "compare", **dict(zip(env.tools[0].parameters["required"], (one, two), strict=True))
    )
    return env.step(made).info["parse_error"] is not None


def reads_invisible_bits(env: Any, seen: Sequence[Observation]) -> str:
    bits = "".join("01"[c == "\u200c"] for c in seen[0]["text"] if c in "\u200b\u200c")
    return f"guess {int(bits or '0', 2)}"


def moves_the_global_generator(kind: Kind) -> bool:
    before = random.getstate()
    try:
        started(kind)
        return random.getstate() != before
    finally:
        random.setstate(before)


def forgets_on_a_thread(kind: Kind) -> bool:
    env, _ = started(kind)
    steps = [env.step(solve(env, [])) for _ in range(3)]
    thread = threading.Thread(target=lambda: steps.append(env.step(call("finish"))))
    thread.start()
    thread.join()
    return steps[-1].reward < 1


def collects_hints(env: Any, seen: Sequence[Observation]) -> str:
    hints = re.findall(r"(?:starts|ends) with (\w+)", " ".join(entry["text"] for entry in seen))
    return "-".join("".join(hints) or "x")


def marks_the_next_episode(kind: Kind) -> bool:
    env, first = started(kind)
    env.step("x")
    return env.reset(seed=0).observation["images"] != first["images"]


PROOFS: dict[str, Callable[[Kind], bool]] = {
    "PaysPartsOfTheCode": pays(always("7")),
    "RepeatsThePicture": keeps_its_image,
    "SharesTheTask": mixes_instances,
    "ChangesTheCallersTask": changes_the_row,
    "PaysTheLastCodeTwice": reaches_the_threshold_with_a_mistake,
    "SolvesForX": pays(always("\\boxed{x}")),
    "DescribesTheFigureInWords": pays(says_the_answer_in_words, 0.5),
    "ShiftsLabels": draws_other_figures,
    "TestsOnTrain": shares_tasks_of_splits,
    "TerminatesAtTheLimit": lambda kind: ends(kind, always("?"))[0].terminated,
    "SucceedsWithAnyAnswer": lambda kind: any(
        step.reward == 0 and step.info.get("is_success")
        for step in ends(kind, always("\\boxed{0.123}"))
    ),
    "GradesTheConversation": pays(searches_then_guesses),
    "RefersToTheAnswer": leaks_in_rot13,
    "RepeatsIds": shares_ids,
    "CannotReachTheThreshold": lambda kind: earned(kind, solve, 10) < kind.default_threshold,
    "PaysProgressNotRegress": pays_for_undoing,
    "HalvesScreenshots": lambda kind: started(kind)[1]["images"][0].size != (672, 448),
    "CountsOnlyEndings": lambda kind: any(map(has_no_success, ends(kind, solve))),
    "PaysTheBestSolution": pays_for_the_wrong_pick,
    "ShowsTheFirstPosition": keeps_its_image,
    "ChargesMoreThanItPays": lambda kind: earned(kind, solve, 10) < earned(kind, always(""), 10),
    "NeverRollsBack": does_not_roll_back,
    "SizesByCount": pays(reads_the_size, 0.9),
    "RoundsDistractors": pays(picks_the_odd_one, 0.6),
    "ColoursByAnswer": pays(reads_the_corner, 0.9),
    "SolvesEverything": lambda kind: reaches(0.0, kind.default_threshold),
    "PaysForRejecting": pays(always("zzz")),
    "AcceptsAPartOfTheOrder": pays(lambda env, seen: f"order: {seen[0]['text'][15]}"),
    "ListsItemsByWeight": pays(asks_then_sorts, 0.9),
    "RenamesArguments": refuses_its_schema,
    "HidesTheNumber": pays(reads_invisible_bits, 0.9),
    "SeedsTheGlobalGenerator": moves_the_global_generator,
    "PaysInAdvance": pays(always("above 500?")),
    "WithdrawsSuccess": lambda kind: any(map(has_no_success, ends(kind, solve))),
    "KeepsStatePerThread": forgets_on_a_thread,
    "ComparesSetsOfLetters": pays(always("-".join("abcdefghijklmnopqrstuvwxyz"))),
    "HintsPileUp": pays(collects_hints, 0.9),
    "DrawsOnTheCachedSign": marks_the_next_episode,
    "EvaluatesTheReply": pays(always("1 or 0")),
    "AcceptsInfinity": pays(always("inf")),
}
"""Whether an environment has the defect, shown by playing it."""


def test_planted_has_forty_defects_with_a_description_and_a_proof() -> None:
    assert len(PLANTED) == 40
    assert PLANTED.keys() == PROOFS.keys()
    assert all(kind.__doc__ for kind in PLANTED.values())


@pytest.mark.parametrize("name", PLANTED)
def test_planted_defect_is_real_and_its_base_does_not_have_it(name: str) -> None:
    assert PROOFS[name](PLANTED[name])
    assert not PROOFS[name](PLANTED[name].__mro__[1])


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_planted_base_is_solved_by_its_oracle(base: Kind) -> None:
    env = base()
    for seed in range(8 if issubclass(base, Desktop) else 25):
        steps = play(env, solve, seed)[1]
        assert reaches(sum(step.reward for step in steps), env.reward_threshold)


@pytest.mark.parametrize(
    "base", [base for base in BASES if issubclass(base, Small)], ids=lambda base: base.__name__
)
def test_planted_base_keeps_the_contract(base: Kind) -> None:
    assert "oracle" in envkit.check_env(base()).passed
