"""How sequences of a session start, continue, branch and are undone."""

from typing import Any

import pytest

from envkit.messages import message
from envkit.tokens import Encoded
from envkit.trajectory import TurnRecord
from envkit_gateway.lanes import Lanes
from envkit_gateway.messages import AgentMessage
from envkit_gateway.reading import read_tool
from envkit_gateway.request import AgentRequest, AgentTool
from envkit_gateway.turn import ForkReason, Lane, Turn

ADD = read_tool({"name": "add"})
TASK = {"word": "alpha"}


def lanes() -> Lanes:
    return Lanes(TASK)


def request(*roles: Any, system: str = "", tools: tuple[AgentTool, ...] = ()) -> AgentRequest:
    found = [AgentMessage(role="system", parts=({"type": "text", "text": system},))]
    found += [AgentMessage(role=role) for role in roles or ("user",)]
    return AgentRequest(messages=tuple(found), tools=tools, label="label")


def opened(lane: Lane, parent: Turn | None) -> Turn:
    """Return a turn whose request is not encoded yet."""
    nothing: Any = None
    turn = Turn(
        number=0, lane=lane, parent=parent, request_key="", prefix="", unenforced=(), place=0,
        asked=(), has_instructions=False, tools=(), continues_reply=False, encoded=nothing,
    )  # fmt: skip
    if parent is not None:
        parent.children.append(turn)
    return turn


def asked(lane: Lane, parent: Turn | None, *ids: int) -> Turn:
    """Append a request to a lane, as a session does."""
    turn, record = opened(lane, parent), lane.record
    record.messages.append(message("user", str(ids)))
    encoded = Encoded(wire_ids=ids, train_ids=ids)
    if parent is None:
        record.ledger.start(encoded, turn=0)
    else:
        record.add_observation(encoded, 0.0)
    lane.turns.append(turn)
    return turn


def replied(turn: Turn, token: int) -> Turn:
    """Commit a reply, as a session does."""
    record = turn.lane.record
    record.ledger.add_reply(
        (token,), (0.0,), turn=record.turn, finish_reason="stop", weight_version=None, extras={}
    )
    record.messages.append(message("assistant", str(token)))
    record.turns.append(TurnRecord(turn=record.turn, prompt_tokens=1))
    turn.local, turn.said = record.turn - 1, len(record.messages)
    turn.segments = len(record.ledger.segments)
    return turn


def two_turns() -> tuple[Lanes, Turn, Turn]:
    """Return a lane with two replies."""
    found = lanes()
    first = replied(asked(found.start(request()), None, 1, 2), 10)
    assert found.after(first, request()) is first.lane
    return found, first, replied(asked(first.lane, first, 3), 11)


def test_lane_keeps_what_its_first_request_says() -> None:
    found = lanes()
    lane = found.start(request(system="Lead.", tools=(ADD,)))
    assert found.all == [lane]
    assert (lane.reason, lane.system, lane.label) == (None, "Lead.", "label")
    assert (lane.has_tools, lane.tools) == (True, request(tools=(ADD,)).tools_text)
    assert (lane.record.task, lane.record.tools) == (TASK, (ADD,))
    assert (lane.trunk, lane.shared, lane.turns) == (None, 0, [])
    other = found.start(request())
    assert not other.has_tools
    assert found.all == [lane, other]


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
def test_lane_says_why_it_continues_nothing(new: AgentRequest, reason: ForkReason) -> None:
    found = lanes()
    assert found.start(request("user", "assistant", system="a", tools=(ADD,))).reason is None
    assert found.start(new).reason is reason
    assert found.start(new, ForkReason.TEMPLATE).reason is ForkReason.TEMPLATE


def test_lane_with_the_tools_of_any_equal_system_prompt_is_another_conversation() -> None:
    found = lanes()
    found.start(request(system="a"))
    found.start(request(system="a", tools=(ADD,)))
    assert found.start(request(system="a")).reason is ForkReason.NEW_CONVERSATION


def test_request_continues_the_lane_of_its_last_reply_once() -> None:
    found, _, second = two_turns()
    assert found.after(second, request()) is second.lane
    assert second.is_extended
    branch = found.after(second, request())
    assert branch is not second.lane
    assert branch.reason is ForkReason.BRANCH
    assert found.all == [second.lane, branch]


def test_request_after_an_earlier_reply_branches_from_it() -> None:
    found, first, second = two_turns()
    branch = found.after(first, request())
    record, source = branch.record, first.lane.record

    assert (branch.trunk, branch.shared, branch.reason) == (first, 2, ForkReason.BRANCH)
    assert [tuple(one.train_ids) for one in record.ledger.segments] == [(1, 2), (10,)]
    assert not any(any(one.loss_mask) for one in record.ledger.segments)  # the trunk trains them
    assert record.messages == source.messages[:2]
    assert record.turns == source.turns[:1]
    assert branch.turns == []
    assert len(found.after(second, request()).record.turns) == 2


def test_lane_without_its_first_turn_is_removed() -> None:
    found = lanes()
    turn = asked(found.start(request()), None, 1)
    kept = found.start(request())
    found.detach(turn)
    assert found.all == [kept]
    assert turn.lane.turns == []


def test_lane_forgets_a_request_that_got_no_reply() -> None:
    found, first, second = two_turns()
    lane, record = second.lane, second.lane.record
    before = (list(record.ledger.segments), list(record.messages), list(record.turns))
    found.after(second, request())
    third = asked(lane, second, 4, 5)
    assert record.turns[-1].observation_tokens == 2

    found.detach(third)
    assert (record.ledger.segments, record.messages, record.turns) == before
    assert lane.turns == [first, second]
    assert (second.children, second.is_extended) == ([], False)
    assert found.all == [lane]
    assert found.after(second, request()) is lane


def test_branch_that_failed_leaves_its_trunk_alone() -> None:
    found, first, second = two_turns()
    branch = found.after(first, request())
    turn = asked(branch, first, 6)
    record = first.lane.record
    before = (list(record.ledger.segments), list(record.messages), list(record.turns))

    found.detach(turn)
    assert (record.ledger.segments, record.messages, record.turns) == before
    assert first.children == [second]
    assert first.is_extended
    assert found.all == [first.lane]


def test_branch_that_failed_before_its_request_was_encoded_is_removed() -> None:
    found, first, second = two_turns()
    branch = found.after(first, request())
    found.detach(opened(branch, first))
    assert found.all == [first.lane]
    assert first.children == [second]


def test_request_that_failed_before_it_was_encoded_leaves_the_record_alone() -> None:
    found, first, second = two_turns()
    lane, record = second.lane, second.lane.record
    before = (list(record.ledger.segments), list(record.messages), list(record.turns))
    found.after(second, request())
    found.detach(opened(lane, second))
    assert (record.ledger.segments, record.messages, record.turns) == before
    assert not second.is_extended
    assert lane.turns == [first, second]
