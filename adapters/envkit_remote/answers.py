"""Read foreign JSON: the required fields of a server's answers."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from envkit import fast_json
from envkit.errors import EngineFault, FaultKind, LedgerFault
from envkit_remote.transport import Answer

_MOST: Final = 1 << 62
"""Exclusive upper bound of counts; the text of a longer one could fill a message."""


def read_json(where: str, body: bytes) -> Any:  # noqa: ANN401  # any JSON
    """Return the JSON of a 200 answer.

    Args:
        where: Server or path, for the message.
        body: Body of the answer.

    Raises:
        EngineFault: It is empty or not JSON, such as the page of a proxy. That may pass: TRANSIENT.
    """
    try:
        return fast_json.loads_large(body)
    except (ValueError, RecursionError) as error:
        raise EngineFault(
            f"{where} must answer 200 with JSON, got {body[:80]!r}; does a proxy in between send "
            "its own page?",
            kind=FaultKind.TRANSIENT,
        ) from error


def page_object(path: str, body: bytes) -> dict[str, Any]:
    """Return the JSON body of an information page.

    Args:
        path: Path of the page, for messages.
        body: Body of the answer.

    Raises:
        EngineFault: The body is not a JSON object; TRANSIENT if it is not JSON.
    """
    answer = read_json(path, body)
    if not isinstance(answer, dict):
        raise EngineFault(f"{path} must answer a JSON object, got {body[:80]!r}")
    return cast("dict[str, Any]", answer)


class AnswerReader:
    """Reads the answers of one kind of server, and names missing fields in its terms."""

    def __init__(self, title: str, releases: str) -> None:
        """Describe the server.

        Args:
            title: Name of the server, such as "SGLang".
            releases: Releases with this answer format, such as "0.5.15 or later".
        """
        self._title, self._releases = title, releases

    def malformed(self, what: str, got: object) -> EngineFault:
        """Return the fault for an answer that lacks a field."""
        return EngineFault(
            f"an answer of {self._title} must have {what}, got {reprlib.repr(got)[:200]}; is this "
            f"{self._title} release {self._releases}?"
        )

    def json_object(self, sent: Answer) -> dict[str, Any]:
        """Return an answer as a JSON object.

        Raises:
            EngineFault: It is something else; TRANSIENT if it is not JSON.
        """
        answer = read_json(self._title, sent.body) if sent.joined is None else sent.joined
        if not isinstance(answer, dict):
            raise self.malformed("a JSON object", answer)
        return cast("dict[str, Any]", answer)

    def count(self, fields: Mapping[str, Any], key: str) -> int | None:
        """Return a non-negative number; None if it is missing or null.

        Raises:
            EngineFault: It is something else.
        """
        value = fields.get(key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < _MOST:
            raise self.malformed(f"a count as {key}", value)
        return value

    def tokens(
        self,
        entries: Any,  # noqa: ANN401  # whatever JSON holds
        logprob: int | str,
        token: int | str,
        wanted: str,
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the ids and the log-probabilities of a list with an entry per token.

        Args:
            entries: Entries of the answer.
            logprob: Key or position of the log-probability in an entry.
            token: Key or position of the id.
            wanted: The expected list, for the message.

        Raises:
            EngineFault: It is not such a list.
            LedgerFault: A log-probability is not finite.
        """
        try:
            logprobs = [entry[logprob] for entry in entries]
            ids = [entry[token] for entry in entries]
            if not (set(map(type, logprobs)) <= {int, float} and set(map(type, ids)) <= {int}):
                raise TypeError
            values = tuple(map(float, logprobs))
        except (TypeError, ArithmeticError, LookupError) as error:
            raise self.malformed(wanted, entries) from error
        if not all(map(math.isfinite, values)):
            raise LedgerFault(f"log-probabilities must be finite, got {reprlib.repr(logprobs)}")
        return tuple(ids), values

    def ranked(
        self,
        rows: object,
        logprob: int | str,
        token: int | str,
        wanted: str,
    ) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Return the ids and log-probabilities of the most probable tokens of each position.

        Args:
            rows: A list per token; entries as for `tokens`.
            logprob: As for `tokens`.
            token: As for `tokens`.
            wanted: As for `tokens`.

        Raises:
            EngineFault: As for `tokens`.
            LedgerFault: As for `tokens`.
        """
        if not isinstance(rows, list):
            raise self.malformed(wanted, rows)
        found = (self.tokens(row, logprob, token, wanted) for row in cast("list[Any]", rows))
        return tuple(
            tuple(sorted(zip(*pair, strict=True), key=lambda one: -one[1])) for pair in found
        )


def check_tokens(
    token_ids: Sequence[int], output_ids: object, completion_tokens: int | None
) -> None:
    """Compare the ids of the log-probabilities with the answer's other copies.

    Args:
        token_ids: Ids from the log-probabilities.
        output_ids: The list of sampled ids.
        completion_tokens: The server's count; None if it does not say.

    Raises:
        LedgerFault: They differ.
    """
    ids: Any = output_ids
    if not isinstance(ids, list) or tuple(cast("list[Any]", ids)) != tuple(token_ids):
        raise LedgerFault(
            "the sampled ids must equal those of the log-probabilities, got "
            f"{reprlib.repr(cast(object, ids))} and {reprlib.repr(token_ids)}"
        )
    if completion_tokens is not None and completion_tokens != len(token_ids):
        raise LedgerFault(
            f"completion_tokens must count the tokens, got {completion_tokens} for {len(token_ids)}"
        )
