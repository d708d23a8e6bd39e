"""The engine protocol: token ids in, sampled token ids with log-probabilities out.

Most engines never see text. Ids and log-probabilities come from them, the stop token included; text
is decoded by the codec. A chat endpoint is the exception: it reads messages and returns text, and
what it plays has no token ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from envkit.env import PolicyContext
from envkit.images import Image
from envkit.tokens import ChatCodec
from envkit.tokens.encoded import ImageFeatures


class FinishReason(StrEnum):
    """Why an engine stopped sampling."""

    STOP = "stop"
    """A stop token or a stop string; it is the last of `token_ids`."""
    LENGTH = "length"
    """The budget of new tokens was used up."""
    ABORT = "abort"
    """Somebody aborted the request; the tokens so far are valid."""


class LogprobKind(StrEnum):
    """Which distribution an engine's log-probabilities belong to."""

    SAMPLED = "sampled"
    """Of the distribution that was sampled from, temperature applied. What a trainer needs."""
    RAW = "raw"
    """Of the model's unscaled logits; equal to SAMPLED only at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. The loop clamps `max_new_tokens` to what the limits leave."""

    temperature: float = 1.0
    """0 is greedy; log-probabilities are then those at temperature 1."""
    top_p: float = 1.0
    top_k: int | None = None
    """None keeps every token."""
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    """Stop strings. A turn that they end gets its closing token from the codec, with mask 0."""
    stop_ids: tuple[int, ...] = ()
    """Stop token ids; empty takes the codec's."""
    banned_ids: tuple[int, ...] = ()
    """Ids that must not be sampled: media placeholders, which have no image behind them."""
    seed: int | None = None
    """None leaves the engine's own generator alone."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Engine-specific keys, passed through as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One turn to sample."""

    request_id: str
    """Fixed-width and unique: SGLang aborts by prefix."""
    session_id: str
    """The episode. Engines route by it and keep its key-value cache between turns."""
    root_id: str | None = None
    """The session that this one was forked from, directly or not; it has the shared tokens cached.
    None for an episode of its own."""
    wire_ids: Sequence[int]
    """The whole context, one placeholder per image. A rollout gives a typed array, which equals no
    list or tuple: send and compare `list(wire_ids)`."""
    images: Sequence[Image]
    """All images of the context, in the order of their placeholders."""
    features: Sequence[ImageFeatures] = ()
    """The processor's outputs for `images`, for engines in this process; HTTP engines ignore it."""
    train_length: int
    """Length of the context with placeholders expanded; `prompt_tokens` must equal it."""
    sampling: Sampling
    context: PolicyContext | None = None
    """For engines that read messages instead of ids: scripts and chat endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine sampled."""

    token_ids: Sequence[int]
    """(T,) with the stop token, or the tokens of a stop string, included."""
    logprobs: Sequence[float]
    """(T,) of the sampled distribution."""
    finish_reason: FinishReason
    prompt_tokens: int | None
    """Length of the prompt that the engine saw, images expanded. None only when the request was
    aborted in the queue."""
    cached_tokens: int = 0
    """How many of them came from a prefix cache."""
    weight_version: str | None = None
    """None when the engine does not tell."""
    queue_seconds: float = 0.0
    """Time spent waiting before the first forward, as far as the engine knows it."""
    text: str | None = None
    """The reply of an engine that returns no tokens; `token_ids` is then empty. Only a rollout
    without a codec takes it, and its trajectories have no ledger."""
    text_tokens: int = 0
    """Length of `text` as the engine counts it; 0 if it does not."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else the engine reported (routed experts, speculative statistics), passed through."""


class Engine(Protocol):
    """Whatever samples tokens from token ids.

    Errors: an `EngineFault` with its kind, and nothing else, for every failure of the
    infrastructure. `is_away` of the fault says that the engine is unreachable or refuses all
    requests. An engine does not retry by itself: the rollout does. `generate` is cancellation-safe:
    a cancelled call frees the request.
    """

    @property
    def name(self) -> str:
        """Short name for records, such as "sglang"."""
        ...

    @property
    def logprob_kind(self) -> LogprobKind:
        """What `generate` returns; a rollout refuses RAW at a temperature other than 1."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn."""
        ...

    async def abort(self, request_id: str) -> None:
        """Stop a running request; its `generate` returns the tokens so far with ABORT."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Free what is kept for an episode. Unknown sessions are ignored."""
        ...

    async def aclose(self) -> None:
        """Release everything; closing twice is fine."""
        ...


@runtime_checkable
class ProbingEngine(Protocol):
    """An engine that can be asked cheaply whether it is back.

    Optional. For an engine without it, one waiting request is sent instead.
    """

    async def probe(self) -> None:
        """Return if requests are served.

        Raises:
            EngineFault: They are not, with `is_away`.
        """
        ...


@runtime_checkable
class CheckingEngine(Protocol):
    """An engine that can tell before a run that every episode of it would fail.

    Optional. Whatever a check misses faults the first episodes alike, which stops a run too.
    """

    async def check(self, codec: ChatCodec, sampling: Sampling) -> None:
        """Return if the engine plays this codec's ids with this sampling, or is away for now.

        Raises:
            ConfigurationError: It does not: a missing flag of its server, or another model.
        """
        ...
