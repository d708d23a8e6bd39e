"""Read an answer that a server streams, and report its tokens on the way."""

import json
from typing import Any, cast

from envkit.errors import EngineFault
from envkit.rollout.token_stream import Report
from envkit_remote.answers import read_json
from envkit_remote.dialect import Dialect
from envkit_remote.transport import Answer


class StreamedAnswer:
    """Joins the events of one answer into the answer of a request that does not stream."""

    def __init__(self, dialect: Dialect, rid: str, report: Report) -> None:
        """Begin without events.

        Args:
            dialect: Joins the events.
            rid: Id of the request. Tokens of an answer to another one are not reported.
            report: Gets the tokens.
        """
        self._dialect, self._rid, self._report = dialect, rid, report
        self._whole: dict[str, Any] | None = None
        self._error: Answer | None = None

    def take(self, data: bytes) -> None:
        """Add the data of an event.

        Raises:
            EngineFault: It is not one of the server's; TRANSIENT if it is not JSON.
        """
        event = read_json(f"a stream of {self._dialect.title}", data)
        if not isinstance(event, dict):
            raise self._malformed(data)
        fields = cast("dict[str, Any]", event)
        if "error" in fields:
            error: Any = fields["error"]
            code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else 0
            status = code if type(code) is int and 400 <= code < 600 else 500
            self._error = Answer(status=status, body=data)
            return
        try:
            self._whole, ids = self._dialect.join(self._whole, fields)
            named = self._dialect.answered(self._whole)
        except (TypeError, LookupError, AttributeError) as error:
            raise self._malformed(data) from error
        if ids and named in (None, self._rid):
            self._report(ids)

    def answer(self) -> Answer:
        """Return the whole answer, or the error that ended it; an empty one without events."""
        if self._error is not None:
            return self._error
        body = b"" if self._whole is None else json.dumps(self._whole).encode()
        return Answer(status=200, body=body)

    def _malformed(self, data: bytes) -> EngineFault:
        return EngineFault(
            f"a stream of {self._dialect.title} must have JSON objects with tokens, got "
            f"{data[:200]!r}"
        )
