"""One episode of one agent: its key, its limits, and every reply that it received.

A request continues the recorded reply whose conversation is the longest prefix of the request's
messages. Only the new messages are encoded, so sampled ids are never tokenized again. Any other
request starts a sequence with its own prompt, which is always exact.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from envkit.env import Env
from envkit.errors import (
    ConfigurationError,
    EngineFault,
    ImageError,
    LedgerFault,
    TemplateError,
    describe,
)
from envkit.messages import Message, images_of, message
from envkit.reply import Reply
from envkit.rollout.boundary import is_own_cancellation
from envkit.rollout.encoding import EpisodeEncoder
from envkit.rollout.engine import FinishReason, Generation
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Room, room_for_reply
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.rollout.sampler import Sampler
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.threads.pool import WorkerPool
from envkit.tokens import ChatCodec
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit_gateway.lanes import Lanes
from envkit_gateway.matching import Committed, is_rejected, is_retry
from envkit_gateway.messages import PrefixKeys, codec_messages
from envkit_gateway.replies import reply_of
from envkit_gateway.request import AgentRequest, RequestRefused, bad_request
from envkit_gateway.trace import Trace
from envkit_gateway.turn import ForkReason, Lane, Turn, TurnState

_UNRENDERABLE: Final = (TemplateError, ImageError, ConfigurationError, RecursionError)
"""What a request's own content raises; deep schemas exceed the interpreter's recursion limit."""
_BAD_REQUEST: Final = 400
OVER: Final = "the episode of this API key is over"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of one agent's episode in addition to the rollout's."""

    max_sequences: int = 512
    """Maximum sequences; an agent that rewrites its history at every step needs one per turn."""
    grace_s: float = 30.0
    """Seconds that a reply waits for the retry of a client that disconnected."""


class Session:
    """Answers an agent's requests and records them."""

    def __init__(
        self,
        setup: Setup,
        spec: EpisodeSpec,
        pool: WorkerPool,
        interrupt: Interrupt,
        *,
        env: Env,
        task: Task | None = None,
        limits: SessionLimits | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Open an episode.

        Args:
            setup: Engine, codec, limits and sampling. The client's own sampling parameters are
                ignored, except that it may shorten and stop a reply.
            spec: The episode.
            pool: Threads for tokenization and images.
            interrupt: Ends the episode early.
            env: For engines that read the environment, such as a scripted policy.
            task: The environment's, for the same engines.
            limits: None takes the defaults.
            trace: Gets every committed reply; None keeps no trace.

        """
        self.key = f"sk-envkit-{secrets.token_hex(16)}"
        self.setup, self.spec, self.env = setup, spec, env
        self.limits, self.trace = limits or SessionLimits(), trace
        self._lanes = Lanes(task or {})
        self.turns: list[Turn] = []
        self.counts: Counter[str] = Counter()
        """Outcomes of requests: "continued", "new", "replayed", "refused", and why a chat template
        could not continue a reply."""
        self.sampled_tokens = 0
        self.stop_reason: StopReason | None = None
        """The limit that ended the episode; None if none did."""
        self.is_closed = False
        self.error: ConfigurationError | None = None
        self.refusal: FaultRecord | None = None
        """The last request, if the gateway could not do what it asked; None after a reply."""
        self._faults: dict[str, FaultRecord] = {}
        self._pool, self._interrupt = pool, interrupt
        self._committed = Committed()
        self._requests: dict[str, Turn] = {}
        self._numbers = count()
        self._asked: Counter[str] = Counter()

    @property
    def lanes(self) -> Sequence[Lane]:
        """The sequences, in the order in which they began."""
        return self._lanes.all

    @property
    def fault(self) -> FaultRecord | None:
        """A failure that reached the agent and that no retry resolved."""
        return next(iter(self._faults.values()), None)

    @property
    def latest(self) -> Turn | None:
        """The latest call that has a reply; None before the first reply. Safe on any thread."""
        replied = (one for one in [*self.turns] if one.reply is not None)
        return max(replied, key=lambda one: one.number, default=None)

    @property
    def is_sampling(self) -> bool:
        """Whether a reply is being sampled now."""
        return any(one.task is not None and not one.task.done() for one in self.turns)

    async def open(self, request: AgentRequest) -> Turn:
        """Return the turn that answers a request: a new turn, or the existing one for a retry.

        Await `turn.task`; then the turn has a `reply`, or an `error`.

        Raises:
            RequestRefused: It cannot be answered; nothing was sampled.
        """
        if self.is_closed:
            raise RequestRefused(403, OVER)
        try:
            return await self._opened(request)
        except RequestRefused:
            self.counts["refused"] += 1
            raise

    async def _opened(self, request: AgentRequest) -> Turn:
        earlier = self._requests.get(request.key)
        if earlier is not None and is_retry(request, earlier):
            self.counts["replayed"] += 1
            return earlier
        self._check_limits()
        if earlier is not None and is_rejected(earlier):
            earlier.state = TurnState.SUPERSEDED
        prefix = PrefixKeys(request.tools_text, request.messages)
        turn, covered = self._placed(request, prefix.keys)
        turn.task = asyncio.create_task(self._answer(turn, request, prefix, covered))
        try:
            await asyncio.shield(turn.encoded)
        except asyncio.CancelledError as error:
            if self.is_closed and not is_own_cancellation(error):
                raise RequestRefused(403, OVER) from error
            turn.encoded.add_done_callback(_read)
            self.client_left(turn)
            raise
        return turn

    @property
    def _codec(self) -> ChatCodec:
        assert self.setup.codec is not None  # a `TextSession` does not ask for it
        return self.setup.codec

    def _encoder(self, record: EpisodeRecord) -> EpisodeEncoder:
        return EpisodeEncoder(self.setup, self._codec, self.spec, self._pool, record)

    def token_text(self, token: int) -> str:
        """Return the text of one token."""
        return self._codec.decode_all([token])

    async def count(self, request: AgentRequest) -> int:
        """Return the length of a request's prompt in tokens, without recording it.

        Raises:
            RequestRefused: The chat template cannot render it.
        """
        record = EpisodeRecord()
        record.messages += self._codec_messages(request, 0)
        record.tools = request.tools
        try:
            return len((await self._encoder(record).prompt()).train_ids)
        except _UNRENDERABLE as error:
            raise bad_request(f"the chat template cannot render this: {error}") from error

    def note_defect(self, error: Exception) -> None:
        """Fault the episode for an error of the gateway itself."""
        fault = LedgerFault(f"the gateway failed: {describe(error)}").with_traceback(
            error.__traceback__
        )
        self._faults[""] = FaultRecord.of(FaultPlace.LEDGER, fault)

    def note_refusal(self, error: RequestRefused) -> None:
        """Note a refused request; a limit, such as that of the context, is none of these."""
        if error.status == _BAD_REQUEST and error.code is None:
            fault = LedgerFault(f"the gateway refused what the agent asked for: {error}")
            self.refusal = FaultRecord.of(FaultPlace.LEDGER, fault)

    def client_left(self, turn: Turn) -> None:
        """Note that a client stopped waiting; if it has no reply, it disconnected."""
        if turn.state is TurnState.RUNNING and not turn.waiting:
            turn.state = TurnState.LOST
            loop = asyncio.get_running_loop()
            loop.call_later(self.limits.grace_s, self._give_up, turn)

    async def close(self) -> None:
        """End the episode: later requests get 403, running ones are cancelled."""
        self.is_closed = True
        tasks = [one.task for one in self.turns if one.task is not None and not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _give_up(self, turn: Turn) -> None:
        if turn.state is TurnState.LOST and turn.task is not None and not turn.waiting:
            turn.task.cancel()

    def _check_limits(self) -> None:
        most = self.setup.limits.max_turns
        if most is not None and len(self.turns) >= most:
            raise self._ended(StopReason.MAX_TURNS, f"limits.max_turns is {most}")
        if len(self.lanes) >= self.limits.max_sequences:
            why = f"agent.max_sequences is {self.limits.max_sequences}"
            raise self._ended(StopReason.MAX_SEQUENCES, why)

    def _ended(self, reason: StopReason, why: str) -> RequestRefused:
        """Record that a limit ended the episode; return the refusal."""
        self.stop_reason = self.stop_reason or reason
        return RequestRefused(403, f"the episode reached a limit: {why}")

    def _placed(self, request: AgentRequest, keys: Sequence[str]) -> tuple[Turn, int]:
        """Return a turn in the sequence that it continues, and how many messages that covers."""
        parent, covered = self._committed.longest(keys, request.messages)
        lane = self._lanes.after(parent, request) if parent else self._lanes.start(request)
        turn = Turn(
            number=next(self._numbers),
            lane=lane,
            parent=parent,
            request_key=request.key,
            prefix=keys[-1],
            place=len(keys),
            asked=request.messages,
            has_instructions=request.has_instructions,
            unenforced=request.unenforced,
            encoded=asyncio.get_running_loop().create_future(),
        )
        if parent is not None:
            parent.children.append(turn)
        self.turns.append(turn)
        self._requests[request.key] = turn
        return turn, covered

    async def _answer(
        self, turn: Turn, request: AgentRequest, prefix: PrefixKeys, covered: int
    ) -> None:
        try:
            try:
                room = await self._encode(turn, request, covered)
            except _UNRENDERABLE as error:
                raise bad_request(f"the chat template cannot render this: {error}") from error
        except BaseException as error:  # the request's own answer says what failed
            self._withdraw(turn, error)
            turn.encoded.set_exception(error)
            turn.encoded.add_done_callback(_read)
            if is_own_cancellation(error):
                raise
            return
        turn.encoded.set_result(None)
        await self._sample(turn, request, prefix, room)

    def _withdraw(self, turn: Turn, error: BaseException) -> None:
        """Forget a request that got no reply, so that a retry continues where it did."""
        turn.state, turn.error = TurnState.FAILED, error
        self.turns.remove(turn)
        if self._requests.get(turn.request_key) is turn:
            del self._requests[turn.request_key]
        self._lanes.detach(turn)
        self._note(turn, error)

    async def _encode(self, turn: Turn, request: AgentRequest, covered: int) -> Room:
        """Append the request's new messages to the turn's sequence, or start one with all.

        Returns:
            The room for the reply.

        Raises:
            RequestRefused: The context or a limit has no room.
        """
        if turn.parent is not None:
            try:
                room = await self._extend(turn, request, covered)
            except TemplateError as error:
                self.counts[f"template: {error}"[:160]] += 1
            else:
                self.counts["continued"] += 1
                return room
            self._lanes.detach(turn)
            turn.lane, turn.parent = self._lanes.start(request, ForkReason.TEMPLATE), None
        lane = turn.lane
        pending = self._codec_messages(request, 0)
        lane.record.messages += pending
        encoded = await self._encoder(lane.record).prompt()
        length, images = len(encoded.train_ids), len(images_of(pending))
        room = self._room(request, context_tokens=length, response_tokens=0, images=images)
        lane.record.ledger.start(encoded, turn=0)
        lane.prompt = list(lane.record.messages)
        lane.turns.append(turn)
        self.counts["new"] += 1
        return room

    async def _extend(self, turn: Turn, request: AgentRequest, covered: int) -> Room:
        """Append new messages after a recorded reply.

        Raises:
            TemplateError: The template cannot render them after a reply.
            RequestRefused: The context or a limit has no room.
        """
        lane, started = turn.lane, time.perf_counter()
        record, ledger = lane.record, lane.record.ledger
        pending = tuple(self._codec_messages(request, covered))
        before = len(record.messages)
        record.messages += pending
        encoder = self._encoder(record)
        try:
            encoded = await encoder.observation(pending)
            if encoded.is_prompt:
                raise TemplateError("the template renders the history in another form")
            length = len(encoded.train_ids)
            room = self._room(
                request,
                context_tokens=ledger.train_length + length,
                response_tokens=ledger.response_tokens + length,
                images=len(ledger.images) + len(encoded.images),
            )
            await encoder.check(pending, encoded)
        except BaseException:
            del record.messages[before:]
            raise
        record.add_observation(encoded, time.perf_counter() - started)
        if lane.trunk is not None and not lane.turns:
            lane.prompt = list(record.messages)
        lane.turns.append(turn)
        return room

    def _codec_messages(self, request: AgentRequest, covered: int) -> list[Message]:
        names = {call.id: call.name for entry in request.messages for call in entry.calls}
        written = codec_messages(
            request.messages[covered:],
            names=names,
            is_start=covered == 0,
            takes_tool_images="tool" in self._codec.audit().image_roles,
            reads_parts=self._codec.reads_parts,
        )
        return [self._codec.readable(entry) for entry in written]

    def _room(
        self, request: AgentRequest, *, context_tokens: int, response_tokens: int, images: int
    ) -> Room:
        """Return the room for a reply.

        Args:
            request: May ask for a shorter one.
            context_tokens: Length of the context.
            response_tokens: Those of them after the prompt.
            images: Number of images in the context.

        Raises:
            RequestRefused: There is none.
        """
        limits = self.setup.limits
        if limits.max_images is not None and images > limits.max_images:
            raise bad_request(
                f"the context has {images} images, limits.max_images is {limits.max_images}",
                code="context_length_exceeded",
            )
        wanted = self.setup.sampling.max_new_tokens
        room = room_for_reply(
            limits,
            requested=wanted if request.max_tokens is None else min(wanted, request.max_tokens),
            already=0,
            response_tokens=response_tokens,
            sampled_tokens=self.sampled_tokens,
            context_tokens=context_tokens,
        )
        if room.tokens >= 1:
            return room
        if room.reason is StopReason.CONTEXT_TOKENS:
            most = limits.max_context_tokens
            raise bad_request(  # clients look for these words and shorten their history
                f"prompt is too long: {context_tokens} tokens > {most} maximum "
                f"(maximum context length is {most} tokens)",
                code="context_length_exceeded",
            )
        raise self._ended(room.reason or StopReason.TURN_TOKENS, f"{room.reason}")

    async def _sample(
        self, turn: Turn, request: AgentRequest, prefix: PrefixKeys, room: Room
    ) -> None:
        """Sample a reply and commit it, or note in the turn what failed."""
        record = turn.lane.record
        draft = record.draft = TurnDraft(turn=record.turn, prompt_tokens=record.ledger.train_length)
        started = time.perf_counter()
        try:
            generation = await self._sampler(turn, request).generate(draft, room, record, self.env)
            if generation.finish_reason is FinishReason.ABORT:
                raise EngineFault("the episode was stopped while the engine sampled")
        except BaseException as error:  # an engine may be anybody's code
            record.draft = None
            self._withdraw(turn, error)
            if is_own_cancellation(error):
                raise
            return
        draft.add_generation(generation, time.perf_counter() - started)
        self._commit(turn, request, draft, generation)
        assert turn.reply is not None
        self._committed.add(prefix.add(turn.reply.message), turn)
        if self.trace is not None:
            self.trace.add(turn)
            await self.trace.flush()

    def _note(self, turn: Turn, error: BaseException) -> None:
        """Record what failed; a refused request is the agent's to handle."""
        if isinstance(error, RequestRefused):
            return
        if isinstance(error, ConfigurationError):
            self.error = error
        elif isinstance(error, EngineFault | LedgerFault):
            where = FaultPlace.GENERATE if isinstance(error, EngineFault) else FaultPlace.LEDGER
            self._faults[turn.prefix] = FaultRecord.of(where, error)
        elif isinstance(error, Exception):
            fault = LedgerFault(f"the request failed: {describe(error)}")
            self._faults[turn.prefix] = FaultRecord.of(FaultPlace.LEDGER, fault)

    def _sampler(self, turn: Turn, request: AgentRequest) -> Sampler:
        setup, sampling = self.setup, self.setup.sampling
        repeats = self._asked[turn.prefix]  # best-of-n asks the same more than once
        self._asked[turn.prefix] += 1
        if sampling.seed is not None and repeats:
            sampling = replace(sampling, seed=derive_seed(sampling.seed, turn.prefix, repeats))
        if request.stop:
            stop = tuple(dict.fromkeys((*sampling.stop, *request.stop)))
            sampling = replace(sampling, stop=stop)
        if sampling is not setup.sampling:
            setup = replace(setup, sampling=sampling)
        return Sampler(setup, self.spec, self._interrupt)

    def _commit(
        self, turn: Turn, request: AgentRequest, draft: TurnDraft, generation: Generation
    ) -> None:
        """Record a reply. Nothing is awaited until later requests can continue it."""
        record = turn.lane.record
        text = draft.response_text = self._add_reply(record, draft, generation)
        self.sampled_tokens += draft.response_tokens
        record.say(message("assistant", text))
        record.close_turn()
        turn.local, turn.said = record.turn - 1, len(record.messages)
        turn.segments = len(record.ledger.segments)
        said = Reply(text=text, finish=generation.finish_reason, opened=draft.opened or "")
        turn.reply = reply_of(said, generation, request, number=turn.number)
        self._faults.pop(turn.prefix, None)
        self.refusal = None

    def _add_reply(self, record: EpisodeRecord, draft: TurnDraft, generation: Generation) -> str:
        """Append a reply to the ledger and return its text."""
        record.ledger.add_reply(
            generation.token_ids,
            generation.logprobs,
            turn=draft.turn,
            finish_reason=generation.finish_reason.value,
            weight_version=generation.weight_version,
            extras=generation.extras or {},
        )
        encoder = self._encoder(record)
        draft.opened = encoder.opened(draft.turn)
        return encoder.decode(draft.turn)


def _read(future: "asyncio.Future[None]") -> None:
    """Read a future's exception, in case nothing else does."""
    if not future.cancelled():
        future.exception()
