"""The engine protocol: token ids in, sampled token ids with log-probabilities out.

Most engines never see text. They return ids and log-probabilities, the stop token included, and the
codec decodes the text. A chat endpoint is the exception: it reads messages and returns text, and
its episodes have no token ledger.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from envkit.env import PolicyContext
from envkit.images import Image
from envkit.reply import FinishReason
from envkit.rollout.token_stream import Report
from envkit.seeds import checked_seed
from envkit.tokens.codec import ChatCodec
from envkit.tokens.encoded import Encoded, ImageFeatures
from envkit.tools import ToolSpec


class LogprobKind(StrEnum):
    """Distribution of an engine's log-probabilities."""

    SAMPLED = "sampled"
    """The distribution that was sampled from, temperature applied. Trainers need this one."""
    RAW = "raw"
    """The model's unscaled logits; equal to SAMPLED only at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters. The loop clamps `max_new_tokens` to the remaining limits."""

    temperature: float = 1.0
    """0 is greedy; log-probabilities are then those at temperature 1."""
    top_p: float = 1.0
    top_k: int | None = None
    """None keeps every token."""
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    """Stop strings. If one ends a turn, the codec adds the closing token with mask 0."""
    stop_ids: tuple[int, ...] = ()
    """Stop token ids; empty uses the codec's."""
    banned_ids: tuple[int, ...] = ()
    """Ids that must not be sampled, such as media placeholders, which would have no image."""
    seed: int | None = None
    """None uses the engine's own generator."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Engine-specific keys, passed through unchanged."""

    def __post_init__(self) -> None:
        """Check the seed.

        Raises:
            ConfigurationError: It is neither None nor an integer of at least 0.
        """
        if self.seed is not None:
            object.__setattr__(self, "seed", checked_seed(self.seed))

    def for_codec(self, codec: ChatCodec) -> "Sampling":
        """Return the sampling with the codec's stop ids, and its media placeholders banned."""
        return replace(
            self,
            stop_ids=self.stop_ids or codec.stop_ids,
            banned_ids=(*self.banned_ids, *codec.media_ids),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One turn to sample."""

    request_id: str
    """Unique and of fixed width, because SGLang aborts by prefix."""
    session_id: str
    """The episode. Engines route by it and keep its key-value cache between turns."""
    root_id: str | None = None
    """The session at the root of this fork, which has the shared tokens cached; None for an episode
    that is not a fork."""
    wire_ids: Sequence[int]
    """The whole context, one placeholder per image. A rollout passes a typed array, which never
    equals a list or tuple: send and compare `list(wire_ids)`."""
    images: Sequence[Image]
    """All images of the context, in the order of their placeholders."""
    features: Sequence[ImageFeatures] = ()
    """The processor's outputs for `images`, for in-process engines; HTTP engines ignore them."""
    train_length: int
    """Length of the context with placeholders expanded; `prompt_tokens` must equal it."""
    sampling: Sampling
    top_logprobs: int = 0
    """Number of most probable tokens to report at each position; only for a `RankingEngine`."""
    context: PolicyContext | None = None
    """For engines that read messages instead of ids: scripts and chat endpoints."""
    tools: Sequence[ToolSpec] = ()
    """The tools that the model sees, for chat endpoints; the context's ids contain them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The result of sampling one turn."""

    token_ids: Sequence[int]
    """(T,), including the stop token or the tokens of a stop string."""
    logprobs: Sequence[float]
    """(T,) of the sampled distribution."""
    finish_reason: FinishReason
    prompt_tokens: int | None
    """Length of the prompt as the engine saw it, images expanded. None only if the request was
    aborted in the queue."""
    cached_tokens: int = 0
    """Number of prompt tokens that came from a prefix cache."""
    weight_version: str | None = None
    """None if the engine does not report it."""
    queue_seconds: float = 0.0
    """Seconds before the first forward pass, if the engine reports them."""
    text: str | None = None
    """The reply of an engine that returns no tokens; `token_ids` is then empty. Only a rollout
    without a codec accepts it, and its trajectories have no ledger."""
    text_tokens: int = 0
    """Length of `text` as the engine counts it; 0 if it does not."""
    top_logprobs: Sequence[Sequence[tuple[int, float]]] = ()
    """(T, k) ids and log-probabilities in descending order, if the request asks for them."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Anything else the engine reported (routed experts, speculative statistics), unchanged."""


class Engine(Protocol):
    """Samples tokens from token ids.

    Every infrastructure failure raises an `EngineFault` with its kind, and nothing else. Its
    `is_unavailable` says that the engine is unreachable or rejects all requests. An engine does
    not retry, because the rollout does. `generate` is cancellation-safe: a cancelled call frees the
    request.
    """

    @property
    def name(self) -> str:
        """Short name for records, such as "sglang"."""
        ...

    @property
    def logprob_kind(self) -> LogprobKind:
        """Kind of the log-probabilities; a rollout rejects RAW at a temperature other than 1."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn."""
        ...

    async def abort(self, request_id: str) -> None:
        """Stop a running request; its `generate` returns the tokens so far with ABORT."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Free everything kept for an episode. Unknown sessions are ignored."""
        ...

    async def aclose(self) -> None:
        """Release everything; safe to call twice."""
        ...


@runtime_checkable
class ProbingEngine(Protocol):
    """An engine with a cheap availability check.

    Optional. Without it, the rollout sends one waiting request instead.
    """

    async def probe(self) -> None:
        """Return if the engine serves requests.

        Raises:
            EngineFault: It does not; `is_unavailable` is set.
        """
        ...


@runtime_checkable
class RankingEngine(Protocol):
    """An engine that can report the most probable tokens at each position.

    Optional. A rollout never asks for them; clients of an agent's gateway may.
    """

    @property
    def max_top_logprobs(self) -> int:
        """The most that a request may ask for."""
        ...


@runtime_checkable
class StreamingEngine(Protocol):
    """An engine that can report tokens while it samples.

    Optional. A rollout reads whole replies only; clients of an agent's gateway may stream.
    """

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        """Sample one turn as `generate` does, and report ids while it is sampled.

        Args:
            request: The turn.
            report: Called on the event loop with further ids, any number at a time. The result
                begins with all of them, and is the only one that is recorded.
        """
        ...


@runtime_checkable
class CheckingEngine(Protocol):
    """An engine that can detect before a run that every episode would fail.

    Optional. A problem that the check misses faults the first episodes alike, which stops a run
    too.
    """

    async def check(self, codec: ChatCodec, sampling: Sampling) -> None:
        """Return if the engine can play this codec's ids and sampling, or is unavailable for now.

        Raises:
            ConfigurationError: Its server lacks a flag or serves another model.
        """
        ...


async def sample_once(engine: Engine, prompt: Encoded, sampling: Sampling) -> Generation:
    """Sample a reply that belongs to no episode.

    Raises:
        Fault: As the engine raises it.
    """
    session = uuid.uuid4().hex
    try:
        return await engine.generate(
            GenerateRequest(
                request_id=uuid.uuid4().hex,
                session_id=session,
                wire_ids=prompt.wire_ids,
                images=prompt.images,
                features=prompt.features,
                train_length=len(prompt.train_ids),
                sampling=sampling,
            )
        )
    finally:
        await engine.end_session(session)
