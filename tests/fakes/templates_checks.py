"""The comparisons of codec and oracle that several test modules run over their templates."""

from typing import Any

from fakes.templates import encode, literal_codec, render
from fakes.templates_oracle import (
    MARKER,
    TOOLS,
    NotApplicableError,
    assert_ids,
    conversations,
    sampled,
    truth,
    turns,
)
from hypothesis import assume
from hypothesis import strategies as st

from envkit.messages import images_of, text_of
from envkit.tokens import Encoded, SanityStatus


def check_deltas(name: str, data: Any) -> None:
    """Compare what follows each reply, closed by the model or cut short."""
    codec = literal_codec(name)
    messages = data.draw(conversations(name))
    tools = data.draw(st.sampled_from([None, TOOLS]))
    cut_short = data.draw(st.booleans())
    compared = 0
    for turn in turns(messages):
        try:
            want = truth(name, messages, turn, tools)
        except NotApplicableError:
            continue
        observations = messages[turn.reply + 1 : turn.end]
        got = codec.encode_observation(
            observations,
            sampled_ids=[5, 6] if cut_short else sampled(name, want, want.closer_index),
            history=messages[: turn.reply + 1],
            tools=tools or (),
        )
        compared += 1
        closer = want.ids[want.closer_index]
        assert_ids(name, got.wire_ids, [closer, *want.tail] if cut_short else want.tail)
        report = codec.check_observation(
            observations,
            got,
            history=messages[: turn.reply + 1],
            sampled_ids=[5, 6] if cut_short else sampled(name, want, want.closer_index),
            tools=tools or (),
        )
        assert report.status is SanityStatus.EQUAL, report
        _check_images(got, observations)
    assume(compared)


def check_append_only_ledger(name: str, data: Any) -> None:
    """Play a conversation turn by turn; the ledger must be the full render."""
    codec = literal_codec(name)
    assert not codec.rewrites_history
    messages = data.draw(conversations(name))
    tools = data.draw(st.sampled_from([None, TOOLS]))
    places = turns(messages)
    ledger = list(codec.encode_prompt(messages[: places[0].reply], tools=tools or ()).wire_ids)
    for turn in places:
        try:
            want = truth(name, messages, turn, tools)
        except NotApplicableError:
            assume(False)
            return
        assert_ids(name, want.ids[: len(ledger)], ledger)
        reply = sampled(name, want, len(ledger))
        if not messages[turn.reply].get("tool_calls"):
            assert codec.decode(reply).strip() == text_of(messages[turn.reply])
        delta = codec.encode_observation(
            messages[turn.reply + 1 : turn.end],
            sampled_ids=reply,
            history=messages[: turn.reply + 1],
            tools=tools or (),
        )
        ledger += [*reply, *delta.wire_ids]
        assert_ids(name, ledger, want.ids)


def check_rewriting_has_a_witness(name: str) -> None:
    """Find a conversation whose prompts do not grow by appending."""
    codec = literal_codec(name)
    assert codec.rewrites_history
    assert codec.audit().policy_required
    assert codec.audit().policy == codec.history == "keep"
    assert any(_is_rewritten(name, said, tools) for said in _REPLIES for tools in (None, TOOLS))


_REPLIES = (
    f"It is four. {MARKER % 0}",
    f"<think>\nhm\n</think>\n\nIt is four. {MARKER % 0}",
    f"hm\n</think>\n\nIt is four. {MARKER % 0}",
)


def _is_rewritten(name: str, said: str, tools: Any) -> bool:
    messages = [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "Sure?"},
    ]
    first = encode(name, render(name, messages[:2], tools=tools))
    try:
        want = truth(name, messages, turns(messages)[0], tools)
    except NotApplicableError:
        return False
    reply = sampled(name, want, len(first))
    # what the model says there must follow the prompt: its reasoning, answer and stop token
    kept = literal_codec(name).decode(reply).startswith(said)
    return want.ids[: len(first)] != first or reply[-1] != want.ids[want.closer_index] or not kept


def _check_images(encoded: Encoded, messages: Any) -> None:
    assert encoded.images == images_of(messages)
    assert len(encoded.features) == len(encoded.images)
    added = sum(feature.token_count - 1 for feature in encoded.features)
    assert len(encoded.train_ids) == len(encoded.wire_ids) + added
