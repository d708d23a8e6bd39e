"""The one rollout loop: plays an environment with an engine and a codec, and records the episode.

`Episode` serves every engine and every trainer. An engine that returns text, a chat endpoint, is
played without a codec: messages, turns and rewards are recorded, but there is no ledger. A turn has
these steps:

1. check the limits (see `limits.py` for the order);
2. sample from the engine; its ids go into the ledger unchanged;
3. decode the reply and step the environment, off the event loop, under the retry budget;
4. record the reward; the episode ends if the environment says so or a limit is reached;
5. let the history policy rewrite what the model sees, which starts a new sequence;
6. otherwise encode the observation as a delta and append it.

Any failure inside an episode makes it a faulted trajectory: no reward, no trained tokens. This
includes a deadline that interrupts a call. A deadline that passes between two turns truncates the
episode, which keeps its rewards so far.
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envkit import errors
from envkit.agents import MultiAgentEnv
from envkit.env import Observation, Step
from envkit.messages import Message, images_of, message, text_of
from envkit.reply import Reply
from envkit.rollout.answers import ToolAnswers
from envkit.rollout.boundary import observation_in
from envkit.rollout.encoding import EpisodeEncoder
from envkit.rollout.engine import FinishReason
from envkit.rollout.history import Question
from envkit.rollout.host import EnvHost, StepDeadlineError
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import ReplyBudget, reply_budget
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.rollout.recovery import (
    CutFault,
    EpisodeLostError,
    RecoveringEnv,
    end_session,
    play_with_restarts,
)
from envkit.rollout.rewriter import Continuation, PolicyAbortedError, Rewriter
from envkit.rollout.sampler import Sampler
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.threads.pool import WorkerPool
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.stop import FaultPlace, StopReason
from envkit.trajectory.trajectory import Trajectory, TurnRecord


class Episode:
    """One attempt at an episode, from reset to end."""

    def __init__(
        self, setup: Setup, spec: EpisodeSpec, pool: WorkerPool, env: RecoveringEnv
    ) -> None:
        self._setup, self._spec, self._pool = setup, spec, pool
        self.env, self._interrupt = env, env.interrupt
        self._sampler = Sampler(setup, spec, env.interrupt)
        self._answers = ToolAnswers(setup.codec)
        self._earlier: Trajectory | None = None  # until its state is rebuilt
        self.record = EpisodeRecord()
        codec = setup.codec  # None for an engine that returns text
        self._encoder = (
            None if codec is None else EpisodeEncoder(setup, codec, spec, pool, self.record)
        )
        self._rewriter = Rewriter(setup, self.record, pool, env.interrupt)

    async def run(self, earlier: Trajectory | None = None) -> StopReason:
        """Play until the episode ends and return why; faults go into the record.

        Args:
            earlier: An aborted trajectory to resume; None starts a new one.

        Raises:
            EpisodeLostError: The environment's state cannot be rebuilt; start again.
            ConfigurationError: Further episodes would fail too, for example without a package.
        """
        place = FaultPlace.RESET
        try:
            reason = await self._begin(earlier)
            while reason is None:
                place = FaultPlace.STEP
                reason = await self._turn()
            if reason is StopReason.ABORTED:
                place = FaultPlace.SNAPSHOT
                self.record.env_snapshot = await self.env.snapshot()
        # The first starts the episode over; the second would fail every episode and ends the run.
        except (EpisodeLostError, errors.ConfigurationError):
            raise
        except Exception as error:  # noqa: BLE001  # any failure ends only this episode
            # A missing package would fail every episode, too.
            errors.raise_missing(error)
            return self._ended_by(error, place)
        return reason

    def _ended_by(self, error: Exception, place: FaultPlace) -> StopReason:
        """Record an exception and return why it ends the episode."""
        is_aborted = self._interrupt.reason is StopReason.ABORTED
        # An abort that cuts a call of the environment is no failure.
        if isinstance(error, CutFault) and is_aborted:
            self._keep_cut_reply()
            # The state was not rebuilt yet, so the snapshot of the earlier part is still the
            # latest.
            if self._earlier is not None:
                self.record.env_snapshot = self._earlier.env_snapshot
            return StopReason.ABORTED  # the partial record is valid
        # The environment blames the reply for its late step: a truncation, not a fault.
        if isinstance(error, StepDeadlineError):
            return StopReason.STEP_TIMEOUT
        reason = StopReason.LEDGER_FAULT
        if isinstance(error, errors.EnvFault):
            reason = StopReason.ENV_FAULT
            if place is FaultPlace.RESET and not self.env.was_built:
                place = FaultPlace.BUILD
            elif place is FaultPlace.RESET and self.env.is_taking_over:
                place = FaultPlace.SNAPSHOT
        elif isinstance(error, errors.HistoryFault):
            place = FaultPlace.HISTORY
        elif isinstance(error, errors.EngineFault):
            place, reason = FaultPlace.GENERATE, StopReason.ENGINE_FAULT
        else:
            place = FaultPlace.LEDGER
            if not isinstance(error, (errors.LedgerFault, errors.TemplateError, errors.ImageError)):
                text = f"the episode failed: {errors.describe(error)}"
                error = errors.LedgerFault(text).with_traceback(error.__traceback__)
        self.record.faulted(place, error)
        return reason

    async def _begin(self, earlier: Trajectory | None) -> StopReason | None:
        """Start or resume the episode; return why it ends already, or None."""
        record, encoder = self.record, self._encoder
        if earlier is not None and earlier.segments and encoder is not None:
            self._earlier = earlier  # first: an abort of the reset must not lose it
            record.take_over(earlier, await encoder.with_features(earlier.segments))
        reset = await self.env.reset()
        if isinstance(self.env.env, MultiAgentEnv):
            raise errors.ConfigurationError(
                f"{type(self.env.env).__name__} has several agents, each with its own trajectory: "
                "play it with Player.play or collect"
            )
        record.task, record.reset_info = dict(reset.task), reset.info
        record.initial_observation_hash = reset.hash
        record.reward_threshold = reset.reward_threshold
        if self._spec.group_start is not None:
            self._spec.group_start.compare(reset.hash)
        self._rewriter.choose(reset.history, type(self.env.env).__name__)
        # An environment without tools keeps those of the codec.
        record.tools = reset.tools or None
        if self._earlier is not None:
            ended = await self._take_over(self._earlier)
            self._earlier = None
            return ended
        if reset.system_prompt is not None:
            record.say(message("system", reset.system_prompt))
        record.say(self._answers.readable(reset.message))
        if encoder is not None:
            record.ledger.start(await encoder.prompt(), turn=0)
        if self._spec.group_start is not None:  # only after encoding succeeded
            self._spec.group_start.expected = reset.hash
        return None

    async def _take_over(self, earlier: Trajectory) -> StopReason | None:
        """Rebuild an aborted trajectory's state, and append the observation that is pending."""
        record = self.record
        # The environment never saw the questions of a history policy.
        done = [turn for turn in record.turns if turn.purpose is None]
        await self.env.take_over(
            [turn.reply for turn in done],
            [turn.observation_hash or "" for turn in done],
            earlier.env_snapshot,
            earlier.initial_observation_hash or "",
        )
        is_answered = record.ledger.segments[-1].kind is SegmentKind.MODEL  # not so in a fork
        pending = record.unanswered()
        # An abort leaves the last observation out of the segments. It is sent now, or ends the
        # episode if it no longer fits: the model must not reply without having seen it.
        if is_answered and pending and not record.ledger.reply_ids(record.turn):
            ended = await self._append_observation(pending, observation_in(pending[-1]))
            record.close_turn()  # the turn of a summary
            return ended
        return None

    async def _turn(self) -> StopReason | None:
        """Play one turn; return why the episode ends, or None to continue."""
        record, ledger = self.record, self.record.ledger
        ended = self._stop_before_turn()
        if ended is not None:
            # The ledger may hold a reply that was cut before. Without its turn the record is
            # invalid.
            self._keep_cut_reply()
            return ended
        room = self._room()
        known = ledger.whole_reply(record.turn)  # the abort came between a reply and its step
        if known is None and room.tokens < 1:
            self._keep_cut_reply()
            if record.draft is not None:  # no token is left for the rest of a cut reply
                record.draft.finish_reason = FinishReason.LENGTH.value
            return room.reason or StopReason.TURN_TOKENS
        draft = self._new_draft()
        while True:
            if known is not None:
                self._take_reply(draft, known)
            elif (ended := await self._reply(draft, room)) is not None:
                return ended
            if await self._is_aborted_before_step(draft):
                return StopReason.ABORTED  # a resumed episode takes the step
            step, entry = await self._step(draft)
            if not await self._rejected(draft, step):
                return await self._after_step(draft, step, entry)
            known, room = None, self._room()

    def _keep_cut_reply(self) -> None:
        """Keep the turn of a cut reply if a resumed episode ends before it continues the reply."""
        record = self.record
        if record.draft is None and record.ledger.reply_ids(record.turn):
            self._take_reply(self._new_draft(), record.ledger.segments[-1])

    def _new_draft(self) -> TurnDraft:
        """Start the turn, with the tokens of a reply that an abort cut off."""
        record, ledger = self.record, self.record.ledger
        partial = len(ledger.reply_ids(record.turn))
        record.draft = TurnDraft(
            turn=record.turn,
            prompt_tokens=ledger.train_length - partial,
            response_tokens=partial,
        )
        return record.draft

    def _stop_before_turn(self) -> StopReason | None:
        limits = self._setup.limits
        if self._interrupt.check_deadline() and not self.record.turns:
            raise self._deadline_fault("before the first turn ended")
        if self._interrupt.reason is not None:
            return self._interrupt.reason
        if limits.max_turns is not None and self.record.played >= limits.max_turns:
            return StopReason.MAX_TURNS
        return None

    async def _is_aborted_before_step(self, draft: TurnDraft) -> bool:
        await self._let_finished_pass()
        if self._interrupt.check_deadline():  # an unanswered reply must not earn reward 0
            raise self._deadline_fault(f"while the engine sampled turn {draft.turn}")
        return self._interrupt.reason is StopReason.ABORTED

    async def _let_finished_pass(self) -> None:
        """Wait while finished episodes need the event loop."""
        brake = self._interrupt.brake
        if brake is not None and self._interrupt.reason is None and not brake.is_open:
            await brake.wait()

    def _deadline_fault(self, when: str) -> errors.EngineFault:
        text = f"the episode's deadline (limits.episode_timeout_s) passed {when}"
        return errors.EngineFault(text, kind=errors.FaultKind.TIMEOUT)

    def _room(self, requested: int | None = None) -> ReplyBudget:
        """Return the room for a reply of at most `requested` tokens; None uses the setting."""
        ledger = self.record.ledger
        return reply_budget(
            self._setup.limits,
            requested=requested or self._setup.sampling.max_new_tokens,
            already=len(ledger.reply_ids(self.record.turn)),
            response_tokens=ledger.response_tokens,
            sampled_tokens=ledger.sampled_tokens,
            context_tokens=ledger.train_length,
        )

    async def _reply(self, draft: TurnDraft, room: ReplyBudget) -> StopReason | None:
        """Sample the reply, record it and decode it; return why the episode ends, or None."""
        record, ledger = self.record, self.record.ledger
        started = time.perf_counter()
        generation = await self._sampler.generate(draft, room, record, self.env.env)
        draft.add_generation(generation, time.perf_counter() - started)
        # A request that was aborted in the queue has no tokens.
        if generation.token_ids:
            ledger.add_reply(
                generation.token_ids,
                generation.logprobs,
                turn=draft.turn,
                finish_reason=generation.finish_reason.value,
                weight_version=generation.weight_version,
                extras=generation.extras or {},  # never the engine's own empty mapping
            )
        aborted = generation.finish_reason is FinishReason.ABORT
        if aborted and not ledger.reply_ids(draft.turn):
            record.draft = None  # aborted in the queue: there was no turn
        else:
            self._add_text(draft, generation.text)
        if aborted:
            # The deadline aborts the request, too. What it cut is a fault, not a reply of reward 0.
            if self._interrupt.check_deadline():
                raise self._deadline_fault(f"while the engine sampled turn {draft.turn}")
            return StopReason.ABORTED
        is_cut = generation.finish_reason is FinishReason.LENGTH
        is_text = generation.text is not None  # a text engine cuts at the requested length
        is_full = is_text or len(generation.token_ids) >= room.tokens
        return room.reason if is_cut and is_full else None

    def _add_text(self, draft: TurnDraft, text: str | None = None) -> None:
        """Record the text of a reply, which a codec decodes from the ledger's tokens."""
        if self._encoder is not None:
            text, draft.opened = self._encoder.decode(draft.turn), self._encoder.opened(draft.turn)
        draft.response_text = text or ""
        self.record.say(message("assistant", draft.response_text))

    def _take_reply(self, draft: TurnDraft, last: Segment) -> None:
        """Record a reply that is already in the ledger, as `_reply` records a sampled one."""
        draft.finish_reason = last.finish_reason or ""
        draft.weight_version = last.weight_version
        self._add_text(draft)

    async def _step(self, draft: TurnDraft) -> tuple[Step, Message]:
        started, reply = time.perf_counter(), draft.reply
        try:
            outcome = await self.env.step(reply)
        finally:
            draft.env_seconds += time.perf_counter() - started
            draft.env_retries = dict(self.env.retries)
        draft.step, draft.step_hash = outcome.step, outcome.hash
        info = outcome.step.info
        return outcome.step, self._answered(outcome.message, draft, reply, info)

    async def _rejected(self, draft: TurnDraft, step: Step) -> bool:
        """Drop an unparsed reply if the budget allows another sample."""
        if not step.info.get("parse_error"):
            return False
        if draft.resamples >= self._setup.retries.resample_on_parse_error:
            return False
        # An environment that cannot take the step back keeps the reply that did not parse.
        if not await self.env.rewind():
            return False
        self.record.ledger.drop_reply(draft.turn)
        self.record.drop_message()
        draft.resamples += 1
        draft.response_tokens, draft.step, draft.step_hash = 0, None, None
        return True

    async def _after_step(
        self, draft: TurnDraft, step: Step, observation: Message
    ) -> StopReason | None:
        record = self.record
        if not (text_of(observation) or images_of([observation])) and step.terminated:
            return StopReason.TERMINATED
        if self._encoder is not None:
            # A reply that was cut inside a thought would leave the next turn inside it, too.
            self._encoder.close_thought(draft.turn)
        record.say(observation)
        ended = self._ended(step)
        if ended is None:
            # Encoding takes the event loop, which finished episodes need to be written.
            await self._let_finished_pass()
            ended = await self._append_observation((observation,), step.observation)
        record.close_turn()
        return ended

    def _ended(self, step: Step) -> StopReason | None:
        limits = self._setup.limits
        if step.terminated:
            return StopReason.TERMINATED
        if step.truncated:
            return StopReason.ENV_TRUNCATED
        if limits.max_turns is not None and self.record.played + 1 >= limits.max_turns:
            return StopReason.MAX_TURNS
        return self._interrupt.reason

    async def _append_observation(
        self,
        pending: tuple[Message, ...],
        observation: Observation | None = None,
    ) -> StopReason | None:
        """Append the observation if it fits, after applying the history policy.

        Args:
            pending: Its message, already in the record.
            observation: The observation, which the environment may shorten; None if it cannot.

        Returns:
            Why the episode ends, or None.
        """
        try:
            if self._encoder is None:
                return await self._rewriter.append_text()
            return await self._append_what_fits(pending, observation, self._encoder)
        except PolicyAbortedError:
            return StopReason.ABORTED

    async def _append_what_fits(
        self, pending: tuple[Message, ...], observation: Observation | None, encoder: EpisodeEncoder
    ) -> StopReason | None:
        record, rewriter = self.record, self._rewriter
        started = time.perf_counter()
        while True:
            found = await rewriter.next(pending, encoder)
            stop = encoder.overshoot(found.encoded)
            if stop is None:
                break
            rewriter.undo(found)
            shorter = await self._shorter(observation, found.space)
            if shorter is None:
                return stop
            record.drop_message()
            record.say(shorter)
            # An environment shortens an observation once.
            pending, observation = (shorter,), None
        seconds = time.perf_counter() - started
        await encoder.check(found.messages, found.encoded)
        record.add_observation(found.encoded, seconds, found.rewrite)
        return None if found.question is None else await self._ask(found, found.question, encoder)

    async def _shorter(self, observation: Observation | None, space: int) -> Message | None:
        """Return the message of a shorter observation, if the environment makes one."""
        if observation is None:
            return None
        shorter = await self.env.shorten(observation, space)
        draft = self.record.draft
        last = self.record.turns[-1] if draft is None else draft.finish()
        return None if shorter is None else self._answered(shorter, last, last.reply, last.info)

    def _drop_draft(self) -> None:
        """Drop a reply in progress, unless an abort before its first token already did."""
        if (draft := self.record.draft) is not None:
            self.record.drop_message()
            self.record.ledger.drop_reply(draft.turn)
            self.record.draft = None

    async def _ask(
        self, asked: Continuation, question: Question, encoder: EpisodeEncoder
    ) -> StopReason | None:
        """Let the model answer a history policy, then start a sequence from the answer.

        The answer is a separate turn, which the environment never sees. An abort removes it, and a
        resumed episode asks again.
        """
        record, rewriter = self.record, self._rewriter
        record.close_turn()
        is_joined = len(asked.messages) == len(asked.pending)
        said = [*record.messages[:-1], *(asked.pending[-1:] if is_joined else ())]
        # If an abort comes before the reply after the answer, the record goes back to here: a
        # resumed episode asks again.
        record.before_question = (len(record.ledger.segments) - 1, len(record.turns), said)
        room = self._room(question.max_tokens)
        if room.tokens < 1:
            return room.reason
        draft = record.draft = TurnDraft(
            turn=record.turn, prompt_tokens=record.ledger.train_length, purpose=rewriter.reason
        )
        ended = await self._reply(draft, room)
        if ended is StopReason.ABORTED:
            self._drop_draft()
            rewriter.undo(asked)
        if ended is not None:
            return ended
        started = time.perf_counter()
        found = await rewriter.answered(question, draft.response_text, encoder)
        stop = encoder.overshoot(found.encoded)
        if stop is None:
            record.add_observation(found.encoded, time.perf_counter() - started, found.rewrite)
        return stop

    def _answered(
        self, entry: Message, turn: TurnDraft | TurnRecord, reply: Reply, info: Mapping[str, Any]
    ) -> Message:
        """Return the environment's message in the form that the template renders."""
        return self._answers.readable(entry, reply=reply, info=info, turn=turn.turn)


async def play_episode(
    setup: Setup,
    spec: EpisodeSpec,
    host: EnvHost,
    interrupt: Interrupt,
) -> Trajectory:
    """Play an episode to its end; start over in a new environment if its state is lost.

    Args:
        setup: Engine, codec, limits and budgets.
        spec: The episode.
        host: The host of its environment, which later episodes can use again.
        interrupt: Ends the episode early with a valid partial trajectory.

    Raises:
        ConfigurationError: The environment cannot be built with its arguments, or this loop cannot
            play it.
    """

    async def play(env: RecoveringEnv) -> Trajectory:
        episode = Episode(setup, spec, host.pool, env)
        reason = await episode.run(spec.earlier if env.restarts == 0 else None)
        is_suspect = reason.is_fault and reason is not StopReason.ENGINE_FAULT
        if (is_suspect or reason is StopReason.STEP_TIMEOUT) and host.can_rebuild:
            host.mark_broken()  # the next episode starts with a new environment
        episode.record.started = env.started
        return episode.record.trajectory(
            reason, spec, env_restarts=env.restarts, engine=setup.engine.name
        )

    earlier = spec.earlier
    if earlier is not None and earlier.origin is not None:  # a restart would not be a fork
        setup = replace(setup, retries=replace(setup.retries, max_episode_restarts=0))
    # A backend may answer a step key that it knows with its recorded result, so the steps of a
    # resumed episode get new keys.
    life = None if earlier is None else f"{spec.episode_id}~{uuid.uuid4().hex[:8]}"
    try:
        return await play_with_restarts(setup, spec, host, interrupt, play, life=life)
    finally:
        # A tree ends its sessions itself, after its last fork has used the engine's cache.
        if spec.snapshots is None:
            await end_session(setup.engine, spec.episode_id)
