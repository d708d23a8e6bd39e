"""Sessions with cached keys and values, within a token budget.

A session is an episode; between its turns it is idle and may be evicted, least recently used first.
A miss costs time, never exactness: the request carries the whole context and is prefilled again.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from envkit.errors import EngineFault
from envkit_transformers.kv_cache import KeyValueCache
from envkit_transformers.prompt import Ids, ImageSpan, Prompt, common_prefix

MIN_SHARED: Final = 16
"""A shorter common prefix is not worth a copy."""
_DONORS_TRIED: Final = 64


@dataclass(eq=False, slots=True)
class CachedEpisode:
    """One episode's cache and its tokens."""

    key: str
    cache: KeyValueCache = field(default_factory=KeyValueCache)
    prompt: Prompt | None = None
    sampled: list[int] = field(default_factory=list[int])
    """Tokens after the prompt; shared with the running request, which appends to it."""
    is_busy: bool = False
    """A request runs; at most one at a time."""
    has_ended: bool = False
    """The episode is over: free the cache when the running request finishes."""

    @property
    def held_tokens(self) -> int:
        """Tokens that count against the budget."""
        if self.is_busy:
            return max(self.cache.expected, self.cache.capacity)
        return self.cache.capacity

    def matching_prefix(self, prompt: Prompt) -> int:
        """Return how many leading tokens of the prompt the cache holds.

        The last token is never included: its forward gives the first logits.
        """
        if self.prompt is None:
            return 0
        spans: tuple[ImageSpan, ...] = self.prompt.spans
        ids: Ids = np.concatenate([self.prompt.ids, np.asarray(self.sampled, dtype=np.int64)])
        limit = min(self.cache.length, len(prompt) - 1)
        return common_prefix(ids, spans, prompt.ids, prompt.spans, limit=limit)

    def prompt_prefix(self, prompt: Prompt) -> int:
        """Return how many leading tokens the cache will hold once its own prompt is prefilled."""
        if self.prompt is None:
            return 0
        own, limit = self.prompt, len(prompt) - 1
        return common_prefix(own.ids, own.spans, prompt.ids, prompt.spans, limit=limit)


class SessionStore:
    """All sessions, least recently used first."""

    def __init__(self, *, budget_tokens: int) -> None:
        self.budget_tokens = budget_tokens
        self.evictions = 0
        self._sessions: OrderedDict[str, CachedEpisode] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[CachedEpisode]:
        return iter(list(self._sessions.values()))  # a copy: statistics are read on any thread

    @property
    def held_tokens(self) -> int:
        """Tokens currently held, including reservations of running requests."""
        return sum(session.held_tokens for session in self)

    def acquire(self, key: str, prompt: Prompt, *, new_tokens: int) -> CachedEpisode | None:
        """Give a request its session, rolled back to what the prompt shares with it.

        Args:
            key: The session.
            prompt: The whole context.
            new_tokens: Maximum tokens the request may sample.

        Returns:
            None if the session is busy, or running requests use up the budget.

        Raises:
            EngineFault: The request alone is larger than the budget.
        """
        needed = len(prompt) + new_tokens
        if needed > self.budget_tokens:
            raise EngineFault(
                f"a context of {len(prompt)} tokens plus {new_tokens} new ones needs {needed} "
                f"tokens of key-value cache, got a budget of {self.budget_tokens}; raise "
                "kv_budget_tokens or lower max_new_tokens"
            )
        session = self._sessions.get(key)
        if session is not None and session.is_busy:
            return None
        if not self._make_room(needed, keep=key):
            return None
        if session is None:
            session = self._sessions[key] = CachedEpisode(key)
        session.cache.truncate(session.matching_prefix(prompt))
        session.cache.expected = needed
        session.prompt, session.sampled = prompt, []
        session.is_busy, session.has_ended = True, False
        self._sessions.move_to_end(key)
        return session

    def release(self, session: CachedEpisode) -> None:
        """Make a session idle after its request; free it when its episode is over."""
        session.is_busy = False
        self._sessions.move_to_end(session.key)
        if session.has_ended or session.cache.length == 0:
            self._discard(session)

    def end(self, key: str) -> None:
        """Free a session now, or after its running request. Unknown ones are ignored."""
        session = self._sessions.get(key)
        if session is None:
            return
        session.has_ended = True
        if not session.is_busy:
            self._discard(session)

    def is_busy(self, key: str) -> bool:
        """Return whether a request of this session is running."""
        session = self._sessions.get(key)
        return session is not None and session.is_busy

    def forget_idle(self) -> None:
        """Free every idle session."""
        for session in self:
            if not session.is_busy:
                self._discard(session)

    def donor(
        self, prompt: Prompt, *, other_than: CachedEpisode
    ) -> tuple[CachedEpisode, int] | None:
        """Find the session that shares the longest prefix with a prompt, cached or in progress.

        Only recently used ones are checked: the members of a group start together.
        """
        best: tuple[CachedEpisode, int] | None = None
        for session in islice(reversed(self._sessions.values()), _DONORS_TRIED):
            if session is other_than or session.prompt is None:
                continue
            shared = (
                session.prompt_prefix(prompt)
                if session.is_busy
                else session.matching_prefix(prompt)
            )
            if shared >= MIN_SHARED and (best is None or shared > best[1]):
                best = session, shared
        return best

    def _make_room(self, needed: int, *, keep: str) -> bool:
        """Evict idle sessions until the tokens fit; if they cannot, change nothing."""
        others = [session for session in self if session.key != keep]
        busy = sum(session.held_tokens for session in others if session.is_busy)
        if busy + needed > self.budget_tokens:
            return False
        excess = sum(session.held_tokens for session in others) + needed - self.budget_tokens
        for session in others:
            if excess <= 0:
                break
            if not session.is_busy:
                excess -= session.held_tokens
                self.evictions += 1
                self._discard(session)
        return True

    def _discard(self, session: CachedEpisode) -> None:
        session.cache.drop()
        self._sessions.pop(session.key, None)
