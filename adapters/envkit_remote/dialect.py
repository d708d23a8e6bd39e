"""What differs between kinds of servers: how requests are written and answers read."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from envkit.errors import EngineFault
from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind, Sampling
from envkit_remote import faults
from envkit_remote.facts import FlagCheck, ServerInfo
from envkit_remote.transport import Answer, Transport

Fetch = Callable[[str], Awaitable[bytes]]
"""Gets the body of a path of the server, or raises an EngineFault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request on its way."""

    rid: str
    """What it is called at the server; new for every attempt."""
    fields: Mapping[str, Any]
    """Of the body, without the name and the images."""
    images: Sequence[Image]
    tokens: int
    """How many ids it holds; a long body is written on a thread."""


class Dialect(ABC):
    """How one server is spoken to. Each engine has one object, which may remember things."""

    name: ClassVar[str]
    """Of the engine, in records."""
    title: ClassVar[str]
    """Of the server, in messages."""
    generate_path: ClassVar[str]
    abort_path: ClassVar[str]
    session_header: ClassVar[str]
    """Carries the episode, for the server's own router."""
    advice: ClassVar[Mapping[int, str]]
    """What to do about a status."""
    timeout_hint: ClassVar[str] = ""
    """Ends the message about a request without an answer."""
    raw_advice: ClassVar[str]
    """How to start a server that reports the log-probabilities of the sampled distribution."""
    changed_hint: ClassVar[str]
    """What makes a server use another prompt than it was sent."""

    @abstractmethod
    def generate_fields(
        self, request: GenerateRequest, *, max_new_tokens: int, with_prompt_ids: bool
    ) -> dict[str, Any]:
        """Return the body of a request, without its name and its images.

        Args:
            request: The turn to sample.
            max_new_tokens: The clamped budget.
            with_prompt_ids: Ask for the ids of the prompt, as the server used it.

        Raises:
            ConfigurationError: `sampling.extras` holds a key that the server would ignore.
        """

    @abstractmethod
    def score_fields(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return the body of a request for the log-probabilities of a prompt at temperature 1."""

    @abstractmethod
    def encode(self, outgoing: Outgoing, *, is_again: bool) -> bytes:
        """Return the JSON bytes of a request; called on a thread if it is large.

        Args:
            outgoing: The request.
            is_again: Whether `settle` asked for it once more.
        """

    def settle(self, outgoing: Outgoing, answer: Answer) -> bool:
        """Note what an answer shows; return True to send the request once more, complete.

        Asked after the second answer too, when it changes nothing any more.
        """
        del outgoing, answer
        return False

    @abstractmethod
    def abort_fields(self, rid: str) -> dict[str, Any]:
        """Return the body that aborts a request."""

    @abstractmethod
    async def internal_error(self, http: Transport, answer: Answer) -> EngineFault:
        """Return the fault of a 500, which may mean that the server is about to die."""

    async def status_fault(self, http: Transport, answer: Answer) -> EngineFault:
        """Return the fault of an answer that is not 200."""
        if answer.status == 500:
            return await self.internal_error(http, answer)
        return faults.status_fault(self.title, http.base_url, answer, self.advice)

    @abstractmethod
    def parse(self, body: bytes) -> dict[str, Any]:
        """Return a 200 body as a JSON object of the expected kind.

        Raises:
            EngineFault: It is something else.
        """

    @abstractmethod
    def generation(self, answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
        """Return what the server sampled.

        Raises:
            EngineFault: The answer is malformed, or the server gave the request up.
            LedgerFault: Counts or ids contradict each other, or the prompt had another length.
        """

    @abstractmethod
    def prompt_ids(self, answer: Mapping[str, Any]) -> Any:  # noqa: ANN401  # whatever JSON holds
        """Return the prompt as the server used it, images expanded; None if it does not say."""

    @abstractmethod
    def prompt_logprobs(self, answer: Mapping[str, Any]) -> tuple[float | None, ...]:
        """Return the log-probability of every prompt token; None for the first.

        Raises:
            EngineFault: The server did not return them.
        """

    @abstractmethod
    async def fetch_info(self, fetch: Fetch) -> ServerInfo:
        """Return what the server says about itself.

        Raises:
            EngineFault: It does not, or not readably.
        """

    @abstractmethod
    def kind_matters(self, sampling: Sampling) -> bool:
        """Whether raw and sampled log-probabilities differ for a request."""

    @abstractmethod
    def kind_probe(self, token: int) -> dict[str, Any]:
        """Return a body whose answer shows which log-probabilities the server reports."""

    @abstractmethod
    def probed_kind(self, body: bytes) -> LogprobKind | None:
        """Return what the answer to `kind_probe` shows, or None if it shows nothing."""

    async def flags(self, http: Transport) -> list[FlagCheck]:
        """Return which of the flags that matter the server was started with."""
        del http
        return []
