"""An engine over the client that a trainer made, and closes, for its own inference servers."""

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from envkit.errors import ContractError, EngineFault, EnvkitError, FaultKind
from envkit.ranges import positive
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, LogprobKind

ABORTED: Final = Generation(
    token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT, prompt_tokens=None
)
"""The answer to a request that was stopped before its reply was known."""


class ClientEngine(ABC):
    """Waits for the answers of a client that cannot stop a single request.

    An abort cancels the wait, so the tokens so far are lost.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout_s: float | None,
        logprob_kind: LogprobKind = LogprobKind.SAMPLED,
    ) -> None:
        """Store the settings.

        Args:
            name: The engine's name in records.
            timeout_s: Seconds for one turn. None waits forever: a trainer that updates weights
                pauses its servers for minutes.
            logprob_kind: The kind that the servers report.

        Raises:
            ConfigurationError: The timeout is not positive.
        """
        positive(timeout_s=timeout_s)
        self._name, self._timeout_s, self._logprob_kind = name, timeout_s, logprob_kind
        self._running: dict[str, asyncio.Task[Generation]] = {}
        self._aborted: set[str] = set()

    @property
    def name(self) -> str:
        """The engine's name in records."""
        return self._name

    @property
    def logprob_kind(self) -> LogprobKind:
        """The kind that the servers report."""
        return self._logprob_kind

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn.

        Raises:
            EngineFault: The client or its server failed, or gave no usable answer in time.
            LedgerFault: The request's ids and images do not agree.
            ContractError: A request with this id is already running.
        """
        key = request.request_id
        if key in self._running:
            raise ContractError(f"request_id {key!r} is already running")
        task = self._running[key] = asyncio.ensure_future(self._contained(request))
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if key not in self._aborted or (current and current.cancelling()):
                raise  # the caller itself is cancelled
            return ABORTED
        except EnvkitError:
            raise
        except Exception as error:
            if not deadline.expired():
                raise self._fault(error) from error
            raise EngineFault(
                f"{self._name}'s client gave no answer in {self._timeout_s} s; the server may be "
                "paused or overloaded. envkit.engine.timeout_s sets the limit",
                kind=FaultKind.TIMEOUT,
            ) from error
        finally:
            del self._running[key]
            self._aborted.discard(key)

    async def abort(self, request_id: str) -> None:
        """Stop waiting for a request; its `generate` returns ABORT without tokens.

        Unknown and finished requests are ignored.
        """
        task = self._running.get(request_id)
        if task is not None:
            self._aborted.add(request_id)
            task.cancel()

    async def aclose(self) -> None:  # noqa: B027  # nothing is left to a subclass
        """Do nothing: the trainer owns client and servers."""

    @abstractmethod
    async def _ask(self, request: GenerateRequest) -> Generation:
        """Send a request and read its answer; may raise anything."""

    @abstractmethod
    def _fault(self, error: BaseException) -> EngineFault:
        """Wrap an exception of the client, with the details that a retry policy needs."""

    async def _contained(self, request: GenerateRequest) -> Generation:
        """Send a request; turn exceptions that would end the event loop into faults."""
        try:
            return await self._ask(request)
        except (SystemExit, KeyboardInterrupt) as error:
            raise self._fault(error) from error
