"""The lexicon: which words and phrases mean which concept.

`lexicon.txt` lists the phrases. At each place of a sentence the longest phrase wins, and its words
are then used up: "email address" is an e-mail address and no address. The concept `NEUTRAL` has
phrases that must not count as anything. The shop's own products and options are added.
"""

from collections.abc import Sequence
from enum import StrEnum
from importlib.resources import files
from typing import Final, NamedTuple

from envkit_dialogue import goods


class Concept(StrEnum):
    """What a phrase is about."""

    ASK = "ask"
    WHAT = "what"
    WHERE = "where"
    WHY = "why"
    EMAIL = "email"
    NAME = "name"
    ZIP = "zip"
    PHONE = "phone"
    ORDER = "order"
    ORDER_NUMBER = "order number"
    WHICH_ORDER = "which order"
    ITEM = "item"
    PRODUCT = "product"
    BOUGHT = "bought"
    OPTION = "option"
    VALUE = "value"
    INSTEAD = "instead"
    FAULT = "fault"
    TROUBLE = "trouble"
    REFUND = "refund"
    METHOD = "method"
    LAND = "land"
    ADDRESS = "address"
    SHIP = "ship"
    PICTURE = "picture"
    CONSENT = "consent"
    WANT_ME = "want me"
    GOAL = "goal"
    ELSE = "else"
    WAIT = "wait"
    DONE = "done"
    REFUSE = "refuse"
    OFFER = "offer"
    BYE = "bye"
    CANCEL = "cancel"
    RETURN = "return"
    EXCHANGE = "exchange"
    CHAT = "chat"
    OR = "or"
    RANGE = "range"
    NOT = "not"
    POSSIBLE = "possible"
    HAVE = "have"
    PAST = "past"
    NEUTRAL = "neutral"


_STOP: Final = "*"
Phrase = tuple[tuple[str, ...], Concept]


class Hit(NamedTuple):
    """A concept and the words that name it."""

    concept: Concept
    start: int
    end: int
    """Index of the word after the last one."""


def hits(words: Sequence[str]) -> list[Hit]:
    """Return the concepts in a sentence's words, in order; their phrases do not overlap."""
    found: list[Hit] = []
    at = 0
    while at < len(words):
        best = _longest(words, at)
        if best is None:
            at += 1
            continue
        phrase, concept = best
        found.append(Hit(concept, at, at + len(phrase)))
        at += len(phrase)
    return found


def _longest(words: Sequence[str], at: int) -> Phrase | None:
    for phrase, concept in _BY_WORD.get(words[at], ()):
        if _matches(phrase, words[at : at + len(phrase)]):
            return phrase, concept
    stems = (entry for entry in _STEMS if words[at].startswith(entry[0][0][:-1]))
    return max(stems, key=lambda entry: len(entry[0][0]), default=None)


def _matches(phrase: Sequence[str], words: Sequence[str]) -> bool:
    if len(words) < len(phrase) or tuple(words[:-1]) != tuple(phrase[:-1]):
        return False
    last = phrase[-1]
    return words[-1].startswith(last[:-1]) if last.endswith(_STOP) else words[-1] == last


def _phrases() -> list[Phrase]:
    """Return all phrases, the longest first."""
    found: dict[tuple[str, ...], Concept] = {}
    text = (files("envkit_dialogue") / "lexicon.txt").read_text(encoding="utf-8")
    for section in text.split("\n[")[1:]:
        name, _, body = section.partition("]")
        for phrase in body.split("|"):
            found.setdefault(tuple(phrase.split()), Concept(name))
    for option in (*goods.COLOURS, *goods.SIZES, *goods.WOODS):
        found.setdefault(tuple(option.split()), Concept.VALUE)
    for product in goods.PRODUCTS:
        found.setdefault(tuple(product.split()), Concept.PRODUCT)
        found.setdefault(tuple(f"{product}s".split()), Concept.PRODUCT)
    return sorted(found.items(), key=lambda entry: -len(entry[0]))


def _is_stem(phrase: Sequence[str]) -> bool:
    return len(phrase) == 1 and phrase[0].endswith(_STOP)


def _by_word() -> dict[str, list[Phrase]]:
    index: dict[str, list[Phrase]] = {}
    for phrase, concept in _phrases():
        if not _is_stem(phrase):
            index.setdefault(phrase[0], []).append((phrase, concept))
    return index


_BY_WORD: Final = _by_word()
"""Phrases by their first word, the longest first."""
_STEMS: Final = tuple(entry for entry in _phrases() if _is_stem(entry[0]))
"""Single words with an open ending."""
