"""One request in the engine."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from envkit.errors import Fault
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation
from envkit_transformers.forward import Piece
from envkit_transformers.prompt import Prompt
from envkit_transformers.sampling import Draw
from envkit_transformers.sessions import MIN_SHARED, CachedEpisode, SessionStore
from envkit_transformers.stopping import StopRule

Complete = Callable[[Generation | Fault], None]
"""Receives the outcome of a request, once, on the engine's thread."""


@dataclass(eq=False, slots=True, kw_only=True)
class Ticket:
    """A request, its tokens so far, and its session once started."""

    request: GenerateRequest
    prompt: Prompt
    draw: Draw
    stop_rule: StopRule
    complete: Complete
    report: Callable[[int], None] | None = None
    session: CachedEpisode | None = None
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    cached_tokens: int = 0
    submitted_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    _leader: tuple[CachedEpisode, Prompt, int] | None = None

    def start(self, session: CachedEpisode, store: SessionStore) -> None:
        """Start in a session whose cache has the prefix shared with the last turn.

        If another session has or prefills a longer prefix, it becomes the leader: this request
        waits and copies it, so a group computes its prompt once.
        """
        self.session, self.tokens = session, session.sampled
        self.started_at = time.monotonic()
        self.cached_tokens = session.cache.length
        found = store.donor(self.prompt, other_than=session)
        if found is not None and found[1] >= session.cache.length + MIN_SHARED:
            leader, shared = found
            if leader.prompt is not None:
                self._leader = leader, leader.prompt, shared

    def is_held_back(self, session: CachedEpisode) -> bool:
        """Return whether to wait for the leader; copies its prefix once available."""
        if self._leader is None:
            return False
        leader, prompt, shared = self._leader
        if leader.is_busy and leader.prompt is prompt and leader.cache.length < shared:
            return True
        self._leader = None
        ready = leader.matching_prefix(self.prompt)
        if ready >= session.cache.length + MIN_SHARED:
            session.cache.copy_prefix(leader.cache, ready)
            self.cached_tokens = ready
        return False

    def chunk(self, session: CachedEpisode, budget: int, *, may_exceed: bool) -> int:
        """Return how many prompt tokens to take now; images are never split.

        Args:
            session: The ticket's own.
            budget: Tokens left in this step.
            may_exceed: An image may exceed the budget, because it comes first.
        """
        start = session.cache.length
        end = min(len(self.prompt), start + budget)
        for span in self.prompt.spans:
            if span.offset < end < span.end:
                if span.offset > start:
                    return span.offset - start
                return span.end - start if may_exceed else 0
        return end - start

    def piece(self, session: CachedEpisode, count: int) -> Piece:
        """Return the next tokens for a forward: of the prompt, or the last sampled one."""
        start, known = session.cache.length, len(self.prompt)
        if start >= known:
            axes = self.prompt.positions.shape[0]
            position = self.prompt.next_position + len(self.tokens) - 1
            return Piece(
                cache=session.cache,
                ids=np.array([self.tokens[-1]], dtype=np.int64),
                positions=np.full((axes, 1), position, dtype=np.int64),
                wants_logits=True,
            )
        stop = start + count
        return Piece(
            cache=session.cache,
            ids=self.prompt.ids[start:stop],
            positions=self.prompt.positions[:, start:stop],
            spans=[span for span in self.prompt.spans if start <= span.offset < stop],
            wants_logits=stop == known,
        )

    def generation(self, reason: FinishReason, *, weight_version: str) -> Generation:
        """Return the outcome, with the tokens so far."""
        now = time.monotonic()
        return Generation(
            token_ids=list(self.tokens),
            logprobs=list(self.logprobs),
            finish_reason=reason,
            prompt_tokens=None if self.started_at is None else len(self.prompt),
            cached_tokens=self.cached_tokens,
            weight_version=weight_version,
            queue_seconds=(now if self.started_at is None else self.started_at) - self.submitted_at,
        )
