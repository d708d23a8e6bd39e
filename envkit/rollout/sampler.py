"""Asks the engine for a reply, and accepts only an answer that fits the ledger.

A failed request is retried within the budget of its turn. If the engine is unavailable, the episode
waits for it, together with all other episodes that use it.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from envkit.env import Env, PolicyContext
from envkit.errors import (
    ConfigurationError,
    EngineFault,
    FaultKind,
    LedgerFault,
    describe,
    raise_missing,
)
from envkit.rollout.availability import Ticket, availability_of
from envkit.rollout.boundary import is_own_cancellation
from envkit.rollout.engine import (
    Engine,
    FinishReason,
    GenerateRequest,
    Generation,
    Sampling,
    StreamingEngine,
)
from envkit.rollout.generation import checked
from envkit.rollout.interrupt import CallCutError, Interrupt
from envkit.rollout.limits import ReplyBudget, RetryBudget
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.rollout.token_stream import TokenStream
from envkit.seeds import derive_seed
from envkit.trajectory.stop import StopReason

T = TypeVar("T")

_request_ids: Final = random.Random(secrets.randbits(128))
"""Unique across processes, without a system call per request."""
_ABORT_PATIENCE_S: Final = 2.0
"""How long an engine may take to answer an abort before its call is cancelled."""
_NOT_SENT: Final = Generation(
    token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT, prompt_tokens=None
)


class Sampler:
    """The engine's side of one episode."""

    def __init__(
        self, setup: Setup, spec: EpisodeSpec, interrupt: Interrupt, *, top_logprobs: int = 0
    ) -> None:
        self._setup, self._spec, self._interrupt = setup, spec, interrupt
        self._top_logprobs = top_logprobs
        self._availability = availability_of(setup.engine)
        self._rng = random.Random(spec.episode_id)
        self._policy_seed = derive_seed(spec.seed, spec.member)
        self._base, codec = setup.sampling, setup.codec
        if codec is not None:
            self._base = setup.sampling.for_codec(codec)
        self._vocabulary_size = None if codec is None else codec.vocabulary_size
        self._decode = None if codec is None else codec.decode_all
        self._wait: asyncio.Timeout | None = None

    async def generate(
        self,
        draft: TurnDraft,
        room: ReplyBudget,
        record: EpisodeRecord,
        env: Env,
        *,
        stream: TokenStream | None = None,
    ) -> Generation:
        """Sample a reply within the retry budget; the draft counts failed attempts.

        Args:
            draft: The turn.
            room: Room for the reply.
            record: The episode so far.
            env: For engines that read the environment.
            stream: Gets the ids while they are sampled, for a `StreamingEngine`. Once a part of the
                reply is shown, a failure is not retried.

        Returns:
            The reply, or an abort without tokens if the episode was stopped while it waited.

        Raises:
            EngineFault: The budget is spent, or the fault is not retryable.
            LedgerFault: The answer does not fit the ledger.
            ConfigurationError: The engine rejects a setting.
        """
        budget = _TurnBudget(self._setup.retries)
        while True:
            request = self._request(draft, room, record, env)
            # Without a task switch while the engine answers, which is nearly always.
            ticket = self._availability.admitted() or await self._admission(
                request.request_id, draft, budget
            )
            if ticket is None:
                return _NOT_SENT
            try:
                return await self._send(request, ticket, draft, stream)
            except EngineFault as fault:
                if stream is not None:
                    # A client has read a part of this reply, and another sample would not continue
                    # it.
                    if stream.is_shown:
                        raise
                    stream.discard()
                if self._interrupt.reason is None:
                    # If the only running request breaks the connection, it may be the cause.
                    crashes = ticket.is_trial and fault.kind is FaultKind.CRASHED
                    budget.spend(fault, is_own=crashes or not fault.is_unavailable)
                    draft.engine_retries += 1
                    if not fault.is_unavailable:
                        await self._pause(request.request_id, budget.failures - 1, draft)
                # The episode is resumed later and asks again, so the fault is not recorded.
                if self._interrupt.reason is StopReason.ABORTED and fault.retryable:
                    return _NOT_SENT
                if self._interrupt.reason is not None:
                    raise

    async def abort(self, request_id: str) -> None:
        """Wake the episode if it waits between two attempts; the interrupt calls this."""
        if self._wait is not None:
            with suppress(RuntimeError):  # already waking
                self._wait.reschedule(asyncio.get_running_loop().time())

    async def _admission(
        self, request_id: str, draft: TurnDraft, budget: "_TurnBudget"
    ) -> Ticket | None:
        """Wait for permission to send a request; None if the episode is stopped first.

        Raises:
            EngineFault: The engine was unavailable for too long, or the episode's time is up.
        """
        known = self._availability
        ticket = await self._waited(
            request_id,
            lambda: known.enter(self._setup.retries.backoff, self._rng),
            until=budget.unavailable_until(),
            draft=draft,
        )
        if ticket is not None:
            return ticket
        if self._interrupt.reason is StopReason.ABORTED:
            return None
        outage = known.outage
        last = "" if outage is None else f"; the last attempt: {outage.reason}"
        name = self._setup.engine.name
        if self._interrupt.reason is not None:
            raise EngineFault(
                f"the episode's time ran out while engine {name!r} was unavailable{last}",
                kind=FaultKind.TIMEOUT,
                is_unavailable=True,
            )
        raise EngineFault(
            f"engine {name!r} was unavailable for longer than RetryBudget.engine_unavailable_s, "
            f"{self._setup.retries.engine_unavailable_s:g} s{last}",
            kind=FaultKind.TRANSIENT,
            is_unavailable=True,
        )

    async def _send(
        self,
        request: GenerateRequest,
        ticket: Ticket,
        draft: TurnDraft,
        stream: TokenStream | None,
    ) -> Generation:
        """Send the request once, and share with other episodes whether the engine answered."""
        engine, known = self._setup.engine, self._availability
        self._interrupt.enter(request.request_id, engine)
        try:
            generation, clamped = checked(
                await self._interrupt.cut(
                    _sampling(engine, request, stream), patience_s=_ABORT_PATIENCE_S
                ),
                request,
                engine=engine.name,
                vocabulary_size=self._vocabulary_size,
                decode=self._decode,
            )
            if stream is not None:
                _check_reported(stream.ids, generation, engine.name)
        except BaseException as error:  # an engine is foreign code
            if is_own_cancellation(error):
                raise
            # The interrupt cut the call, not the caller of this coroutine.
            if isinstance(error, CallCutError):
                raise EngineFault(
                    f"engine {engine.name!r} did not answer an abort in {_ABORT_PATIENCE_S:g} s",
                    kind=FaultKind.TIMEOUT,
                ) from error
            fault = _as_fault(error, engine.name)
            if isinstance(fault, EngineFault) and fault.is_unavailable:
                known.failed(ticket, fault, self._setup.retries.backoff, self._rng)
            # The engine refused this request or answered it badly, so it does answer.
            elif not isinstance(fault, EngineFault) or fault.kind is FaultKind.PERMANENT:
                known.answered(ticket)
            raise fault from (None if fault is error else error)
        finally:
            self._interrupt.leave(request.request_id)
            known.leave(ticket)
        known.answered(ticket)
        draft.clamped_logprobs += clamped
        return generation

    async def _pause(self, request_id: str, attempt: int, draft: TurnDraft) -> None:
        """Wait after failed attempt number `attempt`, unless the episode is interrupted."""
        seconds = self._setup.retries.backoff.delay(attempt, self._rng)
        until = asyncio.get_running_loop().time() + seconds
        await self._waited(request_id, asyncio.Event().wait, until=until, draft=draft)

    async def _waited(
        self,
        request_id: str,
        work: Callable[[], Awaitable[T]],
        *,
        until: float | None,
        draft: TurnDraft,
    ) -> T | None:
        """Await the work; None at the deadline or if the episode is interrupted."""
        if self._interrupt.reason is not None:
            return None
        started = time.perf_counter()
        self._interrupt.enter(request_id, self)
        try:
            async with asyncio.timeout_at(until) as self._wait:
                return await work()
        except TimeoutError:
            return None
        finally:
            self._wait = None
            self._interrupt.leave(request_id)
            draft.queue_seconds += time.perf_counter() - started

    def _request(
        self, draft: TurnDraft, room: ReplyBudget, record: EpisodeRecord, env: Env
    ) -> GenerateRequest:
        ledger = record.ledger
        return GenerateRequest(
            request_id=f"{_request_ids.getrandbits(128):032x}",
            session_id=self._spec.episode_id,
            root_id=None if record.origin is None else record.origin.root,
            wire_ids=ledger.wire_ids,
            images=tuple(ledger.images),
            features=tuple(ledger.features),
            train_length=ledger.train_length,
            sampling=self._sampling(draft, room.tokens),
            top_logprobs=self._top_logprobs,
            tools=record.tools or (),
            context=PolicyContext(
                env=env,
                task=record.task,
                turn=record.played,
                messages=record.view,
                seed=self._policy_seed,
            ),
        )

    def _sampling(self, draft: TurnDraft, tokens: int) -> Sampling:
        base = self._base
        # One seed for all requests would make the members of a group sample the same.
        if base.seed is not None:
            spec = self._spec
            seed = derive_seed(base.seed, spec.seed, spec.member, draft.turn, draft.resamples)
            return replace(base, max_new_tokens=tokens, seed=seed)
        return base if base.max_new_tokens == tokens else replace(base, max_new_tokens=tokens)


class _TurnBudget:
    """The retries and the waiting time that one turn has left."""

    def __init__(self, retries: RetryBudget) -> None:
        self._retries = retries
        self._until: float | None = None
        self._is_waiting = False
        self.failures = 0

    def unavailable_until(self) -> float | None:
        """Return when the turn stops waiting for the engine. The first call starts the clock."""
        if not self._is_waiting:
            self._is_waiting = True
            limit = self._retries.engine_unavailable_s
            self._until = None if limit is None else asyncio.get_running_loop().time() + limit
        return self._until

    def spend(self, fault: EngineFault, *, is_own: bool) -> None:
        """Count a failed attempt.

        Args:
            fault: How it failed.
            is_own: Whether the request caused it, rather than an unavailable engine.

        Raises:
            EngineFault: The budget is spent; this is the given fault.
        """
        if is_own:
            if not fault.retryable or self.failures >= self._retries.max_engine_retries_per_turn:
                raise fault
            self.failures += 1
        if fault.is_unavailable:
            until = self.unavailable_until()
            if until is not None and asyncio.get_running_loop().time() >= until:
                raise fault


def _sampling(
    engine: Engine, request: GenerateRequest, stream: TokenStream | None
) -> Coroutine[Any, Any, Generation]:
    if stream is None or not isinstance(engine, StreamingEngine):
        return engine.generate(request)
    return engine.stream(request, stream.begin())


def _check_reported(reported: Sequence[int], generation: Generation, name: str) -> None:
    """Check that a reply begins with the ids that the engine reported while it sampled.

    Raises:
        EngineFault: It does not.
    """
    ids = generation.token_ids
    if generation.finish_reason is not FinishReason.ABORT and [*ids[: len(reported)]] != [
        *reported
    ]:
        raise EngineFault(
            f"engine {name!r} must return the ids that it reported while it sampled, got "
            f"{len(ids)} ids that do not begin with the {len(reported)} reported ones"
        )


def _as_fault(error: BaseException, name: str) -> EngineFault | LedgerFault | ConfigurationError:
    """Return an engine's exception as an error that ends only its own episode, if it can."""
    raise_missing(error)
    # A `ConfigurationError` would end every episode, so it may end the run.
    if isinstance(error, EngineFault | LedgerFault | ConfigurationError):
        return error
    message = f"engine {name!r} failed: {describe(error)}"
    # An engine of another package need not know `EngineFault` to be waited for.
    if isinstance(error, ConnectionError):
        return EngineFault(message, kind=FaultKind.TRANSIENT, is_unavailable=True)
    if isinstance(error, TimeoutError):
        return EngineFault(message, kind=FaultKind.TIMEOUT)
    return EngineFault(message)
