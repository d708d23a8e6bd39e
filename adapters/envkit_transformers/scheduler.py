"""Choose the tokens of the next forward, and process its results.

Everything here runs on one thread and never waits. A step is one forward: the decode token of every
running request, and chunks of pending prompts, in order of arrival. An image is never split over
two forwards; one larger than the step's budget exceeds it.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from envkit.errors import EngineFault, Fault, FaultKind
from envkit.rollout.engine import FinishReason, GenerateRequest
from envkit_transformers.forward import PackedForward, Piece
from envkit_transformers.prompt import PromptBuilder
from envkit_transformers.sampling import Draw, check_sampling, sample
from envkit_transformers.sessions import SessionStore
from envkit_transformers.stopping import StopRule
from envkit_transformers.ticket import Complete, Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine was made, and its state now."""

    steps: int
    """Forwards."""
    prefilled_tokens: int
    sampled_tokens: int
    cached_tokens: int
    """Prompt tokens found in a cache, the session's own or another's."""
    evictions: int
    """Sessions whose cache was freed to make room."""
    sessions: int
    held_tokens: int
    """Tokens of key-value cache in use, including reservations."""
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The model's properties and limits."""

    max_batch_tokens: int
    context_length: int
    stop_ids: tuple[int, ...]
    """Stop tokens for requests without their own."""
    banned_ids: tuple[int, ...]
    """Ids that are never sampled, regardless of the request."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Work for the engine's thread, such as a weight update."""

    run: Callable[[], None]
    fail: Callable[[Fault], None]
    """Called instead of `run` if the engine closes first."""


class Scheduler:
    """Holds every request and advances them together."""

    def __init__(
        self,
        forward: PackedForward,
        builder: PromptBuilder,
        store: SessionStore,
        settings: SchedulerSettings,
        *,
        tokenizer: Any | None,  # noqa: ANN401  # a transformers tokenizer
        weight_version: str,
    ) -> None:
        self._forward = forward
        self._builder = builder
        self._store = store
        self._settings = settings
        self._tokenizer = tokenizer
        self.weight_version = weight_version
        self._seeds = random.Random(settings.seed)
        self._tickets: dict[str, Ticket] = {}
        self._waiting: deque[Ticket] = deque()
        self._running: list[Ticket] = []
        self._updates: deque[Command] = deque()
        self._steps = self._prefilled = self._sampled = self._cached = 0

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._running or self._waiting or self._updates)

    @property
    def stats(self) -> EngineStats:
        """Counts so far."""
        return EngineStats(
            steps=self._steps,
            prefilled_tokens=self._prefilled,
            sampled_tokens=self._sampled,
            cached_tokens=self._cached,
            evictions=self._store.evictions,
            sessions=len(self._store),
            held_tokens=self._store.held_tokens,
            running=len(self._running),
            waiting=len(self._waiting),
        )

    def submit(
        self,
        request: GenerateRequest,
        complete: Complete,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request: The request.
            complete: Called once, with a generation or a fault.
            report: Called with each sampled token except the last; None reports none.
        """
        try:
            ticket = self._ticket(request, complete, report)
        except Fault as fault:
            complete(fault)
            return
        self._tickets[request.request_id] = ticket
        self._waiting.append(ticket)

    def _ticket(
        self,
        request: GenerateRequest,
        complete: Complete,
        report: Callable[[int], None] | None,
    ) -> Ticket:
        sampling = request.sampling
        check_sampling(sampling)
        if request.request_id in self._tickets:
            raise EngineFault(f"request_id must be unique, got {request.request_id!r} twice")
        prompt = self._builder.build(request)
        room = self._settings.context_length - len(prompt)
        if room < 1:
            raise EngineFault(
                f"the context must be shorter than the model's {self._settings.context_length} "
                f"tokens, got {len(prompt)}; lower max_context_tokens"
            )
        stop_rule = StopRule(
            sampling,
            default_ids=self._settings.stop_ids,
            tokenizer=self._tokenizer,
            budget=min(sampling.max_new_tokens, room),
        )
        seed = self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed
        draw = Draw(sampling, banned=self._settings.banned_ids, seed=seed, start=len(prompt))
        return Ticket(
            request=request,
            prompt=prompt,
            draw=draw,
            stop_rule=stop_rule,
            complete=complete,
            report=report,
        )

    def abort(self, request_id: str) -> None:
        """End a request with the tokens so far. Unknown ones are ignored."""
        ticket = self._tickets.get(request_id)
        if ticket is not None:
            self._finish(ticket, FinishReason.ABORT)

    def end_session(self, session_id: str) -> None:
        """Free an episode's cache, after its running request if there is one."""
        self._store.end(session_id)

    def update(self, change: Command) -> None:
        """Queue a weight update: it waits for running requests, and new ones wait for it.

        So every generation is sampled under exactly one version. All caches are freed first.
        """
        self._updates.append(change)

    def fail_all(self, message: str, kind: FaultKind) -> None:
        """Answer every request and update with a fault and free every session."""
        for ticket in list(self._tickets.values()):
            self._fail(ticket, EngineFault(message, kind=kind))
        while self._updates:
            self._updates.popleft().fail(EngineFault(message, kind=kind))
        self._store.forget_idle()

    def step(self) -> None:
        """Advance everything by one forward."""
        while self._updates and not self._running:
            self._store.forget_idle()
            self._updates.popleft().run()
        self._admit()
        planned = self._plan()
        if planned:
            self._run(planned)

    def _admit(self) -> None:
        """Start waiting requests in order, skipping those that wait for their own session."""
        passed_over: list[Ticket] = []
        # Half of a step is always left for prompts, so no prompt starves.
        most_running = max(1, self._settings.max_batch_tokens // 2)
        while self._waiting and not self._updates and len(self._running) < most_running:
            ticket = self._waiting.popleft()
            if self._store.is_busy(ticket.request.session_id):
                passed_over.append(ticket)
                continue
            try:
                session = self._store.acquire(
                    ticket.request.session_id, ticket.prompt, new_tokens=ticket.stop_rule.budget
                )
            except EngineFault as fault:
                self._fail(ticket, fault)
                continue
            if session is None:
                passed_over.append(ticket)
                break
            ticket.start(session, self._store)
            self._running.append(ticket)
        self._waiting.extendleft(reversed(passed_over))

    def _plan(self) -> list[tuple[Ticket, Piece]]:
        planned: list[tuple[Ticket, Piece]] = []
        prefilling: list[Ticket] = []
        for ticket in self._running:
            if ticket.tokens and ticket.session is not None:
                planned.append((ticket, ticket.piece(ticket.session, 1)))
            else:
                prefilling.append(ticket)
        budget = self._settings.max_batch_tokens - len(planned)
        may_exceed = True
        for ticket in prefilling:
            session = ticket.session
            if session is None or budget <= 0 or ticket.is_held_back(session):
                continue
            count = ticket.chunk(session, budget, may_exceed=may_exceed)
            if count > 0:
                planned.append((ticket, ticket.piece(session, count)))
                budget -= count
                may_exceed = False
        return planned

    def _run(self, planned: Sequence[tuple[Ticket, Piece]]) -> None:
        try:
            logits = self._forward.run([piece for _, piece in planned])
        except Exception as error:  # noqa: BLE001  # a foreign model may raise anything
            self._isolate(planned, error)
            return
        self._steps += 1
        self._prefilled += sum(len(piece.ids) for ticket, piece in planned if not ticket.tokens)
        rows = [ticket for ticket, piece in planned if piece.wants_logits]
        try:
            tokens, logprobs = (
                sample(logits, [ticket.draw for ticket in rows]) if rows else ([], [])
            )
        except Exception as error:  # noqa: BLE001  # out of memory comes in many types
            for ticket in rows:
                self._fail(ticket, _as_fault(error))
            return
        for ticket, token, logprob in zip(rows, tokens, logprobs, strict=True):
            self._take(ticket, token, logprob)

    def _isolate(self, planned: Sequence[tuple[Ticket, Piece]], error: Exception) -> None:
        """Find the request that the forward failed on, so the others can continue."""
        if len(planned) == 1:
            ticket, piece = planned[0]
            piece.cache.drop()
            self._fail(ticket, _as_fault(error))
            return
        for one in planned:
            self._run([one])

    def _take(self, ticket: Ticket, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            message = "the model's logits are not finite; try float32 or check its weights"
            self._fail(ticket, EngineFault(message))
            return
        if not ticket.tokens:
            self._cached += ticket.cached_tokens
        ticket.tokens.append(token)
        ticket.logprobs.append(logprob)
        self._sampled += 1
        ended = ticket.stop_rule.check(ticket.tokens)
        if ended is not None:
            self._finish(ticket, ended)
        elif ticket.report is not None:
            ticket.report(token)

    def _finish(self, ticket: Ticket, reason: FinishReason) -> None:
        self._forget(ticket)
        ticket.complete(ticket.generation(reason, weight_version=self.weight_version))

    def _fail(self, ticket: Ticket, fault: Fault) -> None:
        self._forget(ticket)
        ticket.complete(fault)

    def _forget(self, ticket: Ticket) -> None:
        self._tickets.pop(ticket.request.request_id, None)
        if ticket.session is not None:
            self._store.release(ticket.session)
        for queue in (self._running, self._waiting):
            if ticket in queue:
                queue.remove(ticket)


def _as_fault(error: Exception) -> Fault:
    if isinstance(error, Fault):
        return error
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return EngineFault(
            f"the forward ran out of memory: {error}; lower max_batch_tokens or kv_budget_tokens",
            kind=FaultKind.TRANSIENT,
        )
    return EngineFault(f"the model's forward failed: {type(error).__name__}: {error}")
