"""Grade the answer, and check that the episode followed the protocol's format.

An episode is graded from its turns, one `TurnFacts` each: model text and search results are never
joined. Retrieved text therefore cannot pass as the model's answer, nor a forged block as retrieved
text.

Answers are compared by `normal_form`. The functions with `compat` in their name follow Search-R1
(verl/utils/reward_score/qa_em.py), which follows SQuAD: lower case, no ASCII punctuation, no
articles, single spaces. So they take "35 km" for "3.5 km", "O-" for "O+" and "C#" for "C++".
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from envkit_search.normal_form import equals, normal_words, normalize
from envkit_search.protocol import MAX_ANSWER_CHARACTERS, Action, ActionKind

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """Facts of one turn for grading."""

    kind: ActionKind
    is_well_formed: bool = False
    is_forged: bool = False
    answer: str | None = None
    """Answer of the turn; None without one."""
    has_gold: bool = False
    """Whether this turn's search results contain an accepted answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeGrade:
    """A graded episode."""

    is_answered: bool
    is_exact: bool
    f1: float
    """Best overlap of words with an accepted answer, 0 to 1."""
    is_well_formed: bool
    """Whether every turn followed the protocol's format and the last one answered."""
    has_gold: bool
    """Whether any search showed an accepted answer."""
    searches: int
    """Turns that searched."""


def facts_of(action: Action, answer: str | None, *, has_gold: bool = False) -> TurnFacts:
    """Return the facts of a turn.

    Args:
        action: The parsed reply.
        answer: The action's own, or `last_answer_compat` of the reply, as in Search-R1.
        has_gold: Whether the shown documents contain an accepted answer.
    """
    return TurnFacts(
        kind=action.kind,
        is_well_formed=action.is_well_formed,
        is_forged=action.is_forged,
        # An overlong answer is cut to just over the limit: it is part of every snapshot.
        answer=None if answer is None else answer[: MAX_ANSWER_CHARACTERS + 1],
        has_gold=has_gold,
    )


def facts_from_json(fields: Mapping[str, Any]) -> TurnFacts:
    """Return facts from their `dataclasses.asdict` form."""
    return replace(TurnFacts(**fields), kind=ActionKind(fields["kind"]))


def grade(turns: Sequence[TurnFacts], answers: Sequence[str]) -> EpisodeGrade:
    """Grade an episode by its final answer.

    Args:
        turns: Every turn so far, in order.
        answers: Accepted spellings.
    """
    answer = turns[-1].answer if turns and turns[-1].kind is ActionKind.ANSWER else None
    return _verdict(turns, answer, is_exact=exact_match(answer, answers), answers=answers)


def grade_compat(turns: Sequence[TurnFacts], answers: Sequence[str]) -> EpisodeGrade:
    """Grade an episode by the last answer anywhere, as Search-R1's `extract_solution`."""
    written = [turn.answer for turn in turns if turn.answer is not None]
    answer = written[-1] if written else None
    is_exact = (
        answer is not None
        and len(answer) <= MAX_ANSWER_CHARACTERS
        and normalize_compat(answer) in map(normalize_compat, answers)
    )
    return _verdict(turns, answer, is_exact=is_exact, answers=answers)


def exact_match(answer: str | None, answers: Sequence[str]) -> bool:
    """Return whether an answer equals an accepted one.

    None, or an answer longer than `MAX_ANSWER_CHARACTERS`, is wrong.
    """
    if answer is None or len(answer) > MAX_ANSWER_CHARACTERS:
        return False
    return any(equals(answer, accepted) for accepted in answers)


def f1_score(answer: str | None, answers: Sequence[str]) -> float:
    """Return the best F1 of words between an answer and the accepted ones, 0 to 1."""
    if answer is None or len(answer) > MAX_ANSWER_CHARACTERS:
        return 0.0
    given = Counter(normalize(answer).split())
    return max((_overlap(given, accepted) for accepted in answers), default=0.0)


def normalize_compat(text: str) -> str:
    """Normalise a text as Search-R1 does; in addition, to Unicode form NFC."""
    lowered = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lowered).split())


def holds(text: str, answers: Sequence[str]) -> bool:
    """Return whether the text contains an accepted answer as whole words."""
    padded = f" {normal_words(text)} "
    return any(f" {gold} " in padded for gold in map(normal_words, answers) if gold)


def holds_compat(text: str, answers: Sequence[str]) -> bool:
    """Return whether the text contains an accepted answer anywhere, as Search-R1 checks."""
    normal = normalize_compat(text)
    return any(normalize_compat(accepted) in normal for accepted in answers)


def _verdict(
    turns: Sequence[TurnFacts], answer: str | None, *, is_exact: bool, answers: Sequence[str]
) -> EpisodeGrade:
    ends_in_answer = bool(turns) and turns[-1].kind is ActionKind.ANSWER
    is_well_formed = ends_in_answer and all(turn.is_well_formed for turn in turns)
    return EpisodeGrade(
        is_answered=answer is not None,
        is_exact=is_exact,
        f1=f1_score(answer, answers),
        is_well_formed=is_well_formed,
        has_gold=any(turn.has_gold for turn in turns),
        searches=sum(turn.kind is ActionKind.SEARCH for turn in turns),
    )


def _overlap(given: Counter[str], accepted: str) -> float:
    gold = Counter(normalize(accepted).split())
    shared = (given & gold).total()
    if not shared:
        return 0.0
    precision, recall = shared / given.total(), shared / gold.total()
    return 2 * precision * recall / (precision + recall)
