"""An engine whose replies come from a policy function: for oracles, baselines and tests.

The codec handles its replies like those of any engine. It is as strict about its input as a real
engine: the placeholders must match the images.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from envkit.env import Policy
from envkit.errors import ConfigurationError, EngineFault, FaultKind
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, LogprobKind
from envkit.rollout.stopping import ended
from envkit.tokens.codec import ChatCodec

_NAME: Final = "scripted"


class ScriptedEngine:
    """Answers with a policy's replies. Log-probabilities are 0.0, since the policy is certain."""

    def __init__(
        self,
        codec: ChatCodec,
        policy: Policy,
        *,
        latency: Callable[[GenerateRequest], float] | None = None,
    ) -> None:
        """Create the engine.

        Args:
            codec: Turns the policy's text into ids; use the rollout's codec.
            policy: Writes the replies. It must be fast, since it runs on the event loop.
            latency: Seconds to wait before each answer; None answers at once.
        """
        self._codec, self._policy, self._latency = codec, policy, latency
        self._running: dict[str, asyncio.Event] = {}

    @property
    def name(self) -> str:
        """The engine's name in records."""
        return _NAME

    @property
    def logprob_kind(self) -> LogprobKind:
        """SAMPLED: the policy's only choice has probability 1."""
        return LogprobKind.SAMPLED

    async def generate(self, request: GenerateRequest) -> Generation:
        """Return the policy's reply, cut to the budget.

        Raises:
            ConfigurationError: The request carries no policy context.
            EngineFault: Placeholders and images do not match.
        """
        if request.context is None:
            raise ConfigurationError("a scripted engine needs the request's policy context")
        wire_ids = np.asarray(request.wire_ids)
        pads = sum(int(np.count_nonzero(wire_ids == token)) for token in self._codec.media_ids)
        if pads != len(request.images):
            raise EngineFault(
                f"{len(request.images)} images came with {pads} placeholders",
                kind=FaultKind.PERMANENT,
            )
        started = time.perf_counter()
        aborted = await self._wait(request)
        ids = self._codec.encode_reply(self._policy(request.context))
        ids = ended(ids, request.sampling, self._codec.decode_all)
        finish = FinishReason.STOP
        if len(ids) > request.sampling.max_new_tokens:
            ids, finish = ids[: request.sampling.max_new_tokens], FinishReason.LENGTH
        if aborted:
            ids, finish = ids[: len(ids) // 2], FinishReason.ABORT
        expanded = sum(feature.token_count - 1 for feature in request.features)
        return Generation(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            finish_reason=finish,
            prompt_tokens=len(request.wire_ids) + expanded,
            queue_seconds=time.perf_counter() - started,
            weight_version="script",
        )

    async def abort(self, request_id: str) -> None:
        """End a waiting request; it returns half of its reply."""
        event = self._running.get(request_id)
        if event is not None:
            event.set()

    async def end_session(self, session_id: str) -> None:
        """Do nothing: sessions hold no resources."""

    async def aclose(self) -> None:
        """Do nothing: the engine holds no resources."""

    async def _wait(self, request: GenerateRequest) -> bool:
        """Wait for the latency; True if an abort came first."""
        if self._latency is None:
            return False
        event = self._running[request.request_id] = asyncio.Event()
        try:
            async with asyncio.timeout(self._latency(request)):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            del self._running[request.request_id]
        return True
