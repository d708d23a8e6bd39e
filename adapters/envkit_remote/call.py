"""One request: its deadline, abort and cancellation. It never retries.

The rollout retries. Every request has its own id, so a second attempt never collides with a first
that the server still processes. An abandoned request (deadline, cancellation, broken connection) is
aborted at the server in the background.
"""

import asyncio
import json
import reprlib
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.errors import EngineFault
from envkit.images import Image
from envkit.rollout.token_stream import Report
from envkit_remote import faults
from envkit_remote.answers import read_json
from envkit_remote.conversations import PromptIds
from envkit_remote.dialect import Dialect, Outgoing
from envkit_remote.transport import UNKNOWN, Answer, AnswerLimit, Transport

_ABORT_TIMEOUT_S: Final = 5.0
_MAX_ID: Final = 1 << 31
"""Tokenizers take ids of 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """Settings shared by all calls of an engine."""

    http: Transport
    dialect: Dialect
    timeout_s: float
    abort_grace_s: float
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a coroutine in the background and waits for it when the engine closes."""


class Call:
    """A running request. `run` may be awaited once."""

    def __init__(
        self,
        settings: CallSettings,
        fields: Mapping[str, Any],
        prompt: PromptIds,
        images: Sequence[Image],
        *,
        limit: AnswerLimit = UNKNOWN,
        session_id: str | None = None,
        report: Report | None = None,
    ) -> None:
        self.rid = uuid.uuid4().hex
        """Id of the request at the server."""
        self._settings = settings
        self._http, self._dialect = settings.http, settings.dialect
        self._outgoing = Outgoing(rid=self.rid, fields=fields, prompt=prompt, images=images)
        header = self._dialect.session_header
        self._headers = {} if session_id is None else {header: session_id}
        self._limit = limit
        self._report = report
        """Gets tokens while they are sampled, if the fields ask the server to stream."""
        self._is_aborted = False
        self._scope: asyncio.Timeout | None = None

    async def run(self) -> Answer | None:
        """Return the answer with status 200, or None when the call was aborted without one.

        Raises:
            EngineFault: There was no such answer.
        """
        http = self._http
        try:
            answer = await self._answer()
        except faults.CONNECTION_ERRORS as error:
            if self._is_aborted:
                return None
            if isinstance(error, faults.BROKEN_CONNECTION):
                self._give_up()
            raise faults.connection_fault(http, error) from error
        except asyncio.CancelledError:
            self._give_up()
            raise
        if answer is not None and answer.status != 200:
            raise await self._dialect.status_fault(http, answer)
        return answer

    async def _answer(self) -> Answer | None:
        timeout_s = self._settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s) as self._scope:
                for is_again in (False, True):
                    answer = await self._post(is_again=is_again)
                    if answer is None or not self._dialect.settle(self._outgoing, answer):
                        break
                return answer
        except TimeoutError as error:
            if isinstance(error, faults.CONNECTION_ERRORS):
                raise  # no connection within `connect_timeout_s`
            self._give_up()
            if self._is_aborted:
                return None
            hint = self._dialect.timeout_hint
            raise faults.timeout_fault(self._http, timeout_s, self.rid, hint) from error
        finally:
            self._scope = None

    async def _post(self, *, is_again: bool) -> Answer | None:
        out, encode = self._outgoing, self._dialect.encode
        if out.images:
            # Encoding an image for the first time takes tens of milliseconds.
            body = await asyncio.to_thread(encode, out, is_again=is_again)
        else:
            body = encode(out, is_again=is_again)
        if self._is_aborted:
            return None
        path = self._dialect.generate_path
        if self._report is None:
            return await self._http.post(path, body, headers=self._headers, limit=self._limit)
        streamed = StreamedAnswer(self._dialect, self.rid, self._report, self._limit)
        answer = await self._http.post(
            path, body, headers=self._headers, events=streamed, limit=self._limit
        )
        return answer if answer.body or answer.status != 200 else streamed.answer()

    def _give_up(self) -> None:
        self._settings.spawn(self._post_abort())

    async def abort(self) -> None:
        """Ask the server to stop; `run` then returns the tokens so far, or None after a grace."""
        self._is_aborted = True
        if self._scope is not None and not self._scope.expired():
            grace_ends = asyncio.get_running_loop().time() + self._settings.abort_grace_s
            ends = self._scope.when()
            if ends is not None and grace_ends < ends:
                self._scope.reschedule(grace_ends)
            await self._post_abort()

    async def _post_abort(self) -> None:
        body = json.dumps(self._dialect.abort_fields(self.rid)).encode()
        # If the server is unreachable, the request itself reports it.
        with suppress(TimeoutError, *faults.CONNECTION_ERRORS):
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._http.post(self._dialect.abort_path, body, is_control=True)


class StreamedAnswer:
    """Joins the events of one answer into the answer of a request that does not stream."""

    def __init__(
        self, dialect: Dialect, rid: str, report: Report, limit: AnswerLimit = UNKNOWN
    ) -> None:
        """Begin without events.

        Args:
            dialect: Joins the events.
            rid: Id of the request. Tokens of an answer to another one are not reported.
            report: Gets the tokens.
            limit: Bounds the joined answer, which a stream without end would let grow.
        """
        self._dialect, self._rid, self._report = dialect, rid, report
        self._most = limit.max_values
        self._whole: dict[str, Any] | None = None
        self._error: Answer | None = None

    def read(self, data: bytes) -> dict[str, Any]:
        """Return an event.

        Raises:
            EngineFault: It is not a JSON object; TRANSIENT if it is not JSON.
        """
        event = read_json(f"a stream of {self._dialect.title}", data)
        if not isinstance(event, dict):
            raise self._malformed(event)
        return cast("dict[str, Any]", event)

    def add(self, event: dict[str, Any]) -> None:
        """Add an event.

        Raises:
            EngineFault: It is not one of the server's.
        """
        if "error" in event:
            error: Any = event["error"]
            code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else 0
            status = code if type(code) is int and 400 <= code < 600 else 500
            try:
                # In ASCII, because the text of a server may have lone surrogates.
                self._error = Answer(status=status, body=json.dumps(event).encode())
            except RecursionError as failure:
                raise self._malformed(event) from failure
            return
        try:
            self._whole, ids = self._dialect.join(self._whole, event)
            named = self._dialect.answered(self._whole)
            length = _longest(self._whole)
        except (TypeError, LookupError, AttributeError, RecursionError) as error:
            raise self._malformed(event) from error
        if self._most is not None and length > self._most:
            raise EngineFault(
                f"a stream of {self._dialect.title} has {length} values in a list, which is more "
                f"than the {self._most} that the tokens that were asked for can take"
            )
        if not all(type(one) is int and 0 <= one < _MAX_ID for one in ids):
            raise self._malformed(event)
        if ids and named in (None, self._rid):
            self._report(ids)

    def answer(self) -> Answer:
        """Return the whole answer, or the error that ended it; an empty one without events."""
        if self._error is not None:
            return self._error
        return Answer(status=200, body=b"", joined=self._whole)

    def _malformed(self, event: object) -> EngineFault:
        return EngineFault(
            f"a stream of {self._dialect.title} must have JSON objects with tokens, got "
            f"{reprlib.repr(event)[:200]}"
        )


def _longest(value: object) -> int:
    """Return the length of the longest list that joining events can extend."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        return max(len(items), _longest(items[0]) if len(items) == 1 else 0)
    if isinstance(value, dict):
        return max(map(_longest, cast("dict[str, object]", value).values()), default=0)
    return 0
