"""The one rollout loop: an environment, an engine, a codec, and the record of what they did.

Every engine and every trainer goes through `play`. The order of events in a turn:

1. limits are checked (see `limits.py` for the order);
2. the engine samples; its ids go into the ledger as they came;
3. the reply is decoded and the environment steps, off the event loop, under the retry budget;
4. the reward is recorded; the episode ends if the environment says so or a limit is reached;
5. the observation is encoded as a delta and appended.

An infrastructure failure becomes a faulted trajectory: no reward, no trained token.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from envkit.agents import MultiAgentEnv
from envkit.env import Observation, Step
from envkit.errors import (
    ConfigurationError,
    EngineFault,
    EnvFault,
    FaultKind,
    ImageError,
    LedgerFault,
    TemplateError,
)
from envkit.messages import Message, check_message, images_of, message, text_of
from envkit.rollout.engine import FinishReason
from envkit.rollout.host import EnvHost
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Room, observation_stop, room_for_reply
from envkit.rollout.outcome import observation_hash
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.rollout.recovery import EpisodeLostError, RecoveringEnv
from envkit.rollout.sampler import Sampler
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.threads.pool import WorkerPool
from envkit.tokens import Encoded, RoleStatus
from envkit.trajectory.segment import Segment
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory

_INLINE_CHARACTERS: Final = 20_000
"""Text up to this length is tokenised on the event loop: about 5 ms. More, and every image whose
pixels are still to be worked on, goes to a worker thread, since the loop must never be blocked for
longer than 50 ms."""


class Episode:
    """One attempt at an episode, from the reset to its end."""

    def __init__(
        self,
        setup: Setup,
        spec: EpisodeSpec,
        host: EnvHost,
        pool: WorkerPool,
        interrupt: Interrupt,
        *,
        life: str,
        spent_retries: int = 0,
    ) -> None:
        self._setup, self._spec, self._pool, self._interrupt = setup, spec, pool, interrupt
        self._sampler = Sampler(setup, spec, interrupt)
        # A template without a tool role (Gemma 3, Mistral 7B) reads a tool's answer as a user's.
        tool_role = setup.codec.audit().roles["tool"]
        self._knows_tools = tool_role.status is RoleStatus.EXACT
        self._rewritten = False  # whether the last delta is a prompt of its own
        self.record = EpisodeRecord()
        self.env = RecoveringEnv(
            host,
            setup.retries,
            episode_id=life,
            seed=spec.seed,
            task=spec.task,
            spent=spent_retries,
        )

    async def run(self, earlier: Trajectory | None = None) -> StopReason:
        """Play until the episode ends and return why; faults are noted in the record.

        Args:
            earlier: An aborted trajectory to go on with; None starts a new one.

        Raises:
            EpisodeLostError: The environment's state cannot be rebuilt; start anew.
        """
        where = "reset"
        try:
            await self._begin(earlier)
            reason: StopReason | None = None
            while reason is None:
                where = "step"
                reason = await self._turn()
            if reason is StopReason.ABORTED:
                where = "snapshot"
                self.record.env_snapshot = await self.env.snapshot()
        except EngineFault as fault:
            return self._faulted("generate", fault, StopReason.ENGINE_FAULT)
        except (LedgerFault, TemplateError, ImageError) as fault:
            return self._faulted("ledger", fault, StopReason.LEDGER_FAULT)
        except EnvFault as fault:
            if self._interrupt.reason is StopReason.EPISODE_TIMEOUT:
                return StopReason.EPISODE_TIMEOUT  # the deadline cut the call short
            return self._faulted(where, fault, StopReason.ENV_FAULT)
        return reason

    async def _begin(self, earlier: Trajectory | None) -> None:
        record = self.record
        reset = await self.env.reset()
        if isinstance(self.env.env, MultiAgentEnv):
            raise ConfigurationError(
                f"{type(self.env.env).__name__} has several agents, each with a trajectory of its "
                "own: play it with play_agents, Player.play_all or collect"
            )
        record.task = dict(self.env.env.task)
        record.reset_info = dict(reset.info)
        record.initial_observation_hash = observation_hash(reset.observation)
        if self._spec.group_start is not None:
            self._spec.group_start.check(record.initial_observation_hash)
        if earlier is not None:
            await self._take_over(earlier)
            return
        prompt = self.env.env.system_prompt
        if prompt is not None:
            record.messages.append(message("system", prompt))
        record.messages.append(self._message(reset.observation))
        encoded = await self._encode(record.messages, self._encode_prompt)
        record.ledger.start(encoded, turn=0)

    async def _take_over(self, earlier: Trajectory) -> None:
        """Continue an aborted trajectory: ledger, messages, turns and the environment's state."""
        record = self.record
        if earlier.initial_observation_hash != record.initial_observation_hash:
            raise EnvFault(
                "the environment started from another observation than the trajectory to resume",
                kind=FaultKind.PERMANENT,
            )
        done = [turn for turn in earlier.turns if turn.observation_hash is not None]
        record.turns = done
        record.ledger.replay(await self._with_features(earlier.segments))
        record.messages = list(earlier.messages)
        if record.messages and record.messages[-1]["role"] == "assistant":
            record.messages.pop()  # cut in the middle: it is written again when it is complete
        await self.env.take_over(
            [turn.response_text for turn in done],
            [turn.observation_hash or "" for turn in done],
            earlier.env_snapshot,
        )
        partial = record.ledger.reply_ids(record.turn)
        pending = record.unanswered()
        if not partial and pending and record.ledger.segments and done:
            await self._append_observation(pending, draft=None)

    async def _with_features(self, segments: Sequence[Segment]) -> list[Segment]:
        """Compute the processor's outputs again where a file did not keep them."""
        codec, whole = self._setup.codec, list(segments)
        for index, segment in enumerate(whole):
            if segment.images and not segment.features:
                images = segment.images
                features = await self._pool.computing.run(
                    lambda images=images: codec.image_features(images)
                )
                whole[index] = replace(segment, features=features)
        return whole

    async def _turn(self) -> StopReason | None:
        """Play one turn; return why the episode ends, or None to go on."""
        record, ledger = self.record, self.record.ledger
        if self._interrupt.reason is not None:
            return self._interrupt.reason
        limits = self._setup.limits
        if limits.max_turns is not None and record.turn >= limits.max_turns:
            return StopReason.MAX_TURNS
        room = self._room()
        known = ledger.whole_reply(record.turn)  # an abort came between a reply and its step
        if known is None and room.tokens < 1:
            return room.reason or StopReason.TURN_TOKENS
        partial = len(ledger.reply_ids(record.turn))  # of a reply that an abort had cut in two
        draft = record.draft = TurnDraft(
            turn=record.turn,
            prompt_tokens=ledger.train_length - partial,
            response_tokens=partial,
        )
        while True:
            if known is not None:
                self._take_reply(draft, known)
            elif (ended := await self._reply(draft, room)) is not None:
                return ended
            if self._is_aborted():
                return StopReason.ABORTED  # the step is taken when the episode goes on
            step = await self._step(draft)
            if not await self._rejected(draft, step):
                return await self._after_step(draft, step)
            known, room = None, self._room()

    def _is_aborted(self) -> bool:
        return self._interrupt.reason is StopReason.ABORTED

    def _room(self) -> Room:
        ledger = self.record.ledger
        return room_for_reply(
            self._setup.limits,
            requested=self._setup.sampling.max_new_tokens,
            already=len(ledger.reply_ids(self.record.turn)),
            response_tokens=ledger.response_tokens,
            context_tokens=ledger.train_length,
        )

    async def _reply(self, draft: TurnDraft, room: Room) -> StopReason | None:
        """Sample the reply, record it and decode it; return why the episode ends, or None."""
        record, ledger = self.record, self.record.ledger
        started = time.perf_counter()
        generation = await self._sampler.generate(draft, room, record, self.env.env)
        draft.add_generation(generation, time.perf_counter() - started)
        if generation.token_ids:
            ledger.add_reply(
                generation.token_ids,
                generation.logprobs,
                turn=draft.turn,
                finish_reason=generation.finish_reason.value,
                weight_version=generation.weight_version,
                extras=generation.extras,
            )
        aborted = generation.finish_reason is FinishReason.ABORT
        if aborted and not ledger.reply_ids(draft.turn):
            record.draft = None  # aborted in the queue: there was no turn
            return self._interrupt.reason or StopReason.ABORTED
        draft.response_text = self._setup.codec.decode(ledger.reply_ids(draft.turn))
        record.messages.append(message("assistant", draft.response_text))
        if aborted:
            return self._interrupt.reason or StopReason.ABORTED
        is_cut = generation.finish_reason is FinishReason.LENGTH
        return room.reason if is_cut and len(generation.token_ids) >= room.tokens else None

    def _take_reply(self, draft: TurnDraft, last: Segment) -> None:
        """Take a reply that the ledger holds in full already, as `_reply` takes a sampled one."""
        draft.finish_reason = last.finish_reason or ""
        draft.weight_version = last.weight_version
        draft.response_text = self._setup.codec.decode(self.record.ledger.reply_ids(draft.turn))
        self.record.messages.append(message("assistant", draft.response_text))

    async def _step(self, draft: TurnDraft) -> Step:
        started = time.perf_counter()
        try:
            draft.step = await self.env.step(draft.response_text)
            draft.step_hash = self.env.last_hash
        finally:
            draft.env_seconds += time.perf_counter() - started
            draft.env_retries = dict(self.env.retries)
        return draft.step

    async def _rejected(self, draft: TurnDraft, step: Step) -> bool:
        """Take back a reply that did not parse, where the budget asks for another sample."""
        if not step.info.get("parse_error"):
            return False
        if draft.resamples >= self._setup.retries.resample_on_parse_error:
            return False
        if not await self.env.rewind():
            return False
        self.record.ledger.drop_reply(draft.turn)
        self.record.messages.pop()
        draft.resamples += 1
        draft.response_tokens, draft.step, draft.step_hash = 0, None, None
        return True

    async def _after_step(self, draft: TurnDraft, step: Step) -> StopReason | None:
        record = self.record
        observation = self._message(step.observation)
        if not (text_of(observation) or images_of([observation])) and step.terminated:
            record.close_turn()
            return StopReason.TERMINATED
        record.messages.append(observation)
        ended = self._ended(draft, step)
        if ended is None:
            ended = await self._append_observation((observation,), draft, step.observation)
        record.close_turn()
        return ended

    def _ended(self, draft: TurnDraft, step: Step) -> StopReason | None:
        limits = self._setup.limits
        if step.terminated:
            return StopReason.TERMINATED
        if step.truncated:
            return StopReason.ENV_TRUNCATED
        if limits.max_turns is not None and draft.turn + 1 >= limits.max_turns:
            return StopReason.MAX_TURNS
        return self._interrupt.reason

    async def _append_observation(
        self,
        pending: tuple[Message, ...],
        draft: TurnDraft | None,
        observation: Observation | None = None,
    ) -> StopReason | None:
        """Append what the environment said, if it fits; return why the episode ends, or None."""
        started = time.perf_counter()
        encoded = await self._encode(pending, lambda: self._encode_delta(pending))
        stop = self._overshoot(encoded)
        if stop is not None and observation is not None:
            shorter = self.env.shorten(observation, self._space())
            if shorter is not None:
                pending = (self._message(shorter),)
                self.record.messages[-1] = pending[0]
                encoded = await self._encode(pending, lambda: self._encode_delta(pending))
                stop = self._overshoot(encoded)
        if stop is not None:
            return stop
        next_turn = self.record.turn + (draft is not None)
        if self._rewritten:
            self.record.ledger.start(encoded, turn=next_turn)
        else:
            self.record.ledger.add_observation(encoded, turn=next_turn)
        seconds = time.perf_counter() - started
        if draft is not None:
            draft.add_observation(encoded, seconds)
        else:  # the abort had taken it off the end of the ledger; it is sent now
            self.record.turns[-1] = self.record.turns[-1].with_observation(encoded, seconds)
        return None

    def _overshoot(self, encoded: Encoded) -> StopReason | None:
        ledger, added = self.record.ledger, len(encoded.train_ids)
        return observation_stop(
            self._setup.limits,
            response_tokens=ledger.response_tokens + (0 if self._rewritten else added),
            context_tokens=added + (0 if self._rewritten else ledger.train_length),
            images=len(encoded.images) + (0 if self._rewritten else len(ledger.images)),
        )

    def _space(self) -> int:
        """Return how many tokens an observation may have, with one left to answer it."""
        limits, ledger = self._setup.limits, self.record.ledger
        bounds = [
            bound - used - 1
            for bound, used in (
                (limits.max_response_tokens, ledger.response_tokens),
                (limits.max_context_tokens, ledger.train_length),
            )
            if bound is not None
        ]
        return max(0, min(bounds, default=0))

    def _encode_prompt(self) -> Encoded:
        return self._setup.codec.encode_prompt(
            self.record.messages, tools=self.env.env.tools or None
        )

    def _encode_delta(self, pending: tuple[Message, ...]) -> Encoded:
        """Encode an observation as what follows the ledger, or as a new prompt.

        Under the policy "rerender" the template decides how the history looks: where that still
        begins with the ledger, the rest is the delta; where not, a new sequence starts.
        """
        ledger, codec, messages = self.record.ledger, self._setup.codec, self.record.messages
        self._rewritten = False
        if codec.history == "rerender" and codec.rewrites_history:
            whole = codec.encode_prompt(messages, tools=self.env.env.tools or None)
            length = len(ledger.wire_ids)
            if list(whole.wire_ids[:length]) != ledger.wire_ids:
                self._rewritten = True
                return whole
            known = len(ledger.images)
            return Encoded(
                wire_ids=whole.wire_ids[length:],
                train_ids=whole.train_ids[ledger.train_length :],
                images=whole.images[known:],
                features=whole.features[known:],
            )
        last_turn = ledger.segments[-1].turn
        return codec.encode_observation(
            pending,
            sampled_ids=ledger.reply_ids(last_turn),
            history=messages[: len(messages) - len(pending)],
            tools=self.env.env.tools or None,
            previous_images=len(ledger.images),
        )

    async def _encode(self, messages: Sequence[Message], encode: Callable[[], Encoded]) -> Encoded:
        """Encode on this thread if it is quick, else on a worker's."""
        light = sum(len(text_of(entry)) for entry in messages) <= _INLINE_CHARACTERS
        images = images_of(messages)
        if light and (not images or self._setup.codec.is_quick(images)):
            return encode()

        def work() -> Encoded:
            encoded = encode()
            for image in encoded.images:
                image.png_bytes()  # the record and HTTP engines want them; never on the event loop
            return encoded

        return await self._pool.computing.run(work)

    def _message(self, observation: Observation) -> Message:
        entry = self.env.format_observation(observation)
        check_message(entry, source=f"{type(self.env.env).__name__}.format_observation")
        if entry["role"] == "tool" and not self._knows_tools:
            return {**entry, "role": "user"}
        return entry

    def _faulted(self, where: str, fault: Exception, reason: StopReason) -> StopReason:
        self.record.faulted(where, fault)
        return reason


async def play_episode(
    setup: Setup,
    spec: EpisodeSpec,
    host: EnvHost,
    pool: WorkerPool,
    interrupt: Interrupt,
    earlier: Trajectory | None = None,
) -> Trajectory:
    """Play an episode to its end, starting anew with a fresh environment where one was lost.

    Args:
        setup: Engine, codec, limits, budgets.
        spec: Which episode.
        host: Where its environment lives; usable for another episode afterwards.
        pool: Threads for blocking calls.
        interrupt: Fires to end the episode early with a valid partial trajectory.
        earlier: An aborted trajectory to go on with.
    """
    own = interrupt.child()
    timeout = setup.limits.episode_timeout_s
    timer = None
    if timeout is not None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout, own.fire, StopReason.EPISODE_TIMEOUT)
    started, restarts, spent = time.perf_counter(), 0, 0
    life = spec.episode_id if earlier is None else f"{spec.episode_id}~{uuid.uuid4().hex[:8]}"
    try:
        while True:
            episode = Episode(setup, spec, host, pool, own, life=life, spent_retries=spent)
            try:
                reason = await episode.run(earlier)
            except EpisodeLostError as lost:
                host.mark_broken()
                await setup.engine.end_session(spec.episode_id)
                if restarts < setup.retries.max_episode_restarts and host.can_rebuild:
                    restarts, spent, earlier = restarts + 1, episode.env.spent, None
                    continue
                episode.record.faulted("step", lost.fault)
                reason = StopReason.ENV_FAULT
            if reason is StopReason.ENV_FAULT and host.can_rebuild:
                host.mark_broken()  # the next episode starts with a fresh environment
            record = episode.record
            record.started = started
            return record.trajectory(
                reason,
                episode_id=spec.episode_id,
                env_id=spec.env_id,
                seed=spec.seed,
                group_id=spec.group_id,
                env_restarts=restarts,
                engine=setup.engine.name,
                metadata=spec.metadata,
            )
    finally:
        if timer is not None:
            timer.cancel()
        interrupt.discard(own)
        await own.close()
        await setup.engine.end_session(spec.episode_id)
