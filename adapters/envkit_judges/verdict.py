"""Criteria of a judge, and strict parsing of its reply.

The reply is one JSON object, `{"reason": "...", "scores": {"name": 7}}`, with a whole number for
every criterion. The reason comes first, so that the model thinks before it scores. Thinking before
`</think>` and one Markdown fence around the object are allowed; anything else is malformed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from envkit import ranges
from envkit.errors import ConfigurationError
from envkit.reply import Reply

_FENCE: Final = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One thing to score."""

    name: str
    """Name of the reward term, and key in the judge's reply."""
    text: str
    """Text for the judge: when the score is high, and when it is low."""
    best: int = 10
    """The highest score; the lowest is 0. The term's score is the fraction of it, 0 to 1."""
    weight: float = 1.0
    """Weight of the reward term."""

    def __post_init__(self) -> None:
        """Check the name, the text and the scale.

        Raises:
            ConfigurationError: One of them is empty.
        """
        if not self.name or not self.text.strip():
            raise ConfigurationError("a criterion needs a name and a text that a judge can read")
        ranges.at_least(1, best=self.best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judge's scores."""

    scores: Mapping[str, int]
    """By criterion, 0 to its `best`."""
    reason: str


class MalformedJudgement(ValueError):  # as MalformedJson
    """A judge's reply is malformed; the message says why."""


def schema_of(criteria: Sequence[Criterion]) -> dict[str, Any]:
    """Return the JSON Schema of a reply; every object is closed, as strict modes demand."""
    scores = {
        criterion.name: {"type": "integer", "minimum": 0, "maximum": criterion.best}
        for criterion in criteria
    }
    return {
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "scores": {
                "type": "object",
                "properties": scores,
                "required": list(scores),
                "additionalProperties": False,
            },
        },
        "required": ["reason", "scores"],
        "additionalProperties": False,
    }


def read_verdict(text: str, criteria: Sequence[Criterion]) -> Judgement:
    """Read a judge's reply.

    Raises:
        MalformedJudgement: The reply is not in the required form.
    """
    value = _decode(text)
    if not isinstance(value, dict):
        raise MalformedJudgement("the reply must be a JSON object")
    fields = cast(dict[str, object], value)
    _check_keys(fields, ("reason", "scores"), "the object")
    if not isinstance(fields["reason"], str):
        raise MalformedJudgement("'reason' must be a string")
    if not isinstance(fields["scores"], dict):
        raise MalformedJudgement("'scores' must be an object")
    scores = cast(dict[str, object], fields["scores"])
    _check_keys(scores, [criterion.name for criterion in criteria], "'scores'")
    return Judgement(
        scores={
            criterion.name: _score(criterion, scores[criterion.name]) for criterion in criteria
        },
        reason=fields["reason"],
    )


def _decode(text: str) -> object:
    body = Reply(text=text).final.strip()
    fenced = _FENCE.fullmatch(body)
    try:
        return json.loads(
            body if fenced is None else fenced.group(1),
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse_constant,
        )
    except MalformedJudgement:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedJudgement(
            f"the reply must be one JSON object and nothing else: {error}"
        ) from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedJudgement("a key is repeated")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedJudgement(f"{name} is not valid JSON")


def _check_keys(fields: Mapping[str, object], wanted: Sequence[str], where: str) -> None:
    if missing := [name for name in wanted if name not in fields]:
        raise MalformedJudgement(f"{where} lacks the keys {missing}")
    if extra := sorted(fields.keys() - set(wanted)):
        raise MalformedJudgement(f"{where} has unexpected keys: {extra[:5]}")


def _score(criterion: Criterion, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedJudgement(f"the score {criterion.name!r} must be a whole number")
    if not 0 <= value <= criterion.best:
        raise MalformedJudgement(f"the score {criterion.name!r} must be 0 to {criterion.best}")
    return value
