"""Find the recorded reply that a request continues, and whether it repeats an earlier request."""

from collections.abc import Sequence, Set

from envkit_gateway.messages import AgentMessage, thinking_of
from envkit_gateway.request import AgentRequest
from envkit_gateway.turn import Turn, TurnState


class Committed:
    """The committed replies of a session, by the conversation that ends with them."""

    def __init__(self) -> None:
        self._turns: dict[str, list[Turn]] = {}

    def add(self, key: str, turn: Turn) -> None:
        """File a reply under the key of the conversation up to it."""
        self._turns.setdefault(key, []).append(turn)

    def longest(
        self, keys: Sequence[str], messages: Sequence[AgentMessage]
    ) -> tuple[Turn | None, int]:
        """Return the reply that a request continues, and how many messages that covers.

        The thinking of a recorded reply may be missing from a request, since many clients drop it;
        edited thinking, and other thinking in a reply that the client quotes, is another
        conversation.

        Args:
            keys: Key of each prefix of the request.
            messages: Messages of the request.
        """
        for count in reversed(range(1, len(messages))):
            known = self._turns.get(keys[count - 1], ())
            # Several replies may say the same: the one that the client received, and the latest of
            # these.
            for turn in sorted(known, key=_preference, reverse=True):
                if _keeps_thinking(turn, messages):
                    return turn, count
        return None, 0


def _keeps_thinking(turn: Turn, messages: Sequence[AgentMessage]) -> bool:
    """Return whether no message up to a turn comes back with other thinking."""
    expected = [{thinking_of(one)} for one in turn.request.messages] + [{""}]
    known: Turn | None = turn
    while known is not None:
        assert known.reply is not None  # it was committed
        expected[known.place] = {"", thinking_of(known.reply.message)}
        known = known.parent
    return all(map(_is_one_of, messages, expected))


def _is_one_of(entry: AgentMessage, thoughts: Set[str]) -> bool:
    return thinking_of(entry) in thoughts


def _preference(turn: Turn) -> tuple[bool, int]:
    return turn.state in (TurnState.DELIVERED, TurnState.READ), turn.number


def is_retry(request: AgentRequest, earlier: Turn) -> bool:
    """Return whether a request with the same body as an earlier one is its retry.

    An equal body alone proves nothing: agents resend a request to get a new sample, and identical
    sub-agents send identical prompts.
    """
    return request.is_retry or earlier.state in (TurnState.LOST, TurnState.READ)


def is_rejected(earlier: Turn) -> bool:
    """Return whether asking again means that the client rejected a reply."""
    is_bad = earlier.reply is not None and earlier.reply.is_bad
    return is_bad and earlier.state is TurnState.DELIVERED and not earlier.children
