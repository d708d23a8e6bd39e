"""SGLang's engine with slime's bookkeeping for every request.

One engine serves all samples of a process; the context of `generate` identifies a request's sample.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from envkit.errors import EngineFault
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, Sampling
from envkit.rollout.interrupt import Interrupt
from envkit.tokens import ChatCodec
from envkit.trajectory import SegmentKind, Trajectory
from envkit_sglang.engine import SGLangEngine
from envkit_training.engine import ABORTED

EXPERTS: Final = "routed_experts"
START: Final = "routed_experts_start_len"
TOP_P_IDS: Final = ("top_p_token_ids", "top_p_kept_token_ids")
META: Final = "slime_meta"
"""Key in a generation's extras for counts that slime sums per sample."""


class GenerateState(Protocol):
    """The attributes read from slime's or miles' `GenerateState`."""

    aborted: bool
    """True once the trainer has enough samples."""
    tokenizer: Any
    processor: Any


class Span(Protocol):
    """Opens a trace span around a request; yields an object that accepts attributes."""

    def __call__(self, attributes: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return the span."""
        ...


def no_span(attributes: dict[str, Any]) -> AbstractContextManager[Any]:
    """Open no span: the context's value is the attributes."""
    return nullcontext(attributes)


@dataclass(kw_only=True)
class Call:
    """The sample being generated in this context."""

    state: GenerateState
    interrupt: Interrupt
    """Shared by all episodes that the same abort ends."""
    span: Span = no_span
    attributes: Any = dict
    """Makes span attributes of `meta_info` (slime's `build_sglang_meta_trace_attrs`)."""
    wants_experts: bool = False
    wants_top_p: bool = False
    known_rows: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Length of the sequence after each reply whose experts are known, ascending; by session, since
    each of several agents has one."""

    def is_aborted(self) -> bool:
        """Check the trainer's flag; once it is set, ask every episode to stop."""
        if self.state.aborted:
            self.interrupt.fire()
            return True
        return False

    @contextmanager
    def current(self) -> Generator[None]:
        """Make this the call of the requests in the context."""
        token = CURRENT.set(self)
        try:
            yield
        finally:
            CURRENT.reset(token)

    def take_over(self, earlier: Trajectory) -> None:
        """Record which experts an aborted trajectory already has."""
        length = 0
        known = self.known_rows[earlier.episode_id] = list[int]()
        for segment in earlier.sequences()[-1].segments if earlier.segments else ():
            length += segment.token_count
            if segment.kind is SegmentKind.MODEL and EXPERTS in segment.extras:
                known.append(length)

    def start_row(self, request: GenerateRequest) -> int:
        """Return the first position without experts.

        There is a row for every token except the last. Rows after the prompt belong to a discarded
        reply.
        """
        known = self.known_rows.get(request.session_id, [])
        while known and known[-1] > request.train_length:
            known.pop()
        return known[-1] - 1 if known else 0


CURRENT: ContextVar[Call | None] = ContextVar("envkit_slime_call", default=None)


class SlimeEngine(SGLangEngine):
    """SGLang's engine: no request after an abort, each in a trace span, with routed experts."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn; see `in_call`."""
        return await in_call(super().generate, request)

    async def check(self, codec: ChatCodec, sampling: Sampling) -> None:
        """Do nothing: the trainer started the server, and its abort could not end a slow check."""
        del codec, sampling


async def in_call(
    ask: Callable[[GenerateRequest], Awaitable[Generation]], request: GenerateRequest
) -> Generation:
    """Sample one turn for the current call, or return an abort without asking the server.

    Raises:
        EngineFault: As `ask`, or the server omits data that the run needs.
    """
    call = CURRENT.get()
    if call is None:
        return await ask(request)
    if call.is_aborted():
        # slime stops the server's requests once and does not pause it (sglang_rollout.abort).
        return ABORTED
    start = call.start_row(request)
    if call.wants_experts and start:
        extras = {**request.sampling.extras, START: start}
        request = replace(request, sampling=replace(request.sampling, extras=extras))
    with call.span({"max_new_tokens": request.sampling.max_new_tokens}) as span:
        generation = await ask(request)
        update = getattr(span, "update", None)
        if callable(update):
            update(call.attributes(_meta(generation)))
    call.is_aborted()  # before the environment's step, so that it does not run
    return _checked(call, request, generation, start)


def _checked(
    call: Call, request: GenerateRequest, generation: Generation, start: int
) -> Generation:
    """Return the generation with its counts; raise if the server omits something."""
    extras = dict(generation.extras)
    if call.wants_experts and extras.get(EXPERTS) is not None and generation.token_ids:
        extras[START] = start  # stock SGLang does not return it
        known = call.known_rows.setdefault(request.session_id, [])
        known.append(request.train_length + len(generation.token_ids))
    if generation.finish_reason is not FinishReason.ABORT:
        if call.wants_experts and extras.get(EXPERTS) is None:
            raise EngineFault(
                "--use-rollout-routing-replay needs the experts of every token, and the server "
                "returned none: start it with --enable-return-routed-experts"
            )
        if call.wants_top_p and not any(extras.get(key) is not None for key in TOP_P_IDS):
            raise EngineFault(
                "--rollout-top-p below 1 needs the ids that top-p kept, and the server returned "
                "none: use slime's patched SGLang, or --rollout-top-p 1"
            )
    extras[META] = {
        "prompt_tokens": generation.prompt_tokens or 0,
        "cached_tokens": generation.cached_tokens,
        "completion_tokens": len(generation.token_ids),
    }
    return replace(generation, extras=extras)


def _meta(generation: Generation) -> dict[str, Any]:
    """Return a generation in its original `meta_info` form."""
    return {
        **generation.extras,
        "id": generation.extras.get("rid"),
        "finish_reason": {"type": generation.finish_reason.value},
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": len(generation.token_ids),
        "cached_tokens": generation.cached_tokens,
        "weight_version": generation.weight_version,
        "queue_time": generation.queue_seconds,
    }
