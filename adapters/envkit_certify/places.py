"""Answers that follow from their place among options, or from something beside the question."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from envkit_certify.forms import Paid
from envkit_certify.payloads import OPTION, options_in
from envkit_certify.policies import leaves

_ERRORS: Final = 4.0
"""Standard errors above chance, because there are many rules."""
_LEAST: Final = 6
"""Minimum tasks to which a rule applies."""
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_SHAPE: Final = re.compile(r"[a-z0-9]+")

Options = Sequence[str]


def _value(option: str) -> float:
    number = _NUMBER.search(option)
    return float(number.group()) if number else 0.0


def _commonness(option: str, options: Options) -> int:
    shapes = [_SHAPE.sub("", other) for other in options]
    return shapes.count(_SHAPE.sub("", option))


RULES: Final[Mapping[str, Callable[[Options], str]]] = MappingProxyType(
    {
        **{
            f"number {at + 1}": lambda options, at=at: options[min(at, len(options) - 1)]
            for at in range(6)
        },
        "the last": lambda options: options[-1],
        "the second-to-last": lambda options: options[-2],
        "the longest": lambda options: max(options, key=len),
        "the shortest": lambda options: min(options, key=len),
        "the first in the alphabet": min,
        "the last in the alphabet": max,
        "the greatest": lambda options: max(options, key=_value),
        "the least": lambda options: min(options, key=_value),
        "the one unlike the others": lambda o: min(o, key=lambda option: _commonness(option, o)),
    }
)
"""Rules that choose an option without reading the question."""
_ASKED: Final = re.compile(
    "long|short|great|large|big|small|least|most|first|last|alphabet|max|min|odd|different|high|low",
    re.IGNORECASE,
)
"""Words of a question that asks for such an option."""


def follows(paid: Sequence[Paid]) -> Iterator[str]:
    """Yield rules that find the answers of more tasks than chance, without the question."""
    hits: dict[str, list[tuple[bool, float]]] = {}
    for entry in paid:
        for kind, options, right in _lists(entry):
            for name, rule in RULES.items():
                hit = rule(options) == right
                hits.setdefault(f"{name} of the {kind}", []).append((hit, 1 / len(options)))
    counts = Counter(entry.gold for entry in paid)
    if len(counts) > 1 and len(counts) * 3 <= len(paid):
        for name, values in _features(paid).items():
            hits[f"what {name} says"] = list(_learned(values, [entry.gold for entry in paid]))
    for name, tried in hits.items():
        expected = sum(chance for _, chance in tried)
        spread = sum(chance * (1 - chance) for _, chance in tried) ** 0.5
        right = sum(hit for hit, _ in tried)
        if len(tried) >= _LEAST and right - expected > _ERRORS * max(spread, 0.5):
            yield (f"{right} of {len(tried)} answers are {name}, where chance gives {expected:.1f}")


def _asked(entry: Paid) -> str:
    steps = entry.episode.steps[: entry.turn]
    return (steps[-1] if steps else entry.episode.start).observation["text"]


def _lists(entry: Paid) -> Iterator[tuple[str, list[str], str]]:
    """Yield the lists of options that hold the answer, with the right one."""
    text, gold = _asked(entry), entry.gold.strip().casefold()
    question = OPTION.sub("", text)
    if _ASKED.search(question):
        return
    lettered = [match.groups() for match in OPTION.finditer(text)]
    options = options_in(text)
    chosen = [said for letter, said in lettered if letter and letter.casefold() == gold]
    chosen = chosen or [o for o in options if o.strip(" .").casefold() == gold]
    lists = {"options": (options, chosen)}
    for key, value in entry.episode.start.info.items():
        listed = leaves(value) if isinstance(value, list) else []
        lists[f"list info[{key!r}]"] = listed, [o for o in listed if o.casefold() == gold]
    for kind, (listed, right) in lists.items():
        if right and 1 < len(set(listed)) == len(listed):
            yield kind, listed, right[0]


def _features(paid: Sequence[Paid]) -> dict[str, list[object]]:
    """Return what can be seen beside the question, by name, for each answer."""
    found: dict[str, list[object]] = {}
    for entry in paid:
        start = entry.episode.start
        text, images = start.observation["text"], start.observation["images"]
        seen: dict[str, object] = {
            "the end of the text": text[-1:],
            "the space around the text": (len(text) - len(text.rstrip()), text[:1].isspace()),
            "the number of spaces in a row": text.count("  "),
            "the number of images": len(images),
            **{f"the size of image {n}": image.size for n, image in enumerate(images[:2])},
        }
        numbers = {"the seed": entry.seed} | {
            f"info[{key!r}]": value for key, value in start.info.items() if key != "turn"
        }
        for name, value in numbers.items():
            if isinstance(value, str | int) and not isinstance(value, bool):
                seen[name] = value
                number = int(value) if re.fullmatch(r"\d{1,18}", str(value)) else None
                if number is not None:
                    seen |= {f"{name} modulo {by}": number % by for by in range(2, 11)}
        for name, value in seen.items():
            found.setdefault(name, []).append(value)
    return {
        name: values
        for name, values in found.items()
        if len(values) == len(paid) and 1 < len(set(map(str, values))) <= len(values) / 2
    }


def _learned(values: Sequence[object], golds: Sequence[str]) -> Iterator[tuple[bool, float]]:
    """Yield whether the other tasks with the same value have the same answer, and the chance."""
    for at, (value, gold) in enumerate(zip(values, golds, strict=True)):
        others = [g for n, g in enumerate(golds) if n != at]
        alike = [g for n, g in enumerate(golds) if n != at and values[n] == value]
        chance = Counter(others).most_common(1)[0][1] / len(others)
        if alike:
            yield Counter(alike).most_common(1)[0][0] == gold, chance
