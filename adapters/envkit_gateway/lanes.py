"""The sequences of a running session: how they start, continue and are undone."""

from envkit.rollout.record import EpisodeRecord
from envkit.tasks import Task
from envkit_gateway.request import AgentRequest
from envkit_gateway.turn import ForkReason, Lane, Turn


class Lanes:
    """Starts sequences, in the order of the record."""

    def __init__(self, task: Task) -> None:
        """Take the environment's task, which every record has."""
        self._task = task
        self.all: list[Lane] = []

    def start(self, request: AgentRequest, reason: ForkReason | None = None) -> Lane:
        """Start a sequence.

        Args:
            request: Its first request.
            reason: Why it does not continue another sequence; None determines the reason.
        """
        record = EpisodeRecord()
        record.task, record.tools = self._task, request.tools
        lane = Lane(
            record=record,
            reason=reason or self._reason(request),
            system=request.system_text,
            tools=request.tools_text,
            has_tools=bool(request.tools),
            label=request.label,
        )
        self.all.append(lane)
        return lane

    def after(self, parent: Turn, request: AgentRequest) -> Lane:
        """Return the sequence that continues after a reply: the reply's own, or a branch."""
        lane = parent.lane
        if lane.turns[-1] is parent and not parent.is_extended:
            parent.is_extended = True
            return lane
        branch = self.start(request, ForkReason.BRANCH)
        branch.trunk, branch.shared = parent, parent.segments
        record, source = branch.record, lane.record
        shared = [one.as_context() for one in source.ledger.segments[: parent.segments]]
        record.ledger.replay(shared)
        record.messages += source.messages[: parent.said]
        record.turns += source.turns[: parent.local + 1]
        return branch

    def detach(self, turn: Turn) -> None:
        """Remove a turn with everything that its request added, and its lane if that is empty.

        A retry then continues where the request did.
        """
        lane, parent = turn.lane, turn.parent
        if turn in lane.turns:
            lane.turns.remove(turn)
            if parent is not None and parent.lane is lane:
                record = lane.record
                if record.ledger.segments:  # a chat endpoint's has none
                    record.ledger.drop_observation()
                record.turns[-1] = record.turns[-1].without_observation()
                del record.messages[parent.said :]
        if parent is not None:
            parent.children.remove(turn)
            if parent.lane is lane:
                parent.is_extended = False
        if not lane.turns:
            self.all.remove(lane)

    def _reason(self, request: AgentRequest) -> ForkReason | None:
        """Return why a request continues no reply; None for the first one."""
        if not self.all:
            return None
        equal = [lane for lane in self.all if lane.system == request.system_text]
        if not equal:
            return ForkReason.OTHER_SYSTEM_PROMPT
        if all(lane.tools != request.tools_text for lane in equal):
            return ForkReason.OTHER_TOOLS
        if all(one.role != "assistant" for one in request.messages):
            return ForkReason.NEW_CONVERSATION
        return ForkReason.REWRITTEN_HISTORY
