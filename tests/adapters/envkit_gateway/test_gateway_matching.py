"""Which recorded reply a request continues, and which messages mean the same."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakes.trajectories import picture

from envkit.errors import TemplateError
from envkit.rollout.engine import FinishReason, Generation
from envkit_gateway.matching import Committed, is_rejected, is_retry
from envkit_gateway.messages import (
    AgentCall,
    AgentMessage,
    PrefixKeys,
    PromptForm,
    codec_messages,
    said_key,
    thinking_of,
)
from envkit_gateway.request import AgentRequest
from envkit_gateway.turn import Reply, Turn, TurnState

GENERATION = Generation(
    token_ids=(1,), logprobs=(0.0,), finish_reason=FinishReason.STOP, prompt_tokens=1
)


def said(role: Any, *parts: Any, **fields: Any) -> AgentMessage:
    """Return a message of texts and images."""
    found = tuple(
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": part}
        for part in parts
    )
    return AgentMessage(role=role, parts=found, **fields)  # pyright: ignore[reportArgumentType]


def user(*parts: Any) -> AgentMessage:
    return said("user", *parts)


def agent(*parts: Any, **fields: Any) -> AgentMessage:
    return said("assistant", *parts, **fields)


def call(arguments: str = "{}", *, name: str = "add", number: str = "c1") -> AgentCall:
    return AgentCall(id=number, name=name, arguments=arguments)


def key(*messages: AgentMessage, start: str = "") -> str:
    return PrefixKeys(start, messages).keys[-1]


class Recorded:
    """Replies of a session, committed by hand."""

    def __init__(self) -> None:
        self.committed = Committed()
        self._count = 0

    def reply(
        self,
        before: Sequence[AgentMessage],
        reply: AgentMessage,
        *,
        parent: Turn | None = None,
        state: TurnState = TurnState.DELIVERED,
        is_bad: bool = False,
    ) -> Turn:
        nothing: Any = None
        turn = Turn(
            number=self._count,
            sequence=nothing,
            parent=parent,
            request=AgentRequest(messages=tuple(before)),
            prefix="",
            place=len(before),
            encoded=nothing,
            state=state,
            reply=Reply(
                message=reply, finish="stop", stop_string=None, is_bad=is_bad, generation=GENERATION
            ),
        )
        self._count += 1
        self.committed.add(key(*before, reply), turn)
        return turn

    def longest(self, *messages: AgentMessage) -> tuple[Turn | None, int]:
        return self.committed.longest(PrefixKeys("", messages).keys, messages)


def test_request_continues_the_longest_conversation_that_was_recorded() -> None:
    run, start = Recorded(), (user("one"),)
    first = run.reply(start, agent("a"))
    longer = (*start, agent("a"), user("two"))
    second = run.reply(longer, agent("b"), parent=first)

    assert run.longest(*start) == (None, 0)
    assert run.longest(*longer) == (first, 2)
    assert run.longest(*longer, agent("b"), user("three")) == (second, 4)
    assert run.longest(*longer, agent("b"), user("three"), user("four")) == (second, 4)
    assert run.longest(*longer, agent("edited"), user("three")) == (first, 2)
    assert run.longest(user("other"), agent("a"), user("two")) == (None, 0)
    assert run.longest(*start, agent("edited"), user("two")) == (None, 0)


def test_request_that_ends_with_a_reply_does_not_continue_it() -> None:
    run, start = Recorded(), (user("one"),)
    first = run.reply(start, agent("a"))
    longer = (*start, agent("a"), user("two"), agent("b"))
    run.reply(longer[:3], agent("b"), parent=first)

    assert run.longest(*start, agent("a")) == (None, 0)
    assert run.longest(*longer) == (first, 2)


def test_request_continues_a_reply_that_begins_the_conversation() -> None:
    run = Recorded()
    first = run.reply((), agent("a"))
    assert run.longest(agent("a"), user("two")) == (first, 1)


@pytest.mark.parametrize(
    "states",
    [["DELIVERED", "RUNNING"], ["RUNNING", "DELIVERED"], ["READ", "LOST"], ["LOST", "READ"]],
)
def test_request_continues_the_reply_that_was_delivered(states: list[str]) -> None:
    run = Recorded()
    turns = [run.reply((user("one"),), agent("a"), state=TurnState[name]) for name in states]
    assert run.longest(user("one"), agent("a"), user("two")) == (
        next(turn for turn in turns if turn.state.value in ("delivered", "read")),
        2,
    )


def test_request_continues_the_newest_of_equal_replies() -> None:
    run = Recorded()
    turns = [run.reply((user("one"),), agent("a")) for _ in range(3)]
    assert run.longest(user("one"), agent("a"), user("two")) == (turns[2], 2)


def test_thinking_of_a_quoted_reply_belongs_to_the_conversation() -> None:
    run = Recorded()
    start = (user("one"), agent("quoted", thinking="red"), user("two"))
    first = run.reply(start, agent("a", thinking="blue"))

    def ask(quoted: AgentMessage, *thinking: str) -> tuple[Turn | None, int]:
        own = agent("a", thinking="".join(thinking))
        return run.longest(user("one"), quoted, user("two"), own, user("three"))

    assert ask(start[1]) == ask(start[1], "blue") == (first, 4)
    assert ask(agent("<think>red</think>quoted")) == (first, 4)
    for other in (agent("quoted"), agent("quoted", thinking="green")):
        assert ask(other) == (None, 0)


@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_key_holds_the_sequence_of_parts(role: str) -> None:
    image, other = picture(1), picture(2)
    orders = (
        (image, "a", "b"), ("a", image, "b"), ("a", "b", image), ("ab", image), ("a\nb", image),
        ("b", image, "a"), (image, other, "a"), (other, image, "a"), (image, image, "a"),
        (image, "a"), ("a", image), (image,), (),
    )  # fmt: skip
    assert len({key(said(role, *parts)) for parts in orders}) == len(orders)


def test_key_tells_texts_in_one_part_from_texts_in_two() -> None:
    keys = {key(user(*parts)) for parts in (("a", "b"), ("ab",), ("a\nb",), ("a\n", "b"))}
    assert len(keys) == 4
    assert key(agent("a", "b")) == key(agent("a\nb"))  # clients write replies in either form


def test_request_may_drop_thinking_but_not_edit_it() -> None:
    run, start = Recorded(), (user("one"),)
    first = run.reply(start, agent("a", thinking="red"))
    second = run.reply((*start, agent("a"), user("two")), agent("b", thinking="two"), parent=first)

    def ask(*thoughts: str) -> tuple[Turn | None, int]:
        one, two = (agent(text, thinking=t) for text, t in zip("ab", thoughts, strict=True))
        return run.longest(*start, one, user("two"), two, user("three"))

    assert ask("red", "two") == ask("", "two") == ask("red", "") == ask("", "") == (second, 4)
    assert ask("red", "edited") == (first, 2)
    assert ask("edited", "two") == ask("edited", "") == (None, 0)


def test_request_continues_an_older_equal_reply_with_its_thinking() -> None:
    run = Recorded()
    red = run.reply((user("one"),), agent("a", thinking="red"))
    blue = run.reply((user("one"),), agent("a", thinking="blue"))
    found = [
        run.longest(user("one"), agent("a", thinking=thinking), user("two"))[0]
        for thinking in ("red", "blue", "")
    ]
    assert found == [red, blue, blue]


@pytest.mark.parametrize("state", TurnState)
def test_equal_request_is_a_retry_if_marked_or_if_its_reply_was_lost(state: TurnState) -> None:
    earlier = Recorded().reply((user("one"),), agent("a"), state=state)
    request = AgentRequest(messages=(user("one"),))
    assert is_retry(request, earlier) is (state in (TurnState.LOST, TurnState.READ))
    assert is_retry(replace(request, is_retry=True), earlier)


@pytest.mark.parametrize("state", TurnState)
def test_asking_again_rejects_a_bad_reply_that_arrived_and_was_not_continued(
    state: TurnState,
) -> None:
    run, is_delivered = Recorded(), state is TurnState.DELIVERED
    bad = run.reply((user("one"),), agent(), state=state, is_bad=True)
    assert is_rejected(bad) is is_delivered
    bad.children.append(bad)
    assert not is_rejected(bad)
    assert not is_rejected(run.reply((user("one"),), agent("a"), state=state))
    bad.children, bad.reply = [], None
    assert not is_rejected(bad)


SAME: dict[str, tuple[AgentMessage, AgentMessage]] = {
    "white space around a reply": (agent("a b"), agent(" \na b\n")),
    "thinking apart": (agent("a", thinking="red"), agent("a")),
    "thinking in the text": (agent("<think>red</think>a"), agent("a")),
    "thinking after white space": (agent(" <think>\nred </think>\n\n a"), agent("a")),
    "order and spacing of arguments": (
        agent(calls=(call('{"a": 1, "b": {"d": 2, "c": 3}}'),)),
        agent(calls=(call('{"b":{"c":3,"d":2},"a":1}'),)),
    ),
    "numbers of JavaScript": (
        agent(calls=(call('{"a": [2.0, -0.0, 1e3, 2.50, 1e21]}'),)),
        agent(calls=(call('{"a": [2, 0, 1000, 2.5, 1e+21]}'),)),
    ),
    "a large number of JavaScript": (
        agent(calls=(call('{"a": 1000000000000000000000}'),)),
        agent(calls=(call('{"a": 1e+21}'),)),
    ),
    "escapes": (agent(calls=(call('{"a": "\\u00e9"}'),)), agent(calls=(call('{"a": "\u00e9"}'),))),
    "ids of calls": (agent(calls=(call(),)), agent(calls=(call(number="other"),))),
}
DIFFERENT: dict[str, tuple[AgentMessage, AgentMessage]] = {
    "a text": (agent("a"), agent("b")),
    "a role": (agent("a"), user("a")),
    "a system message": (said("system", "a"), user("a")),
    "white space around a prompt": (user("a"), user("a ")),
    "thinking of a prompt": (user("<think>red</think>a"), user("a")),
    "thinking that is not closed": (agent("<think>red"), agent("")),
    "a tag inside a text": (agent("red</think>a"), agent("a")),
    "a later thinking": (agent("a<think>red</think>b"), agent("b")),
    "a name": (agent(calls=(call(),)), agent(calls=(call(name="sub"),))),
    "an argument": (agent(calls=(call('{"a": 1}'),)), agent(calls=(call('{"a": 2}'),))),
    "a fraction": (agent(calls=(call('{"a": 2.5}'),)), agent(calls=(call('{"a": 2}'),))),
    "a number and a text": (agent(calls=(call('{"a": 2}'),)), agent(calls=(call('{"a": "2"}'),))),
    "arguments that are not JSON": (agent(calls=(call("{"),)), agent(calls=(call("["),))),
    "a missing call": (agent("a", calls=(call(),)), agent("a")),
    "an image": (user("a", picture(1)), user("a", picture(2))),
    "a missing image": (user("a", picture(1)), user("a")),
    "the place of an image": (user("a", picture(1)), user(picture(1), "a")),
    "an image of a reply": (agent("a", picture(1)), agent("a", picture(2))),
    "a missing image of a reply": (agent("a", picture(1)), agent("a")),
}


@pytest.mark.parametrize("name", SAME)
def test_key_is_equal_for_what_clients_rewrite(name: str) -> None:
    one, other = SAME[name]
    assert key(user("x"), one) == key(user("x"), other)
    assert key(user("x"), one, user("y")) == key(user("x"), other, user("y"))


@pytest.mark.parametrize("name", DIFFERENT)
def test_key_differs_for_another_conversation(name: str) -> None:
    one, other = DIFFERENT[name]
    assert key(user("x"), one) != key(user("x"), other)
    assert key(user("x"), one, user("y")) != key(user("x"), other, user("y"))


def test_key_depends_on_what_the_conversation_starts_with() -> None:
    assert key(user("x"), start="tools") != key(user("x"), start="no tools")
    assert key(user("x"), user("y")) != key(user("y"), user("x"))
    assert key(user("\ud800"), start="\ud800") != key(user("\ud801"), start="\ud800")


def test_key_of_a_prefix_is_that_of_the_shorter_conversation() -> None:
    messages = (user("x"), agent("a", calls=(call(),)), said("tool", "3", call_id="c1"))
    keys = PrefixKeys("", messages)
    assert keys.keys == [key(*messages[: n + 1]) for n in range(3)]
    assert keys.add(agent("b")) == key(*messages, agent("b"))
    assert len({*keys.keys}) == 3


def test_key_follows_the_link_of_a_result_to_its_call() -> None:
    def linked(first: str, second: str, answered: str) -> str:
        calls = (call(number=first), call(number=second))
        return key(user("x"), agent(calls=calls), said("tool", "3", call_id=answered))

    assert linked("c1", "c2", "c1") == linked("d7", "d8", "d7")
    assert linked("c1", "c2", "c2") == linked("d7", "d8", "d8")
    assert linked("c1", "c2", "c1") != linked("c1", "c2", "c2")
    assert linked("c1", "c2", "c1") != linked("c1", "c2", "unknown")
    assert linked("c1", "c1", "c1") != linked("c1", "c2", "c1")


def test_key_of_arguments_nested_too_deep_is_that_of_their_text() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert key(agent(calls=(call(deep),))) == key(agent(calls=(call(deep),)))
    assert key(agent(calls=(call(deep),))) != key(agent(calls=(call(f"{deep} "),)))


@pytest.mark.parametrize(
    ("entry", "thinking"),
    [
        (agent("a"), ""),
        (agent("a", thinking=" red\n"), "red"),
        (agent("<think>red</think>a"), "red"),
        (agent(" <think> red\n</think>a</think>b"), "red"),
        (agent("<think>blue</think>a", thinking="red"), "red"),
        (agent("<think>red"), ""),
        (agent("red</think>a"), ""),
    ],
)
def test_thinking_is_read_from_its_field_or_from_the_text(
    entry: AgentMessage, thinking: str
) -> None:
    assert thinking_of(entry) == thinking


def test_reply_says_the_same_however_a_client_writes_it() -> None:
    same = {said_key(text, ()) for text in ("a", " a\n", "<think>red</think>\na")}
    assert len(same) == 1
    calls = (
        (call('{"a": 2.0, "b": 1}'),), (call('{"b":1,"a":2}', number="c9"),),
        (call('{"a": 2}'),), (call('{"a": 2, "b": 1}', name="sub"),), (call(), call()), (),
    )  # fmt: skip
    keys = [said_key("a", one) for one in calls]
    assert keys[0] == keys[1]
    assert len({*keys, said_key("b", ()), said_key("", ())}) == 7


def written(
    *messages: AgentMessage, covered: int = 0, leads: bool = False, **form: Any
) -> list[Any]:
    options = {"takes_tool_images": True, "takes_parts": False, **form}
    return codec_messages(
        messages, covered=covered, form=PromptForm(**options), leads_with_system=leads
    )


def test_codec_gets_system_messages_where_they_are() -> None:
    messages = (said("system", "a"), said("system", "b", "c"), user("d"), said("system", "e"))
    expected = [
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b\nc"},
        {"role": "user", "content": "d"},
        {"role": "system", "content": "e"},
    ]
    assert written(*messages) == expected
    assert written(*messages, leads=True) == expected
    assert written(*messages, covered=2) == expected[2:]
    assert written(user("d")) == [{"role": "user", "content": "d"}]
    assert written() == []


def test_codec_gets_one_system_message_where_its_template_takes_no_other() -> None:
    messages = (said("system", "a"), user("d"), said("system", "b"))
    once = [{"role": "system", "content": "ab"}, {"role": "user", "content": "d"}]
    assert written(*messages, leads=True, leads_with_system=True) == once
    assert written(*messages, leads=True, leads_with_system=True, covered=3) == []
    with pytest.raises(TemplateError, match="start of the conversation"):
        written(*messages, leads=True, leads_with_system=True, covered=2)
    alone = (said("system", "a", "b"), user("d"))
    whole = {"role": "system", "content": [*alone[0].parts]}
    assert written(*alone, leads=True, leads_with_system=True, takes_parts=True)[0] == whole


def test_codec_gets_developer_messages_as_one_system_message() -> None:
    note = said("system", "b", is_developer=True)
    messages = (said("system", "a", "c"), user("d"), note, user("e"))
    assert written(*messages) == [
        {"role": "system", "content": "a\nc\n\nb"},
        {"role": "user", "content": "d"},
        {"role": "user", "content": "e"},
    ]
    assert written(*messages, covered=3) == [{"role": "user", "content": "e"}]
    with pytest.raises(TemplateError, match="start of the conversation"):
        written(*messages, covered=2)
    assert written(note, user("d"))[0] == {"role": "system", "content": "b"}
    assert written(user("d"), note)[0] == {"role": "system", "content": "b"}
    assert written(*messages, knows_developer=True)[2] == {"role": "developer", "content": "b"}
    assert written(*messages, merges_developer=False)[2] == {"role": "system", "content": "b"}


def test_codec_gets_parts_as_servers_pass_them() -> None:
    entries = (user("a", "b"), user("a", picture(1), "c", "d"), user("e"), user(), user(picture(1)))
    for entry in entries[1], entries[4]:
        for takes in (True, False):
            assert written(entry, takes_parts=takes)[0]["content"] == [*entry.parts]
    assert written(entries[0], takes_parts=True)[0]["content"] == [*entries[0].parts]
    assert written(entries[0])[0]["content"] == "a\nb"
    assert written(user("a", "", "b"))[0]["content"] == "a\nb"
    result = said("tool", "a", "", "b")
    assert written(result, takes_parts=True)[0]["content"] == "a\n\nb"
    for entry, text in ((entries[2], "e"), (entries[3], "")):
        assert {written(entry, takes_parts=takes)[0]["content"] for takes in (0, 1)} == {text}
        one = written(entry, takes_parts=True, flattens=False)
        assert one[0]["content"] == [*entry.parts]


def test_codec_gets_an_empty_text_beside_calls_as_a_part() -> None:
    empty = [{"type": "text", "text": ""}]
    for entry, content in (
        (agent("", calls=(call(),)), empty),
        (agent(calls=(call(),)), ""),
        (agent(""), ""),
        (agent("a", calls=(call(),)), "a"),
    ):
        assert written(entry, takes_parts=True)[0]["content"] == content


def test_codec_gets_parts_and_moved_images_if_nothing_else_is_known() -> None:
    messages = (user("a", "b"), said("tool", "c", picture(1)))
    found = codec_messages(messages, covered=0, form=PromptForm(), leads_with_system=True)
    assert [(one["role"], type(one["content"])) for one in found] == [
        ("user", list), ("tool", str), ("user", list),
    ]  # fmt: skip


def test_call_is_written_in_the_order_of_its_server() -> None:
    one = replace(call(), extras={"x": 1})
    assert [*one.wire()["function"]] == ["arguments", "name", "x"]
    assert [*replace(one, is_name_first=True).wire()["function"]] == ["name", "arguments", "x"]


def test_key_tells_a_result_that_is_an_error() -> None:
    result = said("tool", "3", call_id="c1")
    assert key(result) == key(replace(result, is_error=False))
    assert key(result) != key(replace(result, is_error=True))


def test_codec_gets_the_thinking_of_a_quoted_reply() -> None:
    assert written(agent("a", thinking="red")) == [
        {"role": "assistant", "content": "a", "reasoning_content": "red"}
    ]
    assert "reasoning_content" not in written(agent("<think>red</think>a"))[0]
    assert written(agent("a", thinking=""))[0]["reasoning_content"] == ""
    assert written(agent("a", thinking="red", quoted_thinking="<think>red</think>")) == [
        {"role": "assistant", "content": "<think>red</think>"},
        {"role": "assistant", "content": "a"},
    ]


def test_codec_gets_the_names_that_a_client_gives() -> None:
    assert written(said("user", "a", name="Ann"))[0]["name"] == "Ann"
    result = said("tool", "3", call_id="c1", name="own")
    messages = (user("a"), agent(calls=(call(),)), result)
    assert written(*messages, covered=2)[0]["name"] == "own"


def test_codec_gets_calls_and_the_names_of_their_results() -> None:
    wire = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "[1]"}}
    messages = (
        agent("a", calls=(call("[1]"),)),
        said("tool", "3", call_id="c1"),
        said("tool", "4", call_id="c2"),
        said("tool", "5"),
        said("user", "6", call_id="c1"),
    )
    results = [
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "tool", "content": "4", "tool_call_id": "c2"},
        {"role": "tool", "content": "5"},
        {"role": "user", "content": "6"},
    ]
    reply = {"role": "assistant", "content": "a", "tool_calls": [wire]}
    assert written(*messages) == [reply, *results]  # servers add no name to a result
    assert written(*messages, covered=1) == [{**results[0], "name": "add"}, *results[1:]]


def test_codec_gets_images_of_results_where_its_template_renders_them() -> None:
    first, second = ({"type": "image", "image": picture(n)} for n in (1, 2))
    results = (said("tool", "a", picture(1)), said("tool", picture(2), "b"))
    texts = [{"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}]
    moved = {"role": "user", "content": [first, second]}
    look = user("c", picture(1))
    kept = {"role": "user", "content": [{"type": "text", "text": "c"}, first]}

    assert written(*results, takes_tool_images=False) == [*texts, moved]
    assert written(*results, look, takes_tool_images=False) == [*texts, moved, kept]
    assert written(*results, look, results[0], takes_tool_images=False) == [
        *texts, moved, kept, texts[0], {"role": "user", "content": [first]},
    ]  # fmt: skip
    assert written(*results, look) == [
        {"role": "tool", "content": [{"type": "text", "text": "a"}, first]},
        {"role": "tool", "content": [second, {"type": "text", "text": "b"}]},
        kept,
    ]
