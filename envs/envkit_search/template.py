"""A kind of question over the fact table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from envkit_search.spellings import Spellings

MAX_HOPS: Final = 3


class Question(NamedTuple):
    """A question with its unique answer."""

    text: str
    accepted: Spellings
    titles: tuple[str, ...]  # pages to read in order; the last one says the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One kind of question."""

    kind: str
    hops: int
    group: str
    """Table group that the question starts from."""
    rows: list[int]
    """Rows of the group that have the fact."""
    ask: Callable[[int], Question]
    """Returns the question for a row."""
