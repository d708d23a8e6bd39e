"""One request and its attempts: a deadline, retries with back-off, abort and cancellation.

Every attempt has a rid of its own, so that a second attempt never collides with a first one that
the server still works on. What is given up (deadline, cancellation, broken connection) is aborted
at the server in the background.
"""

import asyncio
import itertools
import random
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from envkit.images import Image
from envkit.rollout.retries import Backoff
from envkit_sglang import faults, payload
from envkit_sglang.transport import Answer, Transport

ROUTING_HEADER: Final = "X-SMG-Routing-Key"
"""SGLang's router keeps the requests of one key on one worker (consistent hashing), where the
episode's prefix is cached. SGLang's own python/sglang/benchmark/serving.py and slime's
slime/rollout/sglang_rollout.py send the same header."""
_INLINE_IDS: Final = 50_000
_ABORT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """What all calls of an engine share."""

    http: Transport
    timeout_s: float
    abort_grace_s: float
    max_retries: int
    backoff: Backoff
    rng: random.Random
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs something in the background and waits for it when the engine is closed."""


class Call:
    """A running request. `run` may be awaited once."""

    def __init__(
        self,
        settings: CallSettings,
        fields: Mapping[str, Any],
        images: Sequence[Image],
        *,
        session_id: str | None = None,
    ) -> None:
        self.rid = ""
        """What the running attempt is called at the server."""
        self.retries = 0
        self._settings = settings
        self._http = settings.http
        self._fields = fields
        self._images = images
        self._headers = {} if session_id is None else {ROUTING_HEADER: session_id}
        self._deadline = asyncio.get_running_loop().time() + settings.timeout_s
        self._aborted = asyncio.Event()
        self._scope: asyncio.Timeout | None = None

    async def run(self) -> Answer | None:
        """Return the answer with status 200, or None when the call was aborted without one.

        Raises:
            EngineFault: No attempt succeeded.
        """
        limit = self._settings.max_retries
        for attempt in itertools.count():
            cause: BaseException | None = None
            try:
                answer = await self._attempt()
                if answer is None or answer.status == 200:
                    return answer
                fault = faults.status_fault(self._http.base_url, answer.status, answer.body)
                may_retry = faults.is_worth_retrying(answer.status, attempt, limit)
            except faults.CONNECTION_ERRORS as error:
                cause = error
                fault = faults.connection_fault(
                    self._http.base_url, error, reached_before=self._http.reached
                )
                may_retry = attempt < limit
            delay = self._settings.backoff.delay(attempt, self._settings.rng)
            if not may_retry or asyncio.get_running_loop().time() + delay >= self._deadline:
                raise fault from cause
            self.retries += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._aborted.wait(), delay)
        return None

    async def _attempt(self) -> Answer | None:
        if self._aborted.is_set():
            return None
        self.rid = uuid.uuid4().hex
        try:
            async with asyncio.timeout_at(self._deadline) as self._scope:
                body = await self._body()
                if self._aborted.is_set():
                    return None
                return await self._http.post("/generate", body, headers=self._headers)
        except faults.CONNECTION_ERRORS as error:
            if isinstance(error, faults.BROKEN_CONNECTION):
                self._give_up()
            raise
        except TimeoutError as error:
            self._give_up()
            if self._aborted.is_set():
                return None
            raise faults.timeout_fault(
                self._http.base_url, self._settings.timeout_s, self.rid
            ) from error
        except asyncio.CancelledError:
            self._give_up()
            raise
        finally:
            self._scope = None

    async def _body(self) -> bytes:
        fields = {**self._fields, "rid": self.rid}
        if not self._images and len(self._fields["input_ids"]) <= _INLINE_IDS:
            return payload.encode_body(fields, ())
        # Encoding pictures takes tens of milliseconds each the first time.
        return await asyncio.to_thread(payload.encode_body, fields, self._images)

    def _give_up(self) -> None:
        self._settings.spawn(self._post_abort(self.rid))

    async def abort(self) -> None:
        """Ask the server to stop; `run` then returns the tokens so far, or None after a grace."""
        self._aborted.set()
        if self._scope is not None and not self._scope.expired():
            grace_ends = asyncio.get_running_loop().time() + self._settings.abort_grace_s
            ends = self._scope.when()
            if ends is not None and grace_ends < ends:
                self._scope.reschedule(grace_ends)
            await self._post_abort(self.rid)

    async def _post_abort(self, rid: str) -> None:
        body = payload.encode_body({"rid": rid}, ())
        # A server that cannot be told is one that the request itself reports.
        with suppress(TimeoutError, *faults.CONNECTION_ERRORS):
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._http.post("/abort_request", body, is_control=True)
