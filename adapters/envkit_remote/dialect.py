"""Differences between servers: request and answer formats, and a server's facts."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from envkit.errors import EngineFault
from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind, Sampling
from envkit_remote import faults
from envkit_remote.conversations import PromptIds
from envkit_remote.parts import Parts
from envkit_remote.transport import Answer, Transport

Fetch = Callable[[str], Awaitable[bytes]]
"""Fetches a server path and returns its body, or raises an EngineFault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The facts that a client needs. None means not reported."""

    version: str | None = None
    model: str | None = None
    """Folder or name of the served model."""
    served_model_name: str | None = None
    """The server's name of the model. It stays the same when new weights are loaded."""
    context_length: int | None = None
    """Bound on prompt plus new tokens, images expanded."""
    max_prompt_length: int | None = None
    """Prompts must be shorter than this; a little less than the context length."""
    weight_version: str | None = None
    is_deterministic: bool = False
    """True when the server honours `Sampling.seed`; others ignore it."""
    returns_routed_experts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    """Whether a server answers."""

    url: str
    healthy: bool
    detail: str
    """What is wrong and what to check, or the served version and model."""
    seconds: float
    """How long the answer took; a healthy idle SGLang server samples one token for it."""
    info: ServerInfo | None = None
    """None if the server could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagCheck:
    """Whether a server was started with one flag, as `envkit doctor` lists it."""

    flag: str
    """As on the server's command line."""
    is_set: bool
    is_required: bool
    """False for an optional flag."""
    matters: str
    """What happens without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request to send."""

    rid: str
    """The request's id at the server, new for every attempt."""
    fields: Mapping[str, Any]
    """Fields of the body, without id, prompt and images."""
    images: Sequence[Image]
    prompt: PromptIds


class Dialect(ABC):
    """Request and answer formats of one server; one stateful object per engine."""

    name: ClassVar[str]
    """Name of the engine, in records."""
    title: ClassVar[str]
    """Name of the server, in messages."""
    generate_path: ClassVar[str]
    abort_path: ClassVar[str]
    session_header: ClassVar[str]
    """Header with the episode's id, for the server's own router."""
    advice: ClassVar[Mapping[int, str]]
    """Advice by status."""
    timeout_hint: ClassVar[str] = ""
    """Suffix of the message about a request without an answer."""
    raw_advice: ClassVar[str]
    """How to start a server that reports the log-probabilities of the sampled distribution."""
    changed_hint: ClassVar[str]
    """Known reasons why a server changes the prompt."""

    @abstractmethod
    def generate_fields(
        self, request: GenerateRequest, *, max_new_tokens: int, with_prompt_ids: bool
    ) -> dict[str, Any]:
        """Return the body of a request, without its id, prompt and images.

        Args:
            request: The turn to sample.
            max_new_tokens: The clamped budget.
            with_prompt_ids: Request the ids of the prompt as the server used it.

        Raises:
            ConfigurationError: `sampling.extras` holds a key that the server would ignore.
        """

    @abstractmethod
    def stream_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of `generate_fields` for an answer as server-sent events."""

    @abstractmethod
    def join(
        self, whole: dict[str, Any] | None, event: dict[str, Any]
    ) -> tuple[dict[str, Any], Sequence[int]]:
        """Return the answer so far with a further event, and the ids that it adds.

        The answer after the last event is that of a request that does not stream. It is not
        checked here, except for what joining needs.

        Args:
            whole: The answer before the event, which may be changed; None before the first one.
            event: The event's JSON.

        Raises:
            TypeError: The event is malformed.
            LookupError: The event is malformed.
            AttributeError: The event is malformed.
        """

    @abstractmethod
    def score_fields(self) -> dict[str, Any]:
        """Return the body of `generate_fields` for the log-probabilities of the prompt itself.

        They are those at temperature 1.
        """

    @abstractmethod
    def encode(self, outgoing: Outgoing, *, is_again: bool) -> Parts:
        """Return the JSON of a request; called on a thread if it has images.

        Args:
            outgoing: The request.
            is_again: Whether `settle` asked for a resend.
        """

    def settle(self, outgoing: Outgoing, answer: Answer) -> bool:
        """Record what an answer shows; return True to resend the request in full.

        Also called after the second answer, when the result is ignored.
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
        return faults.status_fault(http, answer, self.advice)

    @abstractmethod
    def parse(self, answer: Answer) -> dict[str, Any]:
        """Return a 200 answer as a JSON object of the expected kind.

        Raises:
            EngineFault: It is something else.
        """

    @abstractmethod
    def generation(self, answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
        """Return the sampled reply.

        Raises:
            EngineFault: The answer is malformed, or the server abandoned the request.
            LedgerFault: Counts or ids contradict each other, or the prompt had another length.
        """

    @abstractmethod
    def answered(self, answer: Mapping[str, Any]) -> str | None:
        """Return the id of the request that an answer names; None if it names none."""

    @abstractmethod
    def prompt_ids(self, answer: Mapping[str, Any]) -> Any:  # noqa: ANN401  # whatever JSON holds
        """Return the prompt as the server used it, images expanded; None if unreported."""

    @abstractmethod
    def prompt_logprobs(self, answer: Mapping[str, Any]) -> tuple[float | None, ...]:
        """Return the log-probability of every prompt token; None for the first.

        Raises:
            EngineFault: The server did not return them.
        """

    @abstractmethod
    async def fetch_info(self, fetch: Fetch) -> ServerInfo:
        """Return the server's facts.

        Raises:
            EngineFault: It does not report them, or they cannot be parsed.
        """

    @abstractmethod
    def kind_matters(self, sampling: Sampling) -> bool:
        """Whether raw and sampled log-probabilities differ for a request."""

    @abstractmethod
    def kind_probe(self, token: int) -> dict[str, Any]:
        """Return a body whose answer shows which log-probabilities the server reports."""

    @abstractmethod
    def probed_kind(self, body: bytes) -> LogprobKind | None:
        """Return the kind shown by the answer to `kind_probe`; None if inconclusive."""

    async def flags(self, http: Transport) -> list[FlagCheck]:
        """Return which relevant flags the server was started with."""
        del http
        return []
