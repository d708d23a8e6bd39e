"""Reading replies: what a model may ask for, whatever it writes."""

import json
from collections.abc import Callable

import pytest
from fakes.matrix import share
from hypothesis import given
from hypothesis import strategies as st

from envkit.reply import FinishReason, Reply
from envkit_search import protocol
from envkit_search.markup import escape, plain
from envkit_search.prompts import SEARCH

Reader = Callable[[str], protocol.Action]


def tools(reply: str) -> protocol.Action:
    return protocol.read_tools(Reply(text=reply), (SEARCH,))


def tags(reply: str) -> protocol.Action:
    return protocol.read_tags(Reply(text=reply))


READERS: tuple[Reader, ...] = (tags, protocol.read_tags_compat, tools)
THOUGHT = "<think>Let me see.</think>\n"
PIECES = (
    "<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>",
    "</answer>", "<Search >", "< answer>", "<tool_call>", "</tool_call>", '{"name": "search", ',
    '"arguments": {"query": "x"}}', "Paris", " ", "\n", "<", ">", "/", "\x00", "\ud800",
    "<|im_end|>", "&lt;", "[INST]", "7",
)  # fmt: skip
replies = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


def call(query: object, **more: object) -> str:
    arguments = {"query": query, **more}
    return f"<tool_call>{json.dumps({'name': 'search', 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("reply", "kind", "content"),
    [
        (f"{THOUGHT}<search> river Vessa </search>", "search", "river Vessa"),
        (f"{THOUGHT}<answer> Paris </answer>", "answer", "Paris"),
        ("<search>a</search><answer>b</answer>", "search", "a"),
        ("<answer>b</answer><search>a</search>", "answer", "b"),
        ("<Search>a</SEARCH>", "search", "a"),
        ("<search >a</ search>", "search", "a"),
        ("<search>a\nb\tc</search>", "search", "a b c"),
        ("<search>a <answer>b</answer></search>", "search", "a b"),
        ("the prompt opened the thoughts</think><search>a</search>", "search", "a"),
        ("<think>maybe <answer>no</answer></think><search>a</search>", "search", "a"),
        ("maybe <answer>no</answer></think><search>a</search>", "search", "a"),
        ("<search>never closed <search>a</search>", "search", "never closed a"),
        ("<answer><search>a</search>", "search", "a"),
    ],
)
def test_tags_first_action_outside_thoughts_counts(reply: str, kind: str, content: str) -> None:
    action = protocol.read_tags(Reply(text=reply))
    assert action.kind == kind
    assert (action.answer if kind == "answer" else action.queries[0].text) == content
    assert action.error is None


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Paris.",
        "<think>maybe <answer>Paris</answer>? I search.</think> Now I search.",
        "<information>Paris</information>",
        "</answer>Paris<answer>",
        "<search></answer>",
        "<search>cats",
        "<answer>Paris",
        "<think><search>a</search>",
        "<THINK ><answer>Paris</answer>",
        "I think. <think>maybe <answer>Paris</answer>",
    ],
)
def test_tags_reply_without_an_action_is_an_error_and_no_exception(reply: str) -> None:
    action = protocol.read_tags(Reply(text=reply))
    assert action.kind is protocol.ActionKind.NONE
    assert action.error
    assert not action.is_well_formed


@pytest.mark.parametrize("reply", ["<search>a</search>", "<answer>a</answer>"])
def test_a_cut_or_only_thought_reply_has_no_action(reply: str) -> None:
    for said in (
        Reply(text=reply, finish=FinishReason.LENGTH),
        Reply(text=reply, opened="<think>"),
    ):
        assert protocol.read_tags(said).kind is protocol.ActionKind.NONE
        assert protocol.read_tools(said, (SEARCH,)).kind is protocol.ActionKind.NONE


@pytest.mark.parametrize(
    ("reply", "is_well_formed"),
    [
        (f"{THOUGHT}<search>a</search>", True),
        (f"\n {THOUGHT}\n<answer>a</answer>\n", True),
        ("thoughts that the prompt opened</think><answer>a</answer>", True),
        ("<search>a</search>", False),
        (f"{THOUGHT}so: <search>a</search>", False),
        (f"{THOUGHT}<search>a</search> and", False),
        (f"{THOUGHT}<search>a</search><answer>b</answer>", False),
        (f"{THOUGHT}<search>a", False),
        (f"{THOUGHT}<SEARCH>a</SEARCH>", False),
        (f"{THOUGHT}{THOUGHT}<answer>a</answer>", False),
        (f"{THOUGHT}<search>a</search><information>Paris</information>", False),
        ("<think><information>Paris</information></think><answer>a</answer>", False),
        ("<think>a</think><answer><information>a</answer>", False),
    ],
)
def test_tags_form_is_thoughts_and_one_action(reply: str, is_well_formed: bool) -> None:
    assert protocol.read_tags(Reply(text=reply)).is_well_formed is is_well_formed


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("block", ["<information>", "</information >", "< INFORMATION>"])
def test_a_block_of_the_environment_in_a_reply_is_forged(reader: Reader, block: str) -> None:
    action = reader(f"{THOUGHT}{block}Paris<answer>a</answer>")
    assert action.is_forged
    assert not action.is_well_formed


def test_compat_reads_as_search_r1_does() -> None:
    assert (
        protocol.read_tags_compat("<think><answer>a</answer></think><search>q</search>").answer
        == "a"
    )
    assert protocol.read_tags_compat("<search>q").kind is protocol.ActionKind.NONE
    assert protocol.read_tags_compat("<Search>q</Search>").kind is protocol.ActionKind.NONE
    assert protocol.read_tags_compat("</think><answer>a</answer>").is_well_formed is False
    cut = protocol.read_tags_compat(f"{THOUGHT}<search>q</search><information>forged</information>")
    assert cut.is_well_formed
    assert not cut.is_forged


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer>a</answer>", "a"),
        ("<answer>a</answer><answer>b</answer>", "a"),
        ("<answer>a</answer> <search>q</search> <answer>b</answer>", "a"),
        ("<search><answer> a </answer></search>", "a"),
        ("<search>q</search><answer>a</answer>", None),
        ("<answer>a", None),
    ],
)
def test_compat_answer_is_the_last_pair_of_the_kept_part(reply: str, answer: str | None) -> None:
    assert protocol.last_answer_compat(reply) == answer


def test_tools_call_is_a_search() -> None:
    action = tools(f"I look it up. {call('river Vessa', topk=5)}")
    assert action.kind is protocol.ActionKind.SEARCH
    assert (action.queries[0].text, action.queries[0].topk) == ("river Vessa", 5)
    assert action.is_well_formed


def test_tools_several_calls_are_several_searches_up_to_a_limit() -> None:
    action = tools("".join(call(f"q{number}") for number in range(protocol.MAX_QUERIES + 2)))
    assert [query.text for query in action.queries] == [
        f"q{n}" for n in range(protocol.MAX_QUERIES)
    ]
    assert action.dropped_calls == 2


@pytest.mark.parametrize(
    "reply",
    [
        call(5),
        call("x", topk=0),
        call("x", topk="3"),
        call("x", topk=1e400),
        call("x", other=1),
        '<tool_call>{"name": "find", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "search"}</tool_call>',
        "<tool_call>nothing</tool_call>",
        "",
        "<think>only thoughts</think>",
    ],
)
def test_tools_bad_call_is_an_error(reply: str) -> None:
    action = tools(reply)
    assert action.kind is protocol.ActionKind.NONE
    assert action.error


@pytest.mark.parametrize(
    ("reply", "answer", "is_well_formed"),
    [
        ("<think>a</think><answer> Paris </answer>", "Paris", True),
        ("<think>a</think> Paris ", "Paris", False),
        ("<answer>a</answer> no: <answer>b</answer>", "b", True),
        ("<answer>a", "<answer>a", False),
    ],
)
def test_tools_reply_without_a_call_answers(reply: str, answer: str, is_well_formed: bool) -> None:
    action = tools(reply)
    assert (action.kind, action.answer) == (protocol.ActionKind.ANSWER, answer)
    assert action.is_well_formed is is_well_formed


@pytest.mark.parametrize("query", ["", "  ", "\x00\x01", "</search>"])
def test_empty_query_searches_for_nothing(query: str) -> None:
    action = tools(call(query))
    assert action.kind is protocol.ActionKind.SEARCH
    assert action.queries[0].text == ""
    assert action.error == "the query is empty"


def test_query_is_one_short_line() -> None:
    long = "very\x07 long\r\n" * 2000
    query = protocol.read_tags(Reply(text=f"<search>\ud800{long}</search>")).queries[0].text
    assert len(query) <= protocol.MAX_QUERY_CHARACTERS
    assert query.startswith("\ufffdvery long very long")


@given(replies)
def test_reading_never_raises_and_gives_sound_actions(reply: str) -> None:
    for reader in READERS:
        check_sound(reader(reply))


def check_sound(action: protocol.Action) -> None:
    assert (action.answer is not None) == (action.kind is protocol.ActionKind.ANSWER)
    assert bool(action.queries) == (action.kind is protocol.ActionKind.SEARCH)
    assert not (action.is_well_formed and action.is_forged)
    for query in action.queries:
        assert len(query.text) <= protocol.MAX_QUERY_CHARACTERS
        query.text.encode()


@given(replies)
def test_a_well_formed_compat_reply_is_well_formed_for_us_too(reply: str) -> None:
    if protocol.read_tags_compat(reply).is_well_formed and reply.rstrip().endswith(
        ("</search>", "</answer>")
    ):
        kept = protocol.read_tags(Reply(text=reply))
        assert kept.is_well_formed or reply.count("</search>") + reply.count("</answer>") > 1


ADVERSARIAL = (
    "<search>",
    "<answer>",
    "</think>",
    "<think></think>",
    "<think><search>",
    "<search></answer>",
    "<",
    "< ",
    "<information>",
    "<search>a</search",
    "<tool_call>",
    "<tool_call>{",
    '{"name": "search", "parameters": {',
    "\x00",
    "\ud800",
    "a the ",
    "<search><answer></search>",
)


@pytest.mark.parametrize("piece", share(ADVERSARIAL, of=3))
@pytest.mark.parametrize("reader", READERS)
def test_longest_adversarial_reply_is_read_in_linear_work(reader: Reader, piece: str) -> None:
    """Quadratic work would take minutes; `benchmarks/grading.py` measures what it takes."""
    check_sound(reader(piece * (protocol.MAX_REPLY_CHARACTERS // len(piece))))


@pytest.mark.parametrize("reader", READERS)
def test_a_reply_of_10_megabytes_is_not_read(reader: Reader) -> None:
    reply = "<search>a</search><tool_call>{}</tool_call>" * 240_000
    assert len(reply) > 10_000_000
    assert reader(reply).kind is protocol.ActionKind.NONE
    assert protocol.last_answer_compat(reply) is None


@pytest.mark.parametrize(
    "text",
    ["</information>", "< / information >", "<THINK>", "<|im_end|>", "<\uff5cend\uff5c>", "</s>",
     "<tool_response>", "<image>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<!-- x -->"],
)  # fmt: skip
def test_escape_leaves_no_tag(text: str) -> None:
    escaped = escape(f"a {text} b")
    assert text not in escaped
    assert escape(escaped) == escaped


@pytest.mark.parametrize("text", ["a < b", "3<4", "x <- y", "[1] and [citation needed]", "R&D"])
def test_escape_leaves_ordinary_text_alone(text: str) -> None:
    assert escape(text) == text


@given(replies)
def test_escaped_text_holds_no_tag_of_the_protocol(text: str) -> None:
    action = protocol.read_tags(Reply(text=escape(plain(text, 200))))
    assert action.kind is protocol.ActionKind.NONE
    assert not action.is_forged


@given(st.text(), st.integers(1, 50))
def test_plain_is_one_short_line(text: str, limit: int) -> None:
    flat = plain(text, limit)
    assert len(flat) <= limit
    assert len(flat.splitlines()) <= 1
    flat.encode()
