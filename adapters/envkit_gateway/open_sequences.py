"""The sequences of a running session: how they start, continue and are undone."""

from envkit.rollout.record import EpisodeRecord
from envkit.tasks import Task
from envkit_gateway.request import AgentRequest
from envkit_gateway.turn import ForkReason, OpenSequence, Turn


class OpenSequences:
    """Starts sequences, in the order of the record."""

    def __init__(self, task: Task) -> None:
        """Take the environment's task, which every record has."""
        self._task = task
        self.all: list[OpenSequence] = []

    def start(self, request: AgentRequest, reason: ForkReason | None = None) -> OpenSequence:
        """Start a sequence.

        Args:
            request: Its first request.
            reason: Why it does not continue another sequence; None determines the reason.
        """
        record = EpisodeRecord()
        record.task, record.tools = self._task, request.tools
        sequence = OpenSequence(
            record=record,
            reason=reason or self._reason(request),
            system=request.system_text,
            tools=request.tools_text,
            has_tools=bool(request.tools),
            label=request.label,
        )
        self.all.append(sequence)
        return sequence

    def after(self, parent: Turn, request: AgentRequest) -> OpenSequence:
        """Return the sequence that continues after a reply: the reply's own, or a branch."""
        sequence = parent.sequence
        # Two requests may continue one reply at the same moment: only the first one extends it.
        if sequence.turns[-1] is parent and not parent.is_extended:
            parent.is_extended = True
            return sequence
        branch = self.start(request, ForkReason.BRANCH)
        branch.trunk, branch.shared = parent, parent.segments
        record, source = branch.record, sequence.record
        # Each sampled token is trained once, in the sequence that sampled it.
        shared = [one.as_context() for one in source.ledger.segments[: parent.segments]]
        record.ledger.replay(shared)
        record.messages += source.messages[: parent.said]
        record.turns += source.turns[: parent.local + 1]
        return branch

    def detach(self, turn: Turn) -> None:
        """Remove a turn with everything that its request added, and its sequence if that is empty.

        A retry then continues where the request did.
        """
        sequence, parent = turn.sequence, turn.parent
        if turn in sequence.turns:
            sequence.turns.remove(turn)
            if parent is not None and parent.sequence is sequence:
                record = sequence.record
                if record.ledger.segments:  # a chat endpoint's has none
                    record.ledger.drop_observation()
                record.turns[-1] = record.turns[-1].without_observation()
                del record.messages[parent.said :]
        if parent is not None:
            parent.children.remove(turn)
            if parent.sequence is sequence:
                parent.is_extended = False
        if not sequence.turns:
            self.all.remove(sequence)

    def _reason(self, request: AgentRequest) -> ForkReason | None:
        """Return why a request continues no reply; None for the first one."""
        if not self.all:
            return None
        equal = [sequence for sequence in self.all if sequence.system == request.system_text]
        if not equal:
            return ForkReason.OTHER_SYSTEM_PROMPT
        if all(sequence.tools != request.tools_text for sequence in equal):
            return ForkReason.OTHER_TOOLS
        if all(one.role != "assistant" for one in request.messages):
            return ForkReason.NEW_CONVERSATION
        return ForkReason.REWRITTEN_HISTORY
