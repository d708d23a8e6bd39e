"""An engine whose ids no tokenizer would write: encoding its text again gives other ids."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

from envkit.errors import EngineFault
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, LogprobKind
from envkit.rollout.stopping import ended
from envkit.rollout.token_stream import Report
from envkit.tokens import ChatCodec
from envkit.trajectory.segment import SegmentKind
from envkit.trajectory.trajectory import Trajectory

Write = Callable[[str], str]
"""Returns the reply to a decoded context."""


class OddEngine:
    """Samples every character as tokens of its own, and remembers each prompt and reply."""

    name = "odd"
    logprob_kind = LogprobKind.SAMPLED

    def __init__(self, codec: ChatCodec, write: Write, *, faults: Sequence[int] = ()) -> None:
        self.codec, self.write, self.faults = codec, write, set(faults)
        self.seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.requests: list[GenerateRequest] = []
        self.gate: asyncio.Event | None = None
        """Set to let requests pass; None holds none."""

    async def generate(self, request: GenerateRequest) -> Generation:
        number = len(self.requests)
        self.requests.append(request)
        pads = sum(request.wire_ids.count(one) for one in self.codec.media_ids)
        assert pads == len(request.images), "an image did not reach the engine"
        if self.gate is not None:
            await self.gate.wait()
        if number in self.faults:
            raise EngineFault("the engine broke", retryable=False)
        text = self.write(self.codec.decode_all(request.wire_ids))
        ids = [i for letter in text for i in self.codec.encode_reply(letter)[:-1]]
        ids = [*ids, self.codec.encode_reply("x")[-1]]
        ids = [*ended(ids, request.sampling, self.codec.decode_all)]
        finish = FinishReason.STOP
        if len(ids) > request.sampling.max_new_tokens:
            ids, finish = ids[: request.sampling.max_new_tokens], FinishReason.LENGTH
        self.seen.append((tuple(request.wire_ids), tuple(ids)))
        return Generation(
            token_ids=tuple(ids),
            logprobs=tuple(-(1 + n % 7) / 8 for n in range(len(ids))),
            finish_reason=finish,
            prompt_tokens=request.train_length,
        )

    async def abort(self, request_id: str) -> None: ...

    async def end_session(self, session_id: str) -> None: ...

    async def aclose(self) -> None: ...


class StreamingOddEngine(OddEngine):
    """Reports ids while it samples, in pieces of odd sizes."""

    def __init__(
        self,
        codec: ChatCodec,
        write: Write,
        *,
        sizes: Sequence[int] = (1, 3, 2),
        breaks: Mapping[int, int] | None = None,
        faults: Sequence[int] = (),
    ) -> None:
        """Create the engine.

        Args:
            codec: Turns text into ids.
            write: Writes the replies.
            sizes: Ids of each report, over and over.
            breaks: How many ids a request reports before it fails, by its number.
            faults: Numbers of requests that fail before the first id.
        """
        super().__init__(codec, write, faults=faults)
        self.sizes, self.breaks = sizes, dict(breaks or {})
        self.pass_at: Mapping[int, asyncio.Event] = {}
        """Events to wait for once so many ids were reported."""

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        """Sample a reply, then report it piece by piece."""
        number = len(self.requests)
        whole = await self.generate(request)
        broken = self.breaks.get(number)
        if broken is not None:
            self.seen.pop()
        ids = whole.token_ids[:broken]
        at, sizes = 0, cycle(self.sizes)
        while at < len(ids):
            size = next(sizes)
            report(ids[at : at + size])
            for place, event in self.pass_at.items():
                if at < place <= at + size:
                    await event.wait()
            at += size
            await asyncio.sleep(0)
        if broken is not None:
            raise EngineFault("the engine broke while it sampled", retryable=True)
        return whole


def assert_exact(trajectory: Trajectory, engine: OddEngine) -> None:
    """Check that every reply of a record was sampled from exactly the ids before it."""
    seen = list(engine.seen)
    for sequence in trajectory.sequences():
        ids: tuple[int, ...] = ()
        for index, segment in enumerate(sequence.segments):
            if segment.kind is SegmentKind.MODEL and index >= sequence.at:
                assert (ids, segment.wire_ids) in seen, "the engine saw something else"
                seen.remove((ids, segment.wire_ids))
            ids += segment.wire_ids
