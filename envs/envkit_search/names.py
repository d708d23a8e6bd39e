"""Invented names: random syllables, unique within a world."""

import random
from collections.abc import Callable
from typing import Final

from envkit_search.words import title_key

_PARTS: Final = {
    "onset": "b br d dr f fl g gl h j k kr l m n p pr q r s sk st t tr v vr w y z th sh",
    "vowel": "a e i o u ae ei ou ia",
    "coda": "- - - l m n r s x rn ld nd sk th",
    "town": "- - by dorf ford gate haven holm mar mouth ton vik wick",
    "company": "Works Lines Mills Brothers Foundry Press Optics Trading Motors",
    "adjective": "Silent Broken Amber Second Hollow Patient Northern Last Paper",
    "noun": "Lantern Orchard Ledger Harbour Winter Compass Garden Letter Bell",
}
"""Parts of names; a dash is an empty part."""
_CHOICES: Final = {
    part: [word.strip("-") for word in words.split()] for part, words in _PARTS.items()
}


class NameMaker:
    """Makes unique names for each kind of thing."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws
        self._taken: set[str] = set()
        self._makers: dict[str, Callable[[], str]] = {
            "town": lambda: self._word(2) + self._pick("town"),
            "river": self._long_word,
            "person": lambda: f"{self._word(2)} {self._long_word()}",
            "company": lambda: f"{self._word(2)} {self._pick('company')}",
            "book": lambda: f"{self._pick('adjective')} {self._pick('noun')} of {self._word(2)}",
        }

    def make(self, kind: str) -> str:
        """Return a new name for a town, river, person, company or book."""
        while not self.claim(name := self._makers[kind]()):
            pass
        return name

    def claim(self, title: str) -> bool:
        """Reserve a title; return False if a page already has these words."""
        key = title_key(title)
        if not key or key in self._taken:
            return False
        self._taken.add(key)
        return True

    def _pick(self, part: str) -> str:
        return self._draws.choice(_CHOICES[part])

    def _word(self, syllables: int) -> str:
        body = "".join(self._pick("onset") + self._pick("vowel") for _ in range(syllables))
        return (body + self._pick("coda")).capitalize()

    def _long_word(self) -> str:
        return self._word(self._draws.choice((2, 3)))
