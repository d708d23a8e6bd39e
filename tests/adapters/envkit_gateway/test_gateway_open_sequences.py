"""How sequences of a session start, continue, branch and are undone."""

from typing import Any

import pytest

from envkit.messages import message
from envkit.tokens import Encoded
from envkit.trajectory import TurnRecord
from envkit_gateway.messages import AgentMessage
from envkit_gateway.open_sequences import OpenSequences
from envkit_gateway.reading import read_tool
from envkit_gateway.request import AgentRequest, AgentTool
from envkit_gateway.turn import ForkReason, OpenSequence, Turn

ADD = read_tool({"name": "add"})
TASK = {"word": "alpha"}


def sequences() -> OpenSequences:
    return OpenSequences(TASK)


def request(*roles: Any, system: str = "", tools: tuple[AgentTool, ...] = ()) -> AgentRequest:
    found = [AgentMessage(role="system", parts=({"type": "text", "text": system},))]
    found += [AgentMessage(role=role) for role in roles or ("user",)]
    return AgentRequest(messages=tuple(found), tools=tools, label="label")


def opened(sequence: OpenSequence, parent: Turn | None) -> Turn:
    """Return a turn whose request is not encoded yet."""
    nothing: Any = None
    turn = Turn(
        number=0, sequence=sequence, parent=parent, request=request(), prefix="", place=0,
        encoded=nothing,
    )  # fmt: skip
    if parent is not None:
        parent.children.append(turn)
    return turn


def asked(sequence: OpenSequence, parent: Turn | None, *ids: int) -> Turn:
    """Append a request to a sequence, as a session does."""
    turn, record = opened(sequence, parent), sequence.record
    record.messages.append(message("user", str(ids)))
    encoded = Encoded(wire_ids=ids, train_ids=ids)
    if parent is None:
        record.ledger.start(encoded, turn=0)
    else:
        record.add_observation(encoded, 0.0)
    sequence.turns.append(turn)
    return turn


def replied(turn: Turn, token: int) -> Turn:
    """Commit a reply, as a session does."""
    record = turn.sequence.record
    record.ledger.add_reply(
        (token,), (0.0,), turn=record.turn, finish_reason="stop", weight_version=None, extras={}
    )
    record.messages.append(message("assistant", str(token)))
    record.turns.append(TurnRecord(turn=record.turn, prompt_tokens=1))
    turn.local, turn.said = record.turn - 1, len(record.messages)
    turn.segments = len(record.ledger.segments)
    return turn


def two_turns() -> tuple[OpenSequences, Turn, Turn]:
    """Return a sequence with two replies."""
    found = sequences()
    first = replied(asked(found.start(request()), None, 1, 2), 10)
    assert found.after(first, request()) is first.sequence
    return found, first, replied(asked(first.sequence, first, 3), 11)


def test_sequence_keeps_what_its_first_request_says() -> None:
    found = sequences()
    sequence = found.start(request(system="Lead.", tools=(ADD,)))
    assert found.all == [sequence]
    assert (sequence.reason, sequence.system, sequence.label) == (None, "Lead.", "label")
    assert (sequence.has_tools, sequence.tools) == (True, request(tools=(ADD,)).tools_text)
    assert (sequence.record.task, sequence.record.tools) == (TASK, (ADD,))
    assert (sequence.trunk, sequence.shared, sequence.turns) == (None, 0, [])
    other = found.start(request())
    assert not other.has_tools
    assert found.all == [sequence, other]


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (request(system="b"), ForkReason.OTHER_SYSTEM_PROMPT),
        (request(system="b", tools=(ADD,)), ForkReason.OTHER_SYSTEM_PROMPT),
        (request(system="a"), ForkReason.OTHER_TOOLS),
        (request("user", "assistant", "user", system="a"), ForkReason.OTHER_TOOLS),
        (request(system="a", tools=(ADD,)), ForkReason.NEW_CONVERSATION),
        (request("user", "tool", system="a", tools=(ADD,)), ForkReason.NEW_CONVERSATION),
        (request("user", "assistant", system="a", tools=(ADD,)), ForkReason.REWRITTEN_HISTORY),
    ],
)
def test_sequence_says_why_it_continues_nothing(new: AgentRequest, reason: ForkReason) -> None:
    found = sequences()
    assert found.start(request("user", "assistant", system="a", tools=(ADD,))).reason is None
    assert found.start(new).reason is reason
    assert found.start(new, ForkReason.TEMPLATE).reason is ForkReason.TEMPLATE


def test_sequence_with_the_tools_of_any_equal_system_prompt_is_another_conversation() -> None:
    found = sequences()
    found.start(request(system="a"))
    found.start(request(system="a", tools=(ADD,)))
    assert found.start(request(system="a")).reason is ForkReason.NEW_CONVERSATION


def test_request_continues_the_sequence_of_its_last_reply_once() -> None:
    found, _, second = two_turns()
    assert found.after(second, request()) is second.sequence
    assert second.is_extended
    branch = found.after(second, request())
    assert branch is not second.sequence
    assert branch.reason is ForkReason.BRANCH
    assert found.all == [second.sequence, branch]


def test_request_after_an_earlier_reply_branches_from_it() -> None:
    found, first, second = two_turns()
    branch = found.after(first, request())
    record, source = branch.record, first.sequence.record

    assert (branch.trunk, branch.shared, branch.reason) == (first, 2, ForkReason.BRANCH)
    assert [tuple(one.train_ids) for one in record.ledger.segments] == [(1, 2), (10,)]
    assert not any(any(one.loss_mask) for one in record.ledger.segments)  # the trunk trains them
    assert record.messages == source.messages[:2]
    assert record.turns == source.turns[:1]
    assert branch.turns == []
    assert len(found.after(second, request()).record.turns) == 2


def test_sequence_without_its_first_turn_is_removed() -> None:
    found = sequences()
    turn = asked(found.start(request()), None, 1)
    kept = found.start(request())
    found.detach(turn)
    assert found.all == [kept]
    assert turn.sequence.turns == []


def test_sequence_forgets_a_request_that_got_no_reply() -> None:
    found, first, second = two_turns()
    sequence, record = second.sequence, second.sequence.record
    before = (list(record.ledger.segments), list(record.messages), list(record.turns))
    found.after(second, request())
    third = asked(sequence, second, 4, 5)
    assert record.turns[-1].observation_tokens == 2

    found.detach(third)
    assert (record.ledger.segments, record.messages, record.turns) == before
    assert sequence.turns == [first, second]
    assert (second.children, second.is_extended) == ([], False)
    assert found.all == [sequence]
    assert found.after(second, request()) is sequence


def test_branch_that_failed_leaves_its_trunk_alone() -> None:
    found, first, second = two_turns()
    branch = found.after(first, request())
    turn = asked(branch, first, 6)
    record = first.sequence.record
    before = (list(record.ledger.segments), list(record.messages), list(record.turns))

    found.detach(turn)
    assert (record.ledger.segments, record.messages, record.turns) == before
    assert first.children == [second]
    assert first.is_extended
    assert found.all == [first.sequence]


def test_branch_that_failed_before_its_request_was_encoded_is_removed() -> None:
    found, first, second = two_turns()
    branch = found.after(first, request())
    found.detach(opened(branch, first))
    assert found.all == [first.sequence]
    assert first.children == [second]


def test_request_that_failed_before_it_was_encoded_leaves_the_record_alone() -> None:
    found, first, second = two_turns()
    sequence, record = second.sequence, second.sequence.record
    before = (list(record.ledger.segments), list(record.messages), list(record.turns))
    found.after(second, request())
    found.detach(opened(sequence, second))
    assert (record.ledger.segments, record.messages, record.turns) == before
    assert not second.is_extended
    assert sequence.turns == [first, second]
