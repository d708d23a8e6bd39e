"""Several servers of one model as one engine: an episode stays on its server.

A session (an episode) is placed once: on the server that has seen its first prompt, which has the
prefix cached for the rest of the group, or else on the one with the fewest sessions. An unavailable
server gets no requests until its health route answers again. Its sessions move to other servers:
requests carry all state, so the same ids are sent again.
"""

import asyncio
import hashlib
import time
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from envkit.errors import ConfigurationError, EngineFault, FaultKind
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind, Sampling
from envkit.rollout.token_stream import Report
from envkit.tokens import ChatCodec
from envkit_remote.dialect import FlagCheck, ServerHealth
from envkit_remote.engine import RemoteEngine

_ASK_AGAIN_S: Final = 1.0
"""Seconds between checks of an unavailable server, doubled up to `_ASK_AT_MOST_S`."""
_ASK_AT_MOST_S: Final = 30.0
_MAX_SESSIONS: Final = 1 << 17
_MAX_PROMPTS: Final = 1 << 14
_LEAN: Final = 1.25
"""Factor, plus `_SLACK`, by which a server's sessions may exceed the least loaded server's before a
known prompt goes elsewhere."""
_SLACK: Final = 8


@dataclass(slots=True, eq=False)
class _Replica:
    engine: RemoteEngine
    sessions: set[str] = field(default_factory=set[str])
    is_unavailable: bool = False
    ask_at: float = 0.0
    wait_s: float = _ASK_AGAIN_S
    is_asking: bool = False


class RoutedEngine:
    """Spreads sessions over replicas of one server; see the module's docstring for the rules."""

    logprob_kind = LogprobKind.SAMPLED
    """SAMPLED; a server that reports others is refused."""

    def __init__(self, engines: Sequence[RemoteEngine]) -> None:
        """Wrap the replicas' engines; they are closed with this one.

        Raises:
            ConfigurationError: No engines, engines of different kinds, or a repeated address.
        """
        urls = [engine.base_url for engine in engines]
        if not engines or len(set(urls)) != len(urls):
            raise ConfigurationError(f"a router needs different server addresses, got {urls}")
        if len({engine.name for engine in engines}) > 1:
            raise ConfigurationError(
                "all servers of a router must be of the same kind, got "
                f"{sorted({engine.name for engine in engines})}"
            )
        self._replicas = [_Replica(engine) for engine in engines]
        self._placed: OrderedDict[str, _Replica] = OrderedDict()
        self._prompts: OrderedDict[bytes, _Replica] = OrderedDict()
        self._running: dict[str, RemoteEngine] = {}
        self._background: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """The replicas' name."""
        return self._replicas[0].engine.name

    @property
    def base_url(self) -> str:
        """The addresses, separated by commas."""
        return ",".join(replica.engine.base_url for replica in self._replicas)

    @property
    def max_top_logprobs(self) -> int:
        """As the replicas' engines."""
        return self._replicas[0].engine.max_top_logprobs

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn on the session's server, or on another if that is unavailable.

        Raises:
            EngineFault: As the replica's engine; `is_unavailable` only if all of them are.
            LedgerFault: As the replica's engine.
            ConfigurationError: As the replica's engine.
            ContractError: As the replica's engine.
        """
        return await self._sampled(request, lambda engine: engine.generate(request))

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        """Sample one turn as `generate` does, and report ids as the server sends them.

        After the first ids, a failure is not passed on to another server.

        Raises:
            EngineFault: As `generate`.
            LedgerFault: As `generate`.
            ConfigurationError: As `generate`.
            ContractError: As `generate`.
        """
        has_reported = False

        def reported(ids: Sequence[int]) -> None:
            nonlocal has_reported
            has_reported = True
            report(ids)

        return await self._sampled(
            request, lambda engine: engine.stream(request, reported), lambda: not has_reported
        )

    async def _sampled(
        self,
        request: GenerateRequest,
        sample: Callable[[RemoteEngine], Awaitable[Generation]],
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> Generation:
        tried: list[_Replica] = []
        while True:
            replica = self._replica_of(request, tried)
            self._running[request.request_id] = replica.engine
            try:
                generation = await sample(replica.engine)
            except EngineFault as fault:
                if fault.kind is FaultKind.TIMEOUT:
                    self._ask(replica)  # stuck on this request, or entirely?
                    self._move_away(request.session_id)
                if not fault.is_unavailable:
                    raise
                self._note_unavailable(replica, fault)
                self._move_away(request.session_id)
                tried.append(replica)
                # Each server is asked at most once, so that the episode waits when all are down.
                others = [one for one in self._replicas if one not in tried]
                if not may_repeat() or all(other.is_unavailable for other in others):
                    raise
            else:
                self._note_back(replica)
                return generation
            finally:
                self._running.pop(request.request_id, None)

    def _replica_of(self, request: GenerateRequest, tried: Sequence[_Replica]) -> _Replica:
        """Return the server for a request: any server if all are unavailable."""
        now = time.monotonic()
        for replica in self._replicas:
            if replica.is_unavailable and now >= replica.ask_at:
                self._ask(replica)
        placed = self._placed.get(request.session_id)
        if placed is not None and not placed.is_unavailable and placed not in tried:
            self._placed.move_to_end(request.session_id)
            return placed
        fresh = [replica for replica in self._replicas if replica not in tried]
        usable = [replica for replica in fresh if not replica.is_unavailable] or fresh
        # One that just let a request time out gets no new session before its health is known.
        sure = [replica for replica in usable if not replica.is_asking]
        return self._place(request, sure or usable)

    def _place(self, request: GenerateRequest, usable: Sequence[_Replica]) -> _Replica:
        self._move_away(request.session_id)
        least = min(usable, key=lambda replica: len(replica.sessions))
        key = _fingerprint(request)
        known = self._prompts.get(key)
        root = None if request.root_id is None else self._placed.get(request.root_id)
        if root is not None and root in usable:
            known = root  # it has the fork's tokens cached
        fits = len(least.sessions) * _LEAN + _SLACK
        if known is not None and known in usable and len(known.sessions) <= fits:
            least = known
        self._prompts[key] = least
        self._prompts.move_to_end(key)
        self._placed[request.session_id] = least
        least.sessions.add(request.session_id)
        while len(self._prompts) > _MAX_PROMPTS:
            self._prompts.popitem(last=False)
        while len(self._placed) > _MAX_SESSIONS:
            session, replica = self._placed.popitem(last=False)
            replica.sessions.discard(session)
        return least

    def _move_away(self, session_id: str) -> None:
        replica = self._placed.pop(session_id, None)
        if replica is not None:
            replica.sessions.discard(session_id)

    def _note_unavailable(self, replica: _Replica, fault: EngineFault) -> None:
        if not replica.is_unavailable:
            replica.is_unavailable, replica.wait_s = True, _ASK_AGAIN_S
        hold = replica.wait_s if fault.retry_after_s is None else fault.retry_after_s
        replica.ask_at = time.monotonic() + min(max(hold, _ASK_AGAIN_S), _ASK_AT_MOST_S)

    def _note_back(self, replica: _Replica) -> None:
        replica.is_unavailable, replica.wait_s = False, _ASK_AGAIN_S

    def _ask(self, replica: _Replica) -> None:
        """Check a replica's health in the background, one check at a time."""
        if not replica.is_asking:
            replica.is_asking = True
            self._spawn(self._look_at(replica))

    async def _look_at(self, replica: _Replica) -> None:
        try:
            await replica.engine.probe()
        except EngineFault as fault:
            self._note_unavailable(replica, fault)
            replica.wait_s = min(2 * replica.wait_s, _ASK_AT_MOST_S)
        else:
            self._note_back(replica)
        finally:
            replica.is_asking = False

    async def probe(self) -> None:
        """Return if any server accepts requests; the rollout polls this while waiting.

        Raises:
            EngineFault: No server accepts requests; `is_unavailable` is set.
        """
        await asyncio.gather(*(self._look_at(replica) for replica in self._replicas))
        if all(replica.is_unavailable for replica in self._replicas):
            raise EngineFault(
                f"none of the {len(self._replicas)} servers {self.base_url} accepts requests",
                kind=FaultKind.TRANSIENT,
                is_unavailable=True,
            )

    async def health(self, *, timeout_s: float = 30.0) -> ServerHealth:
        """Check all servers; the result is healthy if all are healthy and serve the same model."""
        found = await self._of_all(lambda engine: engine.health(timeout_s=timeout_s))
        sick = [health for health in found if not health.healthy]
        if sick:
            return sick[0]
        served = {health.info.model for health in found if health.info is not None}
        if len(served) > 1:
            detail = f"the servers must serve the same model, got {sorted(map(str, served))}"
            return ServerHealth(
                url=self.base_url, healthy=False, detail=detail, seconds=found[0].seconds
            )
        return ServerHealth(
            url=self.base_url,
            healthy=True,
            detail=f"{len(found)} servers: {found[0].detail}",
            seconds=max(health.seconds for health in found),
            info=found[0].info,
        )

    async def check(self, codec: ChatCodec, sampling: Sampling) -> None:
        """Check every server before a run.

        Raises:
            ConfigurationError: A server lacks a needed flag, or serves another model.
        """
        await self._of_all(lambda engine: engine.check(codec, sampling))

    async def flags(self) -> list[FlagCheck]:
        """Return the flags of every server; one counts as set if all have it.

        Raises:
            EngineFault: A server does not answer.
        """
        found = await self._of_all(lambda engine: engine.flags())
        return [min(rows, key=lambda row: row.is_set) for rows in zip(*found, strict=True)]

    async def _of_all(self, ask: "Callable[[RemoteEngine], Awaitable[Any]]") -> list[Any]:
        return list(await asyncio.gather(*(ask(replica.engine) for replica in self._replicas)))

    async def abort(self, request_id: str) -> None:
        """Stop a running request; its `generate` returns the tokens so far with ABORT."""
        engine = self._running.get(request_id)
        if engine is not None:
            await engine.abort(request_id)

    async def end_session(self, session_id: str) -> None:
        """Forget an episode's server; unknown sessions are ignored."""
        self._move_away(session_id)

    async def aclose(self) -> None:
        """Close all connections; safe to call twice."""
        loop = asyncio.get_running_loop()
        pending = [task for task in self._background if task.get_loop() is loop]
        for task in pending:
            task.cancel()
        for task in pending:
            with suppress(asyncio.CancelledError):
                await task
        for replica in self._replicas:
            await replica.engine.aclose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _fingerprint(request: GenerateRequest) -> bytes:
    """Return a hash of a prompt: its ids and images."""
    digest = hashlib.sha256(array("q", request.wire_ids).tobytes())
    for image in request.images:
        digest.update(image.sha256.encode())
    return digest.digest()
