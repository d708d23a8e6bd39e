"""Schema of a fictional world: kinds of things, and their facts.

Every fact has exactly one true value, so every chain of facts has exactly one end.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact that every thing of a kind has."""

    key: str
    target: str = ""
    """Kind of the thing it refers to; empty for a number."""
    sentence: str
    """Sentence on a page: {0} is the thing, {1} the value."""
    phrase: str = ""
    """Phrase that names the value through the thing {0}; empty for a number."""
    question: str
    """Question about the value; {0} is the thing."""
    low: int = 0
    high: int = 0
    """Range of a number, both ends included."""
    is_year: bool = False
    """Whether it is a year, written without thousands separators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of thing."""

    share: float
    """Share among all things of a world."""
    introduction: str
    """First words of its page, after the name."""
    mention: str
    """Phrase for it in a question."""
    namesakes: tuple[str, ...]
    """Namesakes on misleading pages."""
    facts: tuple[Fact, ...]


KINDS: Final[dict[str, Kind]] = {
    "town": Kind(
        share=0.25,
        introduction="is a town",
        mention="the town of {}",
        namesakes=("Bridge", "Fair", "Gazette", "Rowing Club"),
        facts=(
            Fact(
                key="river",
                target="river",
                sentence="The river through {0} is the {1}.",
                phrase="the river that flows through {0}",
                question="Which river flows through {0}?",
            ),
            Fact(
                key="mayor",
                target="person",
                sentence="The mayor of {0} is {1}.",
                phrase="the mayor of {0}",
                question="Who is the mayor of {0}?",
            ),
            Fact(
                key="twin",
                target="town",
                sentence="The official twin town of {0} is {1}.",
                phrase="the official twin town of {0}",
                question="What is the official twin town of {0}?",
            ),
            Fact(
                key="population",
                sentence="The population of {0} is {1}.",
                question="What is the population of {0}?",
                low=1_000,
                high=900_000,
            ),
            Fact(
                key="charter",
                sentence="The charter of {0} was granted in {1}.",
                question="In which year was the charter of {0} granted?",
                low=1100,
                high=1899,
                is_year=True,
            ),
        ),
    ),
    "person": Kind(
        share=0.35,
        introduction="is a person of note",
        mention="{}",
        namesakes=("Prize", "Street", "Memorial Hall"),
        facts=(
            Fact(
                key="birthplace",
                target="town",
                sentence="The birthplace of {0} is {1}.",
                phrase="the town where {0} was born",
                question="In which town was {0} born?",
            ),
            Fact(
                key="employer",
                target="company",
                sentence="The employer of {0} is {1}.",
                phrase="the company that employs {0}",
                question="Which company employs {0}?",
            ),
            Fact(
                key="teacher",
                target="person",
                sentence="The teacher of {0} was {1}.",
                phrase="the teacher of {0}",
                question="Who was the teacher of {0}?",
            ),
            Fact(
                key="birth_year",
                sentence="The birth of {0} was in {1}.",
                question="In which year was {0} born?",
                low=1820,
                high=1899,
                is_year=True,
            ),
        ),
    ),
    "company": Kind(
        share=0.12,
        introduction="is a company",
        mention="the company {}",
        namesakes=("Tower", "Cup", "Sports Ground"),
        facts=(
            Fact(
                key="seat",
                target="town",
                sentence="The headquarters of {0} are in {1}.",
                phrase="the town where {0} has its headquarters",
                question="In which town does {0} have its headquarters?",
            ),
            Fact(
                key="founder",
                target="person",
                sentence="The founder of {0} was {1}.",
                phrase="the founder of {0}",
                question="Who was the founder of {0}?",
            ),
            Fact(
                key="employees",
                sentence="The number of employees of {0} is {1}.",
                question="How many employees does {0} have?",
                low=20,
                high=60_000,
            ),
        ),
    ),
    "book": Kind(
        share=0.2,
        introduction="is a novel",
        mention="the novel {}",
        namesakes=("Society", "Opera", "Reading Room"),
        facts=(
            Fact(
                key="author",
                target="person",
                sentence="The author of {0} is {1}.",
                phrase="the author of {0}",
                question="Who is the author of {0}?",
            ),
            Fact(
                key="publisher",
                target="company",
                sentence="The publisher of {0} is {1}.",
                phrase="the publisher of {0}",
                question="Which company is the publisher of {0}?",
            ),
            Fact(
                key="setting",
                target="town",
                sentence="The setting of {0} is {1}.",
                phrase="the town in which {0} is set",
                question="In which town is {0} set?",
            ),
            Fact(
                key="pages",
                sentence="The first edition of {0} has {1} pages.",
                question="How many pages does the first edition of {0} have?",
                low=80,
                high=1_200,
            ),
        ),
    ),
    "river": Kind(
        share=0.08,
        introduction="is a river",
        mention="the river {}",
        namesakes=("Lock", "Regatta", "Valley Railway"),
        facts=(
            Fact(
                key="mouth",
                target="town",
                sentence="The mouth of the {0} is at {1}.",
                phrase="the town at the mouth of {0}",
                question="Which town lies at the mouth of {0}?",
            ),
            Fact(
                key="length",
                sentence="The length of the {0} is {1} kilometres.",
                question="How many kilometres long is {0}?",
                low=12,
                high=2_400,
            ),
        ),
    ),
}
