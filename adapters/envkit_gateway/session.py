"""One episode of one agent: its key, its limits, and every reply that it received.

A request continues the recorded reply whose conversation is the longest prefix of the request's
messages. Only the new messages are encoded, so sampled ids are never tokenized again. Any other
request starts a sequence with its own prompt, which is always exact.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar, Final

from envkit.env import Env
from envkit.errors import ConfigurationError, EngineFault, LedgerFault, TemplateError, describe
from envkit.messages import images_of, message
from envkit.reply import Reply
from envkit.rollout.boundary import is_own_cancellation
from envkit.rollout.encoding import EpisodeEncoder
from envkit.rollout.engine import FinishReason, Generation, RankingEngine, StreamingEngine
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import ReplyBudget, reply_budget
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.rollout.sampler import Sampler
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.seeds import derive_seed
from envkit.threads.pool import WorkerPool
from envkit.tokens import ChatCodec, Encoded
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit_gateway.codecs import UNRENDERABLE, Codecs
from envkit_gateway.deltas import GrowingReply, ReplyDeltas, TokenText
from envkit_gateway.matching import Committed, is_rejected, is_retry
from envkit_gateway.messages import PrefixKeys
from envkit_gateway.open_sequences import OpenSequences
from envkit_gateway.replies import reasoning_tokens, reply_of
from envkit_gateway.request import TOO_LONG, AgentRequest, RequestRefused, bad_request
from envkit_gateway.trace import Trace
from envkit_gateway.turn import ForkReason, Live, OpenSequence, Turn, TurnState

_UNABLE: Final = (400, 404)
"""Statuses of requests that the gateway cannot answer, whatever the episode has left."""
KEY_PREFIX: Final = "sk-envkit-model-"
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

    codecs: ClassVar[type[Codecs]] = Codecs
    """What renders the requests."""

    def __init__(
        self,
        setup: Setup,
        spec: EpisodeSpec,
        pool: WorkerPool,
        interrupt: Interrupt,
        *,
        env: Env,
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
            env: For engines that read the environment and its task, such as a scripted policy.
            limits: None takes the defaults.
            trace: Gets every committed reply; None keeps no trace.

        """
        self.key = f"{KEY_PREFIX}{secrets.token_hex(16)}"
        self.setup, self.spec, self.env = setup, spec, env
        self.limits, self.trace = limits or SessionLimits(), trace
        self._sequences = OpenSequences(dict(env.task))
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
        self._timers: list[asyncio.TimerHandle] = []
        self._asked: Counter[str] = Counter()
        self._codecs = self.codecs(setup.codec, pool)

    @property
    def sequences(self) -> Sequence[OpenSequence]:
        """The sequences, in the order in which they began."""
        return self._sequences.all

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

    async def open(self, request: AgentRequest) -> tuple[Turn, ...]:
        """Return the turns that answer a request: new ones, or the existing ones for a retry.

        Await each `turn.task`; then the turn has a `reply`, or an `error`.

        Raises:
            RequestRefused: It cannot be answered; nothing was sampled.
        """
        if self.is_closed:
            raise RequestRefused(403, OVER)
        try:
            await self._codecs.prepare(request)
            return await self._opened(request)
        except RequestRefused:
            self.counts["refused"] += 1
            raise

    async def _opened(self, request: AgentRequest) -> tuple[Turn, ...]:
        self._check_ranks(request)
        wanted = [replace(request, key=key) for key in _choice_keys(request)]
        known = [self._retried(one) for one in wanted]
        missing = known.count(None)
        # A retry samples nothing, so no limit applies to it.
        if missing:
            self._check_limits(missing)
        if missing < len(known):
            self.counts["replayed"] += 1
        pairs = zip(wanted, known, strict=True)
        turns = tuple(turn or self._begun(one) for one, turn in pairs)
        begun = [turn for turn, earlier in zip(turns, known, strict=True) if earlier is None]
        try:
            for turn in begun:
                # Another client may wait for the same reply: leaving must not cancel it.
                await asyncio.shield(turn.encoded)
        except asyncio.CancelledError as error:
            # The session cancelled the request, not the client.
            if self.is_closed and not is_own_cancellation(error):
                raise RequestRefused(403, OVER) from error
            for turn in begun:
                self.client_left(turn)
            raise
        except BaseException:
            for turn in begun:  # nobody will get the other choices
                self.client_left(turn)
                if turn.task is not None:
                    turn.task.cancel()
            raise
        return turns

    def _check_ranks(self, request: AgentRequest) -> None:
        """Check whether the engine can report as many log-probabilities as a client wants.

        Raises:
            RequestRefused: It cannot.
        """
        engine = self.setup.engine
        most = engine.max_top_logprobs if isinstance(engine, RankingEngine) else 0
        if request.top_logprobs > most:
            raise bad_request(
                f"top_logprobs can be at most {most} with engine {engine.name!r}, "
                f"got {request.top_logprobs}"
            )

    def _retried(self, request: AgentRequest) -> Turn | None:
        """Return the earlier turn that a request asks for again; None if it is a new one."""
        earlier = self._requests.get(request.key)
        return earlier if earlier is not None and is_retry(request, earlier) else None

    def _begun(self, request: AgentRequest) -> Turn:
        """Return a new turn, which is being encoded."""
        earlier = self._requests.get(request.key)
        if earlier is not None and is_rejected(earlier):
            earlier.state = TurnState.SUPERSEDED
        prefix = PrefixKeys(self._codecs.start_text(request), request.messages)
        turn, covered = self._placed(request, prefix.keys)
        turn.encoded.add_done_callback(_read)
        turn.task = asyncio.create_task(self._answer(turn, prefix, covered))
        return turn

    def _encoder(self, record: EpisodeRecord, codec: ChatCodec) -> EpisodeEncoder:
        return EpisodeEncoder(self.setup, codec, self.spec, self._pool, record)

    def growing(self, live: Live, request: AgentRequest) -> GrowingReply:
        """Return the text that a client may see of a reply while it is sampled."""
        codec = self._codecs.own

        def begin() -> tuple[TokenText, ReplyDeltas]:
            has_calls = bool(request.tools) and request.may_call
            return (
                TokenText(codec.decode_all, codec.encode_text, codec.stop_ids),
                ReplyDeltas(opened=live.opened, stop=request.stop, has_calls=has_calls),
            )

        return GrowingReply(live.stream, begin)

    def token_text(self, token: int) -> str:
        """Return the text of one token."""
        return self._codecs.own.decode_all([token])

    async def prompt(self, request: AgentRequest) -> Encoded:
        """Return a request's prompt as that of a first request, without recording it.

        Raises:
            RequestRefused: The chat template cannot render it.
        """
        await self._codecs.prepare(request)
        record = EpisodeRecord()
        record.messages += self._codecs.messages(request, 0)
        record.tools = request.tools
        try:
            after = "continue" if request.continues_reply else "answer"
            return await self._encoder(record, self._codecs.of(request)).prompt(after)
        except UNRENDERABLE as error:
            raise bad_request(f"the chat template cannot render this: {error}") from error

    def note_defect(self, error: Exception) -> None:
        """Fault the episode for an error of the gateway itself."""
        fault = LedgerFault(f"the gateway failed: {describe(error)}").with_traceback(
            error.__traceback__
        )
        self._faults[""] = FaultRecord.of(FaultPlace.LEDGER, fault)

    def note_refusal(self, error: RequestRefused) -> None:
        """Note a refused request; a limit, such as that of the context, is none of these."""
        # The policy can use up a limit at will, so that is no failure of the gateway.
        if error.status in _UNABLE and error.code != TOO_LONG:
            fault = LedgerFault(f"the gateway refused what the agent asked for: {error}")
            self.refusal = FaultRecord.of(FaultPlace.LEDGER, fault)

    def client_left(self, turn: Turn) -> None:
        """Note that a client stopped waiting; if it has no reply, it disconnected."""
        if turn.state is TurnState.RUNNING and not turn.waiting:
            turn.state = TurnState.LOST
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self.limits.grace_s, self._give_up, turn)
            self._timers.append(timer)

    async def close(self) -> None:
        """End the episode: later requests get 403, running ones are cancelled."""
        self.is_closed = True
        for timer in self._timers:  # the event loop would keep this session until then
            timer.cancel()
        tasks = [one.task for one in self.turns if one.task is not None and not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._codecs.close(), return_exceptions=True)

    def _give_up(self, turn: Turn) -> None:
        if turn.state is TurnState.LOST and turn.task is not None and not turn.waiting:
            turn.task.cancel()

    def _check_limits(self, replies: int) -> None:
        """Check whether the session may have a number of further replies.

        Raises:
            RequestRefused: It may not.
        """
        most = self.setup.limits.max_turns
        if most is not None and len(self.turns) + replies > most:
            raise self._ended(StopReason.MAX_TURNS, f"limits.max_turns is {most}")
        if len(self.sequences) + replies > self.limits.max_sequences:
            why = f"agent.max_sequences is {self.limits.max_sequences}"
            raise self._ended(StopReason.MAX_SEQUENCES, why)

    def _ended(self, reason: StopReason, why: str) -> RequestRefused:
        """Record that a limit ended the episode; return the refusal."""
        self.stop_reason = self.stop_reason or reason
        return RequestRefused(403, f"the episode reached a limit: {why}")

    def _placed(self, request: AgentRequest, keys: Sequence[str]) -> tuple[Turn, int]:
        """Return a turn in the sequence that it continues, and how many messages that covers."""
        parent, covered = self._committed.longest(keys, request.messages)
        sequence = (
            self._sequences.after(parent, request) if parent else self._sequences.start(request)
        )
        turn = Turn(
            number=next(self._numbers),
            sequence=sequence,
            parent=parent,
            request=request,
            prefix=keys[-1],
            place=len(keys) - request.continues_reply,
            encoded=asyncio.get_running_loop().create_future(),
            live=Live() if self._is_live(request) else None,
        )
        if parent is not None:
            parent.children.append(turn)
        self.turns.append(turn)
        self._requests[request.key] = turn
        return turn, covered

    def _is_live(self, request: AgentRequest) -> bool:
        """Return whether a client shall see a reply while the engine samples it."""
        # Log-probabilities come with the whole reply, and a start that the client wrote may have
        # opened a thought.
        wants_whole = request.wants_logprobs or request.continues_reply
        can_stream = self.setup.codec is not None and isinstance(self.setup.engine, StreamingEngine)
        return request.is_streamed and can_stream and not wants_whole

    async def _answer(self, turn: Turn, prefix: PrefixKeys, covered: int) -> None:
        try:
            try:
                room = await self._encode(turn, covered)
            except UNRENDERABLE as error:
                raise bad_request(f"the chat template cannot render this: {error}") from error
        except BaseException as error:  # the request's own answer says what failed
            self._withdraw(turn, error)
            turn.encoded.set_exception(error)
            if is_own_cancellation(error):
                raise
            return
        turn.encoded.set_result(None)
        await self._sample(turn, prefix, room)

    def _withdraw(self, turn: Turn, error: BaseException) -> None:
        """Forget a request that got no reply, so that a retry continues where it did."""
        turn.state, turn.error = TurnState.FAILED, error
        self.turns.remove(turn)
        if self._requests.get(turn.request.key) is turn:
            del self._requests[turn.request.key]
        self._sequences.detach(turn)
        self._note(turn, error)

    async def _encode(self, turn: Turn, covered: int) -> ReplyBudget:
        """Append the request's new messages to the turn's sequence, or start one with all.

        Returns:
            The room for the reply.

        Raises:
            RequestRefused: The context or a limit has no room.
        """
        request = turn.request
        if turn.parent is not None:
            try:
                room = await self._extend(turn, covered)
            except TemplateError as error:
                self.counts[f"template: {error}"[:160]] += 1
            else:
                self.counts["continued"] += 1
                return room
            self._sequences.detach(turn)
            turn.sequence, turn.parent = self._sequences.start(request, ForkReason.TEMPLATE), None
        sequence = turn.sequence
        pending = self._codecs.messages(request, 0)
        sequence.record.messages += pending
        after = "continue" if request.continues_reply else "answer"
        encoded = await self._encoder(sequence.record, self._codecs.of(request)).prompt(after)
        length, images = len(encoded.train_ids), len(images_of(pending))
        # Before anything is in the ledger: the request may be refused.
        room = self._room(request, context_tokens=length, response_tokens=0, images=images)
        sequence.record.ledger.start(encoded, turn=0)
        sequence.prompt = list(sequence.record.messages)
        sequence.turns.append(turn)
        self.counts["new"] += 1
        return room

    async def _extend(self, turn: Turn, covered: int) -> ReplyBudget:
        """Append new messages after a recorded reply.

        Raises:
            TemplateError: The template cannot render them after a reply.
            RequestRefused: The context or a limit has no room.
        """
        sequence, request, started = turn.sequence, turn.request, time.perf_counter()
        record, ledger = sequence.record, sequence.record.ledger
        pending = tuple(self._codecs.messages(request, covered))
        before = len(record.messages)
        record.messages += pending
        encoder = self._encoder(record, self._codecs.of(request))
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
            # A retry, or a request that is shorter, continues where this one did.
            del record.messages[before:]
            raise
        record.add_observation(encoded, time.perf_counter() - started)
        if sequence.trunk is not None and not sequence.turns:
            sequence.prompt = list(record.messages)
        sequence.turns.append(turn)
        return room

    def _room(
        self, request: AgentRequest, *, context_tokens: int, response_tokens: int, images: int
    ) -> ReplyBudget:
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
                code=TOO_LONG,
            )
        wanted = self.setup.sampling.max_new_tokens
        room = reply_budget(
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
                code=TOO_LONG,
            )
        raise self._ended(room.reason or StopReason.TURN_TOKENS, f"{room.reason}")

    async def _sample(self, turn: Turn, prefix: PrefixKeys, room: ReplyBudget) -> None:
        """Sample a reply and commit it, or note in the turn what failed."""
        record = turn.sequence.record
        draft = record.draft = TurnDraft(turn=record.turn, prompt_tokens=record.ledger.train_length)
        started = time.perf_counter()
        if turn.live is not None:
            turn.live.prompt_tokens = draft.prompt_tokens
            opened = self._encoder(record, self._codecs.own).opened(draft.turn)
            turn.live.opened = opened or ""
        stream = None if turn.live is None else turn.live.stream
        try:
            generation = await self._sampler(turn).generate(
                draft, room, record, self.env, stream=stream
            )
            if generation.finish_reason is FinishReason.ABORT:
                raise EngineFault("the episode was stopped while the engine sampled")
        except BaseException as error:  # an engine may be anybody's code
            record.draft = None
            self._withdraw(turn, error)
            if is_own_cancellation(error):
                raise
            return
        draft.add_generation(generation, time.perf_counter() - started)
        self._commit(turn, draft, generation)
        turn.live = None  # the ledger has the ids
        assert turn.reply is not None
        if turn.request.continues_reply:
            prefix = PrefixKeys(self._codecs.start_text(turn.request), turn.conversation)
            self._committed.add(prefix.keys[-1], turn)
        else:
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

    def _sampler(self, turn: Turn) -> Sampler:
        setup, sampling, request = self.setup, self.setup.sampling, turn.request
        repeats = self._asked[turn.prefix]  # best-of-n asks the same more than once
        self._asked[turn.prefix] += 1
        # The same seed would give the agent its first sample again.
        if sampling.seed is not None and repeats:
            sampling = replace(sampling, seed=derive_seed(sampling.seed, turn.prefix, repeats))
        if request.stop:
            stop = tuple(dict.fromkeys((*sampling.stop, *request.stop)))
            sampling = replace(sampling, stop=stop)
        if sampling is not setup.sampling:
            setup = replace(setup, sampling=sampling)
        return Sampler(setup, self.spec, self._interrupt, top_logprobs=request.top_logprobs)

    def _commit(self, turn: Turn, draft: TurnDraft, generation: Generation) -> None:
        """Record a reply. Nothing is awaited until later requests can continue it."""
        record = turn.sequence.record
        text = draft.response_text = self._add_reply(record, draft, generation)
        self.sampled_tokens += draft.response_tokens
        record.say(message("assistant", text))
        record.close_turn()
        turn.local, turn.said = record.turn - 1, len(record.messages)
        turn.segments = len(record.ledger.segments)
        ids = generation.token_ids
        said = Reply(
            text=text,
            finish=generation.finish_reason,
            opened=draft.opened or "",
            is_opening_known=bool(ids) and not turn.request.continues_reply,
        )
        thoughts = reasoning_tokens(said, ids, self._codecs.own.decode_all) if ids else 0
        turn.reply = reply_of(
            said, generation, turn.request, number=turn.number, reasoning_tokens=thoughts
        )
        # The agent asked again and got a reply.
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
        encoder = self._encoder(record, self._codecs.own)
        draft.opened = encoder.opened(draft.turn)
        return encoder.decode(draft.turn)


def _choice_keys(request: AgentRequest) -> Iterator[str]:
    """Yield a key for each reply that a request asks for."""
    yield request.key
    for number in range(1, request.choices):
        yield f"{request.key}/{number}"


def _read(future: "asyncio.Future[None]") -> None:
    """Read a future's exception, in case nothing else does."""
    if not future.cancelled():
        future.exception()
