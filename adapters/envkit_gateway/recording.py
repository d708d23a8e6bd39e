"""Convert a session to a trajectory: a sequence per conversation, one owner per sampled token."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from envkit.messages import Message, text_of
from envkit.rollout.record import EpisodeRecord
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.sequence import Branch
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import AGENT, Trajectory
from envkit_gateway.credit import Credit, credit_turns, number_calls
from envkit_gateway.kinds import MAIN, Train, kinds_of
from envkit_gateway.session import Session
from envkit_gateway.turn import OpenSequence, Turn, TurnState

_ENDS: Final = {
    FaultPlace.GENERATE: StopReason.ENGINE_FAULT,
    FaultPlace.LEDGER: StopReason.LEDGER_FAULT,
}
"""How faults outside the environment end an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd:
    """How an agent's episode ended."""

    stop_reason: StopReason
    reward: float | None = None
    """The reward of the last call, in addition to the earlier ones. None after a fault or an
    abort; else finite."""
    earlier: tuple[Credit, ...] = ()
    """Rewards that were given while the agent ran; finite, and so are all sums with `reward`."""
    fault: FaultRecord | None = None
    info: Mapping[str, Any] | None = None
    """Info of the environment's last step, for the last call."""

    @classmethod
    def after(cls, fault: FaultRecord) -> "AgentEnd":
        """Return the outcome of an episode that a fault ended."""
        return cls(stop_reason=_ENDS.get(fault.where, StopReason.ENV_FAULT), fault=fault)

    @property
    def total(self) -> float | None:
        """The episode's reward; None after a fault or an abort."""
        if self.reward is None:
            return None
        return self.reward + sum(one.reward for one in self.earlier)


def trajectory_of(
    session: Session,
    outcome: AgentEnd,
    record: EpisodeRecord,
    *,
    train: Train = Train.RULE,
    env_restarts: int = 0,
) -> Trajectory:
    """Return the record of a session.

    Sequences are in the order in which they began; `Trajectory.call_order` is that of the calls.
    Replies that the agent never saw or rejected stay in the record with mask 0, as do those of
    sequences that are not trained.

    Args:
        session: A closed session.
        outcome: How it ended.
        record: Record of the environment's reset (task, info, start); this function completes it.
        train: Which sequences are trained.
        env_restarts: How often the episode started over in a new environment.
    """
    sequences = [
        sequence
        for sequence in session.sequences
        if any(one.reply is not None for one in sequence.turns)
    ]
    writer = _Writer(session, record, kinds=kinds_of(sequences), train=train)
    for sequence in sequences:
        writer.add(sequence)
    number_calls(record, writer.numbers)
    if outcome.reward is not None:
        credit_turns(
            record,
            writer.numbers,
            final=outcome.reward,
            earlier=outcome.earlier,
            info=outcome.info or {},
        )
    record.fault = outcome.fault
    spec = session.spec
    about = {
        "sequences": dict(Counter(writer.kinds[id(sequence)] for sequence in sequences)),
        "untrained": dict(writer.untrained),
        "unenforced": dict(writer.unenforced),
        "requests": dict(session.counts),
    }
    return record.trajectory(
        outcome.stop_reason,
        replace(spec, metadata={**spec.metadata, AGENT: about}),
        env_restarts=env_restarts,
        engine=session.setup.engine.name,
    )


class _Writer:
    """Appends sequences to one record."""

    def __init__(
        self,
        session: Session,
        record: EpisodeRecord,
        *,
        kinds: Mapping[int, str],
        train: Train,
    ) -> None:
        self._record, self._train = record, train
        self.kinds = kinds
        """Kinds of the sequences, by identity."""
        self._kept = _kept(session.turns)
        self._places: dict[int, int] = {}  # index in the record of a message, by its identity
        self._sequences: dict[int, int] = {}  # index of an open one, by its identity
        self.numbers: list[int] = []
        """The number of each turn's request in the session."""
        self.untrained: Counter[str] = Counter()
        """Sampled tokens that are not trained, by reason."""
        self.unenforced: Counter[str] = Counter()
        """Replies whose request wanted what no engine enforces, by setting."""

    def add(self, sequence: OpenSequence) -> None:
        """Append a sequence's own segments, turns and messages."""
        record = self._record
        turns = [one for one in sequence.turns if one.reply is not None]
        if record.ledger.segments:
            record.ledger.branches.append(self._branch(sequence))
        elif record.turns:  # of a chat endpoint, which has no ledger
            self._say(_news(sequence))
        else:
            self._say(_without_replies(sequence.prompt))
        self._sequences[id(sequence)] = len(self._sequences)
        start = sequence.shared
        for turn in turns:
            self._add_turn(sequence, turn, start)
            start = turn.segments

    def _add_turn(self, sequence: OpenSequence, turn: Turn, start: int) -> None:
        record, reply = self._record, turn.reply
        assert reply is not None  # the caller chose those that have one
        number = len(record.turns)
        kind = self.kinds[id(sequence)]
        reason = None if turn in self._kept else turn.state.value
        if self._train.leaves_out(kind):
            reason = kind
        own = sequence.record.ledger.segments[start : turn.segments]
        record.ledger.segments += [
            _numbered(one, number, is_context=reason is not None) for one in own
        ]
        known = sequence.record.turns[turn.local]
        is_followed = any(
            one.sequence is sequence and one.reply is not None for one in turn.children
        )
        label = sequence.label if kind != MAIN else ""  # some clients label every request
        info: dict[str, Any] = {} if kind == MAIN else {"agent": f"{kind} {label}".strip()}
        if turn.request.unenforced:
            info["unenforced"] = list(turn.request.unenforced)
            self.unenforced.update(turn.request.unenforced)
        record.turns.append(
            replace(
                # The observation after it was sent in another sequence, or in none.
                known if is_followed else known.without_observation(),
                turn=number,
                purpose=reason,
                info=info,
            )
        )
        self.numbers.append(turn.number)
        if reason is not None:
            self.untrained[reason] += len(reply.generation.token_ids)
        said = sequence.record.messages
        first = (
            len(sequence.prompt)
            if turn is sequence.turns[0]
            else sequence.turns[sequence.turns.index(turn) - 1].said
        )
        self._say(said[first : turn.said])

    def _branch(self, sequence: OpenSequence) -> Branch:
        """Describe where a sequence starts, after adding what its prompt has that is new."""
        record, trunk = self._record, sequence.trunk
        assert sequence.reason is not None  # only the first sequence has none
        self._say(_news(sequence))
        parent = None if trunk is None else self._sequences[id(trunk.sequence)]
        return Branch(
            segment=len(record.ledger.segments),
            parent=parent,
            at=sequence.shared,
            reason=sequence.reason.value,
            message_count=len(record.messages),
            history=tuple(self._places.get(id(one), one) for one in sequence.prompt),
        )

    def _say(self, messages: Sequence[Message]) -> None:
        for one in messages:
            self._places[id(one)] = len(self._record.messages)
            self._record.messages.append(one)


def _kept(turns: Sequence[Turn]) -> set[Turn]:
    """Return the turns whose reply the agent received or continued from."""
    kept: set[Turn] = set()
    for turn in reversed(turns):  # children come after their parents
        # A client that continues from a reply has received it.
        if turn.state in (TurnState.DELIVERED, TurnState.READ) or turn in kept:
            kept.add(turn)
            if turn.parent is not None:
                kept.add(turn.parent)
    return kept


def _news(sequence: OpenSequence) -> Sequence[Message]:
    """Return what a sequence's prompt adds to the conversations before it."""
    return (
        _tail(sequence.prompt) if sequence.trunk is None else sequence.prompt[sequence.trunk.said :]
    )


def _tail(prompt: Sequence[Message]) -> list[Message]:
    """Return what follows the last reply in a prompt."""
    last = max((n for n, one in enumerate(prompt) if one["role"] == "assistant"), default=-1)
    return [one for one in prompt[last + 1 :] if one["role"] != "system" or last < 0]


def _without_replies(prompt: Sequence[Message]) -> list[Message]:
    """Return a prompt whose quoted replies are user messages: a record counts replies as turns."""
    return [
        {"role": "user", "content": f"[assistant] {text_of(one)}"}
        if one["role"] == "assistant"
        else one
        for one in prompt
    ]


def _numbered(segment: Segment, number: int, *, is_context: bool) -> Segment:
    """Return a segment with its turn's index in the record, which counts all sequences."""
    if is_context and segment.kind is SegmentKind.MODEL:
        segment = segment.as_context()
    return segment if segment.turn == number else segment.with_turn(number)
