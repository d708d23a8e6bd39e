"""Random histories against the record: appends, rewrites, summaries, forks, aborts, resumes, files.

A family is one episode and its forks. Beside each record a shadow keeps what the engine was shown,
as plain lists that share no code with the ledger. Every sampled token has an id that occurs once in
its family, so owners can be counted over all rows.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from fakes.trajectories import Context, picture

from envkit.env import Step
from envkit.errors import FaultKind
from envkit.messages import Message, images_of, message, text_of
from envkit.rollout.player import resumed_spec
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.rollout.setup import EpisodeSpec
from envkit.tokens.encoded import Encoded, ImageFeatures
from envkit.trajectory import (
    FaultPlace,
    FaultRecord,
    Problem,
    Rule,
    SegmentKind,
    StopReason,
    Trajectory,
    fork_before,
    load,
    save,
    verify_file,
)

FIRST_SAMPLED = 100_000
"""Sampled ids count up from here; ids of prompts and observations lie below."""
MAX_EPISODES = 5
FAMILY_OPERATIONS = 50


@dataclass(slots=True)
class Shown:
    """The context of one request, kept apart from the ledger."""

    train: list[int] = field(default_factory=list[int])
    wire: list[int] = field(default_factory=list[int])
    images: list[str] = field(default_factory=list[str])

    def extended(self, encoded: Encoded) -> "Shown":
        """Return the context with what was encoded after it."""
        return Shown(
            train=[*self.train, *encoded.train_ids],
            wire=[*self.wire, *encoded.wire_ids],
            images=[*self.images, *(image.sha256 for image in encoded.images)],
        )

    def sampled(self, ids: Sequence[int]) -> "Shown":
        """Return the context with a reply."""
        return Shown(train=[*self.train, *ids], wire=[*self.wire, *ids], images=list(self.images))


@cache
def encode(text: str, shades: tuple[int, ...]) -> Encoded:
    """Encode a message; the same one always gives the same ids."""
    rng = random.Random(text)
    ids = tuple(rng.randrange(10, 5_000) for _ in range(rng.randint(1, 5)))
    context = Context(text_ids=ids, images=tuple(picture(one) for one in shades))
    features = tuple(ImageFeatures(tensors={}, token_count=context.expansion) for _ in shades)
    return Encoded(
        wire_ids=context.wire_ids(),
        train_ids=context.train_ids(),
        images=context.images,
        features=features,
    )


SHADES = {picture(one).sha256: one for one in range(5)}


def encoded_message(entry: Message) -> Encoded:
    """Encode one message."""
    return encode(text_of(entry), tuple(SHADES[image.sha256] for image in images_of([entry])))


def encoded_view(view: Sequence[Message]) -> Encoded:
    """Encode a conversation as a prompt."""
    parts = [encoded_message(entry) for entry in view]
    return Encoded(
        wire_ids=tuple(one for part in parts for one in part.wire_ids),
        train_ids=tuple(one for part in parts for one in part.train_ids),
        images=tuple(one for part in parts for one in part.images),
        features=tuple(one for part in parts for one in part.features),
        is_prompt=True,
    )


def fresh(entry: int | Message) -> Any:  # of the same type
    """Return a message with images of this process, not of a file that is about to go."""
    if isinstance(entry, int):
        return entry
    shades = [SHADES[image.sha256] for image in images_of([entry])]
    return message(entry["role"], text_of(entry), [picture(one) for one in shades])


def with_features(trajectory: Trajectory) -> Trajectory:
    """Compute the processor's outputs again, which a file does not keep."""
    feature = ImageFeatures(tensors={}, token_count=Context().expansion)
    return replace(
        trajectory,
        segments=tuple(
            replace(
                one,
                images=tuple(picture(SHADES[image.sha256]) for image in one.images),
                features=(feature,) * len(one.images),
            )
            if one.images
            else one
            for one in trajectory.segments
        ),
        messages=tuple(fresh(one) for one in trajectory.messages),
        branches=tuple(
            replace(branch, history=tuple(fresh(entry) for entry in branch.history))
            for branch in trajectory.branches
        ),
    )


@dataclass(slots=True)
class Live:
    """An episode that waits for its next reply."""

    record: EpisodeRecord
    spec: EpisodeSpec
    shown: Shown


class Family:
    """One episode and its forks, driven as the rollout loop drives them."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.rng, self.counts = random.Random(seed), counts
        self.live: list[Live] = []
        self.stored: dict[str, Trajectory] = {}
        """Finished and aborted ones by episode id."""
        self.prompts: dict[int, Shown] = {}
        """What the engine was shown when it sampled the reply that begins with an id."""
        self.dropped: set[int] = set()
        self.sampled = FIRST_SAMPLED
        self.said = 0
        self.seed = seed
        spec = EpisodeSpec(env_id="campaign", seed=seed, episode_id="trunk", group_id="family")
        record = EpisodeRecord()
        record.initial_observation_hash = "start"
        record.messages += [message("system", "Act."), self.observation()]
        first = encoded_view(record.messages)
        record.ledger.start(first, turn=0)
        self.live.append(Live(record, spec, Shown().extended(first)))

    # ---- operations

    def operate(self) -> bool:
        """Do one random thing that is possible now; return False if only files are left."""
        parked = [one for one in self.stored.values() if one.stop_reason is StopReason.ABORTED]
        over = [one for one in self.stored.values() if one not in parked and one.turns]
        choices: list[tuple[str, int]] = []
        if self.live:
            choices += [("append", 150), ("rewrite", 40), ("summary", 15), ("abort", 20)]
            choices.append(("end", 6 if len(self.live) > 1 else 2))
        if parked:
            choices.append(("resume", 36))
        if over and len(self.live) + len(self.stored) < MAX_EPISODES:
            choices.append(("fork", 30))
        if self.stored:
            choices.append(("store", 1))
        if all(name == "store" for name, _ in choices):
            return False
        names, weights = zip(*choices, strict=True)
        (name,) = self.rng.choices(names, weights)
        self.counts[name] += 1
        if name == "resume":
            self.resume(self.rng.choice(parked))
        elif name == "fork":
            self.fork(self.rng.choice(over))
        elif name == "store":
            self.store()
        else:
            one = self.rng.choice(self.live)
            getattr(self, name)(one)
        return True

    def append(self, one: Live) -> None:
        """Sample a reply and append what the environment says."""
        self.reply(one)
        self.answer(one)
        self.extend(one)

    def rewrite(self, one: Live) -> None:
        """Sample a reply and start a new sequence from a shorter history."""
        self.reply(one)
        self.answer(one)
        self.restart(one)

    def summary(self, one: Live) -> None:
        """Sample a reply, then a summary of its own turn, and start from that."""
        self.reply(one)
        self.answer(one)
        self.extend(one, close=False)
        one.record.close_turn()
        self.reply(one, purpose="summarise")
        self.restart(one)

    def end(self, one: Live) -> None:
        """Finish an episode, by its last step or by a fault."""
        self.reply(one)
        reason = StopReason.TERMINATED
        if self.rng.random() < 0.15:
            reason = StopReason.ENV_FAULT
            one.record.fault = FaultRecord(
                where=FaultPlace.STEP, kind=FaultKind.TRANSIENT, message="lost"
            )
            self.counts["fault"] += 1
        else:
            self.answer(one)
            one.record.close_turn()
        self.leave(one, reason)

    def abort(self, one: Live) -> None:
        """Cut an episode between turns, in a reply or between a reply and its step."""
        place = self.rng.choice(("between", "reply", "step"))
        if place == "reply" and one.record.ledger.whole_reply(one.record.turn) is None:
            self.sample(one, finish_reason="abort")
            one.record.say(message("assistant", self.reply_text(one)))
        elif place == "step" or one.record.ledger.whole_reply(one.record.turn) is not None:
            self.reply(one)
        elif one.record.ledger.reply_ids(one.record.turn):  # it was cut, and is cut again
            self.draft(one).finish_reason = "abort"
            one.record.say(message("assistant", self.reply_text(one)))
        self.leave(one, StopReason.ABORTED)

    def resume(self, trajectory: Trajectory) -> None:
        """Continue an aborted episode as the loop does."""
        del self.stored[trajectory.episode_id]
        record = EpisodeRecord()
        record.take_over(trajectory, trajectory.segments)
        record.initial_observation_hash = "start"
        one = Live(record, resumed_spec(trajectory, 0), self.context_of(record))
        self.live.append(one)
        segments = record.ledger.segments
        is_answered = segments[-1].kind is SegmentKind.MODEL
        if is_answered and not record.ledger.reply_ids(record.turn):
            if self.rng.random() < 0.3 or not record.unanswered():
                self.restart(one)
            else:
                self.extend(one)

    def fork(self, parent: Trajectory) -> None:
        """Fork a finished episode before one of its turns, its own or a shared one."""
        known = {s.turn for s in parent.segments if s.kind is SegmentKind.MODEL}
        turns = [one.turn for one in parent.turns if one.purpose is None and one.turn in known]
        if not turns:
            return
        name = f"fork{len(self.live) + len(self.stored)}"
        turn = self.rng.choice(turns)
        fork = fork_before(parent, turn, episode_id=name)
        first = next(
            s.train_ids[0]
            for s in parent.segments
            if s.kind is SegmentKind.MODEL and s.turn == turn
        )
        self.stored[name] = fork
        self.resume(fork)
        assert self.live[-1].shown == self.prompts[first], "a fork starts from another context"

    def store(self) -> None:
        """Write what is not running, read it back, and continue with what was read."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "family.jsonl"
            save(self.stored.values(), path)
            found = {one.episode_id: one for one in load(path)}
            assert found.keys() == self.stored.keys()
            self.counts["load"] += 1
            self.counts["certificates"] += len(found)
            report = verify_file(path)  # computes every certificate again
            problems = [one for one in report.problems if not self.is_awaited(one)]
            assert problems == [], str(report)
            self.stored = {name: with_features(one) for name, one in found.items()}

    def is_awaited(self, problem: Problem) -> bool:
        """Return whether a problem is only that a parent runs again and is not in the file."""
        running = [one.spec.episode_id for one in self.live]
        is_missing = problem.rule is Rule.TREE and "is not in the file" in problem.message
        return is_missing and any(f"{name!r}" in problem.message for name in running)

    # ---- what the operations consist of

    def observation(self) -> Message:
        """Return something new that the environment says."""
        self.said += 1
        shades = [self.rng.randrange(5)] if self.rng.random() < 0.3 else []
        return message("user", f"Observation {self.said}.", [picture(one) for one in shades])

    def sample(self, one: Live, *, finish_reason: str = "stop") -> None:
        """Sample part of a reply; the ledger must show the engine what the shadow does."""
        record, ledger = one.record, one.record.ledger
        assert list(ledger.wire_ids) == one.shown.wire
        assert ledger.train_length == len(one.shown.train)
        assert [image.sha256 for image in ledger.images] == one.shown.images
        assert len(ledger.features) == len(ledger.images)
        draft = record.draft or self.draft(one)
        ids = list(range(self.sampled, self.sampled + self.rng.randint(1, 4)))
        self.sampled += len(ids)
        self.prompts[ids[0]] = one.shown
        ledger.add_reply(
            ids,
            [-self.rng.random() for _ in ids],
            turn=draft.turn,
            finish_reason=finish_reason,
            weight_version=None,
            extras={},
        )
        draft.response_tokens += len(ids)
        draft.finish_reason = finish_reason
        one.shown = one.shown.sampled(ids)

    @staticmethod
    def draft(one: Live) -> TurnDraft:
        """Begin a turn, with what an abort left of its reply."""
        record, ledger = one.record, one.record.ledger
        partial = len(ledger.reply_ids(record.turn))
        record.draft = TurnDraft(
            turn=record.turn,
            prompt_tokens=ledger.train_length - partial,
            response_tokens=partial,
        )
        return record.draft

    def reply(self, one: Live, *, purpose: str | None = None) -> None:
        """Sample a whole reply, sometimes after one that was rejected."""
        record, ledger = one.record, one.record.ledger
        known = ledger.whole_reply(record.turn)
        if known is None:
            while True:
                self.sample(one)
                if purpose is not None or self.rng.random() > 0.08:
                    break
                rejected = ledger.reply_ids(record.turn)
                self.dropped.update(rejected)
                self.counts["resample"] += 1
                ledger.drop_reply(record.turn)
                one.shown = self.prompts[rejected[0]]
                assert record.draft is not None
                record.draft.response_tokens = 0
        else:
            self.draft(one).finish_reason = known.finish_reason
        assert record.draft is not None
        record.draft.purpose = purpose
        record.draft.response_text = self.reply_text(one)
        record.say(message("assistant", record.draft.response_text))

    def reply_text(self, one: Live) -> str:
        """Return the text of the turn's reply."""
        return f"Reply {one.record.ledger.reply_ids(one.record.turn)[0]}."

    def answer(self, one: Live) -> None:
        """Let the environment answer the reply."""
        draft = one.record.draft
        assert draft is not None
        observation = self.observation()
        draft.step = Step(
            observation={"text": text_of(observation), "images": (), "role": "user"},
            reward=self.rng.choice((0.0, 1.0)),
            terminated=False,
            truncated=False,
            info={},
        )
        draft.step_hash = f"step{self.said}"
        one.record.say(observation)

    def extend(self, one: Live, *, close: bool = True) -> None:
        """Append what was said after the last reply."""
        encoded = [encoded_message(entry) for entry in one.record.unanswered()]
        (delta,) = encoded
        one.record.add_observation(delta, 0.0)
        one.shown = one.shown.extended(delta)
        if close:
            one.record.close_turn()

    def restart(self, one: Live) -> None:
        """Start a sequence: some messages are dropped, one is rewritten."""
        record = one.record
        view = list(record.view)
        kept = [entry for entry in view[1:-1] if self.rng.random() < 0.5]
        note = message("user", f"Note {self.rng.randrange(100)}.")
        last = view[-1] if view[-1]["role"] == "user" else note
        rewrite = record.rewrite([view[0], *kept, note, last], "campaign")
        encoded = encoded_view(record.view)
        record.add_observation(encoded, 0.0, rewrite)
        record.close_turn()
        one.shown = Shown().extended(encoded)

    def leave(self, one: Live, reason: StopReason) -> None:
        """Record an episode that no longer runs."""
        self.live.remove(one)
        found = one.record.trajectory(reason, one.spec, env_restarts=0, engine="campaign")
        self.stored[found.episode_id] = found

    def context_of(self, record: EpisodeRecord) -> Shown:
        """Return what was shown last, from the shadow's own notes."""
        segments = record.ledger.segments
        for index in range(len(segments) - 1, -1, -1):
            segment = segments[index]
            if segment.kind is SegmentKind.MODEL:
                ids = segment.train_ids
                shown = self.prompts[ids[0]].sampled(ids)
                rest = segments[index + 1 :]
                break
        else:
            shown, rest = Shown(), segments
        assert len(rest) <= 1, "more than an observation after the last reply"
        for segment in rest:
            if segment.kind is SegmentKind.PROMPT:
                shown = Shown()
            shown = Shown(
                train=[*shown.train, *segment.train_ids],
                wire=[*shown.wire, *segment.wire_ids],
                images=[*shown.images, *(image.sha256 for image in segment.images)],
            )
        return shown

    # ---- the end

    def check(self) -> None:
        """Abort what still runs, store it, and count the owners of every sampled token."""
        while self.live:
            self.abort(self.live[0])
        self.store()
        masked: set[int] = set()
        for one in self.stored.values():
            self.check_sequences(one)
            if one.is_faulted:
                first = 0 if one.origin is None else one.origin.segments
                own = [s for s in one.segments[first:] if s.kind is SegmentKind.MODEL]
                masked.update(i for s in own for i in s.train_ids)
        sampled = set(range(FIRST_SAMPLED, self.sampled))
        for merge in (False, True):
            owners: Counter[int] = Counter()
            for one in self.stored.values():
                for row in one.steps(merge=merge):
                    owners.update(
                        i for i, m in zip(row.response_ids, row.loss_mask, strict=True) if m
                    )
            assert set(owners.values()) <= {1}, "a token has two owners"
            lost = sampled - owners.keys()
            assert lost == self.dropped | masked, "a token has no owner"
        self.counts["sampled tokens"] += len(sampled)
        self.counts["dropped tokens"] += len(self.dropped)
        self.counts["tokens of faulted episodes"] += len(masked)
        self.counts["episodes"] += len(self.stored)
        self.counts["families"] += 1

    def check_sequences(self, trajectory: Trajectory) -> None:
        """Compare each sequence with what the engine was shown."""
        for sequence in trajectory.sequences():
            seen = Shown()
            for segment in sequence.segments:
                if segment.kind is SegmentKind.MODEL:
                    assert seen == self.prompts[segment.train_ids[0]]
                    seen = seen.sampled(segment.train_ids)
                else:
                    assert not any(segment.loss_mask)
                    seen = Shown(
                        train=[*seen.train, *segment.train_ids],
                        wire=[*seen.wire, *segment.wire_ids],
                        images=[*seen.images, *(image.sha256 for image in segment.images)],
                    )
            self.counts["sequences"] += 1


OPERATIONS = ("append", "rewrite", "summary", "end", "abort", "resume", "fork", "store", "load")


def run_family(seed: int, counts: Counter[str], operations: int = FAMILY_OPERATIONS) -> None:
    """Play and check one family.

    Raises:
        AssertionError: A rule is broken; the message names the seed.
    """
    family = Family(seed, counts)
    try:
        for _ in range(operations):
            if not family.operate():
                break
        family.check()
    except Exception as error:
        raise AssertionError(f"family {seed} of {operations} operations: {error}") from error
