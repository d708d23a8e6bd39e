"""A conversation's ids are encoded once, and every request sends exactly its own."""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import LedgerFault
from envkit_remote.conversations import Conversations

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30)
REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), IDS), max_size=20)


@given(REQUESTS, st.integers(0, 2000))
def test_prompt_is_the_json_of_its_own_ids(
    requests: list[tuple[str, int, list[int]]], kept_bytes: int
) -> None:
    conversations = Conversations(None, kept_bytes=kept_bytes)
    last: dict[str, list[int]] = {}
    for name, kept, new in requests:
        ids = last[name] = [*last.get(name, ())[:kept], *new]
        prompt = conversations.prompt(name, array("i", ids))
        assert json.loads(prompt.json) == ids
        assert len(prompt) == len(ids)
        assert prompt.count(ids[0]) == ids.count(ids[0])


def test_prompt_of_the_same_ids_is_not_encoded_again() -> None:
    conversations = Conversations(10)
    first = conversations.prompt("a", [1, 2])
    assert conversations.prompt("a", [1, 2]) is first
    assert conversations.prompt("b", [1, 2]) is not first
    conversations.forget("a")
    conversations.forget("never seen")
    assert conversations.prompt("a", [1, 2]) is not first


def test_conversation_unused_for_longest_is_forgotten_first() -> None:
    conversations = Conversations(None, kept_bytes=30)  # ids and JSON of one take 4 + 3 bytes
    kept = {name: conversations.prompt(name, [1]) for name in "abcd"}
    assert conversations.prompt("a", [1]) is kept["a"]
    conversations.prompt("e", [1])
    assert conversations.prompt("b", [1]) is not kept["b"]


@pytest.mark.parametrize("new", [[10], [-1], [2**31], [-(2**31) - 1]])
@pytest.mark.parametrize("start", [[], [3, 4]])
def test_id_out_of_range_is_rejected_at_any_place(start: list[int], new: list[int]) -> None:
    conversations = Conversations(10)
    if start:
        conversations.prompt("a", start)
    with pytest.raises(LedgerFault, match=str(new[0])):
        conversations.prompt("a", [*start, *new])
    assert (
        conversations.prompt("a", [*start, 5]).json
        == json.dumps([*start, 5], separators=(",", ":")).encode()
    )


def test_prompt_without_ids_is_rejected() -> None:
    with pytest.raises(LedgerFault, match="at least one token id"):
        Conversations(None).prompt("a", [])
