"""What an agent gets: several replies, growing ones, and no call that was cut or only thought."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from fakes.agent_clients import ChatClient
from fakes.budget import examples
from fakes.gateway_run import serving
from fakes.odd_engine import Write
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envkit.errors import LedgerFault
from envkit.reply import THOUGHTS, FinishReason, Reply
from envkit.rollout import Generation
from envkit.rollout.limits import Limits
from envkit.toolcalls.json_formats import CALL_MARKS
from envkit.trajectory import StopReason
from envkit_gateway.deltas import Delta, ReplyDeltas, TokenText
from envkit_gateway.messages import AgentMessage
from envkit_gateway.reading import read_tool
from envkit_gateway.replies import reply_of
from envkit_gateway.request import AgentRequest

RUN_COMMAND = read_tool(
    {
        "name": "run",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
)

CALL = '<tool_call>\n{"name": "run", "arguments": {"command": "rm -r /d/old"}}\n</tool_call>'

XML = "<tool_call>\n<function=run>\n<parameter=command>\nrm -r /d/old\n</parameter>\n"

XML_END = "</function>\n</tool_call>"


def handed(text: str, finish: FinishReason = FinishReason.STOP, **fields: Any) -> Any:
    generation = Generation(token_ids=(1,), logprobs=(0.0,), finish_reason=finish, prompt_tokens=1)
    request = AgentRequest(messages=(), tools=(RUN_COMMAND,), stop=fields.pop("stop", ()))
    said = Reply(text=text, finish=finish, **fields)
    return reply_of(said, generation, request, number=0)


@pytest.mark.parametrize("call", [CALL, XML + XML_END])
def test_a_whole_call_is_handed_on(call: str) -> None:
    reply = handed(call)
    assert [one.name for one in reply.calls] == ["run"]
    assert (reply.finish, reply.is_bad) == ("tool_calls", False)


@pytest.mark.parametrize("text", [CALL, XML + XML_END, XML, XML[:60], CALL[:50]])
def test_no_call_of_a_cut_reply_is_handed_on(text: str) -> None:
    reply = handed(text, FinishReason.LENGTH)
    assert (reply.calls, reply.finish, reply.is_bad) == ((), "length", True)
    assert reply.message.parts == ({"type": "text", "text": text},)


@pytest.mark.parametrize("opened", THOUGHTS)
def test_no_call_of_a_thought_is_handed_on(opened: str) -> None:
    reply = handed(CALL, opened=opened)
    assert (reply.calls, reply.finish, reply.is_bad) == ((), "stop", True)
    assert (reply.message.thinking, reply.message.parts) == (CALL, ())
    by_model = handed(f"Let me see. {opened}{CALL}")
    assert (by_model.calls, by_model.message.thinking) == ((), CALL)


def test_a_stop_string_may_close_a_call() -> None:
    reply = handed(f"Now.\n{CALL}", stop=("</tool_call>",))
    assert [one.name for one in reply.calls] == ["run"]
    assert reply.stop_string == "</tool_call>"
    assert handed("Five. END", stop=("END",)).message.parts == ({"type": "text", "text": "Five. "},)


@pytest.mark.parametrize(
    ("text", "stop", "shown", "ended_by"),
    [
        ("Five. END", ("END",), "Five. ", "END"),
        ("Five. ENDING", ("END",), "Five. ", "END"),
        ("Five.\n\nUser", ("\n\nUs", "\n"), "Five.", "\n"),
        ("Five.</s> Six", ("Six", "</s>"), "Five.", "</s>"),
        ("Five.", ("END",), "Five.", None),
        ("Five.", (), "Five.", None),
    ],
)
def test_agent_sees_nothing_from_the_stop_string_on(
    text: str, stop: tuple[str, ...], shown: str, ended_by: str | None
) -> None:
    """A stop string may end inside the last token, which then says more."""
    reply = handed(text, stop=stop)
    assert reply.stop_string == ended_by
    assert reply.message.parts == ({"type": "text", "text": shown},)


def test_call_before_a_stop_string_in_the_last_token_is_handed_on() -> None:
    reply = handed(f"Now.\n{CALL}.", stop=("</tool_call>",))
    assert [one.name for one in reply.calls] == ["run"]
    assert reply.message.text.strip() == "Now."


@pytest.mark.parametrize(
    ("text", "opened", "thinking", "answer"),
    [
        ("<think>a</think>\n\nb", "", "a", "b"),
        (" <think>a</think> <think>b</think>c", "", "a\nb", "  c"),
        ("a <think>b</think> c", "", "", "a <think>b</think> c"),
        ("a</think>b", "", "", "a</think>b"),
        ("a</think>b</think><think>c", "<think>", "a", "b</think><think>c"),
        ("<think>a", "", "a", ""),
    ],
)
def test_a_thought_ends_where_the_answer_begins(
    text: str, opened: str, thinking: str, answer: str
) -> None:
    message = handed(text, opened=opened, is_opening_known=True).message
    assert (message.thinking or "", message.text) == (thinking, answer)


def test_a_call_in_a_thought_after_the_answer_is_not_run() -> None:
    reply = handed(f"I see. <think>{CALL}</think> Done. {CALL}", is_opening_known=True)
    assert [one.name for one in reply.calls] == ["run"]
    assert reply.message.text == "I see.  Done."


@pytest.mark.parametrize("space", ["", "\n", "  "])
def test_white_space_before_an_answer_does_not_depend_on_its_calls(space: str) -> None:
    without, with_call = handed(f"{space}I see."), handed(f"{space}I see. {CALL}")
    assert with_call.calls
    assert without.message.text == with_call.message.text == f"{space}I see."


RUN = read_tool({"name": "run", "parameters": {"type": "object", "properties": {}}})

CALLS = (
    '<tool_call>\n{"name": "run", "arguments": {"command": "<think>"}}\n</tool_call>',
    "<tool_call>\n<function=run>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>run\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    '[TOOL_CALLS]run[ARGS]{"a": 1}',
    '<|python_tag|>{"name": "run", "parameters": {}}',
    ' {"name" : "run", "parameters": {}}',
)

STOPS = ("STOP", "\n\n", "ab", "</think>", "</tool_call>")

MARKS = (*THOUGHTS, *THOUGHTS.values(), *CALL_MARKS)

THINKING = (
    "<think>a </think>",
    "\n<think>\nb\n</think>\n",
    "[THINK]c[/THINK]",
    "<think> </think>\n\n",
)

PIECES = st.one_of(
    st.sampled_from((*MARKS, *STOPS)),
    st.sampled_from(CALLS).flatmap(lambda one: st.sampled_from((one, f"a \n{one}\n", f"{one} b"))),
    st.sampled_from(THINKING),
    st.sampled_from(MARKS).flatmap(lambda one: st.integers(1, len(one)).map(lambda n: one[:n])),
    st.sampled_from(
        ("<think>", "</think>", "\n\n", " ", "\n", "a", "b", "{", '{"name"', '"x": 1}')
    ),
    st.text(alphabet="a b\n<{[|é😀\ud800", max_size=4),
)


def final(text: str, *, opened: str, stop: Sequence[str], tools: bool, finish: FinishReason) -> Any:
    """Return thinking and text of a whole reply."""
    generation = Generation(token_ids=(1,), logprobs=(0.0,), finish_reason=finish, prompt_tokens=1)
    request = AgentRequest(messages=(), tools=(RUN,) if tools else (), stop=tuple(stop))
    said = Reply(text=text, finish=finish, opened=opened, is_opening_known=True)
    message = reply_of(said, generation, request, number=0).message
    return Delta(message.thinking or "", message.text)


def shown(chunks: Sequence[str], **begun: Any) -> list[Delta]:
    """Return what is shown after each chunk."""
    deltas, thinking, text = ReplyDeltas(**begun), "", ""
    found: list[Delta] = []
    for chunk in chunks:
        more = deltas.feed(chunk)
        assert not (more.thinking and text), "thinking after text"
        thinking, text = thinking + more.thinking, text + more.text
        found.append(Delta(thinking, text))
    return found


def ended(text: str, stop: Sequence[str], extra: int) -> str:
    """Cut a text where an engine stops: after a stop string and the rest of its token."""
    ends = [place + len(one) for one in stop if (place := text.find(one)) >= 0]
    return text[: min(ends) + extra] if ends else text


@given(
    first=st.sampled_from(("", "", CALLS[-1], '{"name": "Bo"}')),
    pieces=st.lists(PIECES, max_size=8),
    opened=st.sampled_from(("", "<think>", "[THINK]")),
    stop=st.lists(st.sampled_from(STOPS), max_size=2, unique=True),
    tools=st.booleans(),
    finish=st.sampled_from((FinishReason.STOP, FinishReason.LENGTH)),
    extra=st.integers(0, 3),
    size=st.sampled_from((1, 1, 2, 7, 1000)),
)
@settings(max_examples=examples(800), deadline=None)
def test_shown_text_is_the_beginning_of_the_final_form(
    first: str,
    pieces: list[str],
    opened: str,
    stop: list[str],
    tools: bool,
    finish: FinishReason,
    extra: int,
    size: int,
) -> None:
    text = ended("".join([first, *pieces]), stop, extra)
    whole = final(text, opened=opened, stop=stop, tools=tools, finish=finish)
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    for delta in shown(chunks, opened=opened, stop=stop, has_calls=tools):
        assert whole.thinking.startswith(delta.thinking)
        assert whole.text.startswith(delta.text)
        assert not delta.text or delta.thinking == whole.thinking


@pytest.mark.parametrize("tools", [False, True])
def test_plain_text_is_shown_as_it_comes(tools: bool) -> None:
    chunks = ["<th", "ink>I ", "see</thi", "nk>\n\n", "Two", " < ", "three", "."]
    assert shown(chunks, opened="", stop=(), has_calls=tools) == [
        Delta(),
        Delta("I"),
        Delta("I see"),
        Delta("I see"),
        Delta("I see", "Two"),
        Delta("I see", "Two <" if tools else "Two < "),
        Delta("I see", "Two < three"),
        Delta("I see", "Two < three."),
    ]


def test_reply_that_does_not_begin_with_what_was_shown_is_a_fault() -> None:
    message = AgentMessage(role="assistant", parts=({"type": "text", "text": "don't"},))
    assert Delta(text="do").rest_of(message) == Delta(text="n't")
    for shown_before in (Delta(text="do n"), Delta(thinking="do")):
        with pytest.raises(LedgerFault, match="must begin with what was streamed"):
            shown_before.rest_of(message)


class Bytes:
    """A vocabulary of bytes and texts, which decodes bytes as SentencePiece's fallback does."""

    def __init__(self, *, is_whole_run: bool) -> None:
        self.is_whole_run = is_whole_run
        self.words = ["hello", " you", "<|end|>"]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        found, run = "", b""
        for one in [*ids, None]:
            if one is not None and one < 256:
                run += bytes([one])
                continue
            if self.is_whole_run:
                try:
                    found += run.decode()
                except UnicodeDecodeError:
                    found += "\ufffd" * len(run)
            else:
                found += run.decode(errors="replace")
            run = b""
            found += "" if one is None else self.words[one - 256]
        return found


def test_text_that_later_tokens_change_is_followed_by_nothing() -> None:
    words = ["do", " n", "'t", " it"]

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[one] for one in ids).replace(" n't", "n't")

    text = TokenText(decode, lambda _: (), stop_ids=())
    assert [text.feed([one]) for one in range(4)] == ["do", " n", "", ""]


TOKENS = st.one_of(
    st.integers(256, 257).map(lambda one: [one]),
    st.sampled_from("\né😀a\ufffd").map(lambda one: list(one.encode())),
    st.integers(0, 255).map(lambda one: [one]),
)


@given(
    runs=st.lists(TOKENS, max_size=12),
    is_whole_run=st.booleans(),
    sizes=st.lists(st.integers(1, 4), min_size=48, max_size=48),
    is_stopped=st.booleans(),
)
@settings(max_examples=examples(600), deadline=None)
@example(runs=[[10], [0xE3], [256]], is_whole_run=True, sizes=[1] * 48, is_stopped=False)
def test_text_of_growing_ids_never_changes(
    runs: list[list[int]], is_whole_run: bool, sizes: list[int], is_stopped: bool
) -> None:
    vocabulary = Bytes(is_whole_run=is_whole_run)
    ids = [one for run in runs for one in run]
    whole = vocabulary.decode(ids)
    text = TokenText(vocabulary.decode, vocabulary.encode, stop_ids=(258,))
    given_ids, at, found = [*ids, *([258] if is_stopped else [])], 0, ""
    for size in sizes:
        found += text.feed(given_ids[at : at + size])
        at += size
        assert whole.startswith(found)
    if ids and ids[-1] >= 256:
        assert found == whole


def numbered() -> Write:
    """Return a script whose replies all differ."""
    numbers = count()

    def write(_context: str) -> str:
        return f"reply {next(numbers)}"

    return write


async def choices(client: ChatClient, n: int = 3) -> list[str]:
    status, answer = await client.post({**client.body(), "n": n})
    assert status == 200, answer
    if isinstance(answer, dict):
        assert [one["index"] for one in answer["choices"]] == [*range(n)]
        return [one["message"]["content"] for one in answer["choices"]]
    texts, finished = [""] * n, [""] * n
    for chunk in answer:
        for one in chunk["choices"]:
            texts[one["index"]] += one["delta"].get("content") or ""
            finished[one["index"]] = one["finish_reason"]
    assert finished == ["stop"] * n
    return texts


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_is_a_reply_of_its_own(stream: bool) -> None:
    async with serving(numbered()) as run:
        client = run.client(ChatClient, stream=stream)
        client.user("one", None)
        found = await choices(client)
    trajectory = run.trajectory()
    assert sorted(found) == ["reply 0", "reply 1", "reply 2"]
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    assert len(trajectory.turns) == 3


async def test_conversation_continues_the_choice_that_it_quotes() -> None:
    async with serving(numbered()) as run:
        client = run.client(ChatClient)
        await client.ask("one")
        client.user("two", None)
        found = await choices(client)
        client.items.append({"role": "assistant", "content": found[1]})
        await client.ask("three")
    trajectory = run.trajectory()
    assert run.session.counts == {"new": 1, "continued": 4}
    assert [branch.reason for branch in trajectory.branches] == ["branch"] * 2
    assert trajectory.trained_token_count == trajectory.sampled_token_count


async def test_usage_of_choices_counts_their_prompt_once() -> None:
    async with serving(numbered()) as run:
        client = run.client(ChatClient, extra={"n": 2})
        client.user("one", None)
        _, answer = await client.post(client.body())
        used = answer["usage"]
    assert used["prompt_tokens"] == run.engine.requests[0].train_length
    assert used["completion_tokens"] == sum(len(ids) for _, ids in run.engine.seen)


async def test_retry_gets_the_choices_of_a_client_that_left() -> None:
    async with serving(numbered()) as run:
        client = await run.disconnected(choices=3)
        assert len(set(await choices(client))) == 3
    trajectory = run.trajectory()
    assert len(run.engine.seen) == 3
    assert trajectory.trained_token_count == trajectory.sampled_token_count


async def test_choice_that_failed_is_sampled_again_with_the_others_kept() -> None:
    async with serving(numbered(), faults=(1,)) as run:
        client = run.client(ChatClient)
        client.user("one", None)
        status, _ = await client.post({**client.body(), "n": 3})
        assert status == 503
        assert len(set(await choices(client))) == 3
        assert run.session.fault is None
    run.trajectory()
    assert len(run.engine.seen) == 3


async def test_choices_over_a_limit_are_refused_before_any_is_sampled() -> None:
    async with serving(numbered(), limits=Limits(max_turns=2)) as run:
        client = run.client(ChatClient)
        client.user("one", None)
        status, _ = await client.post({**client.body(), "n": 3})
    assert status == 403
    assert run.session.stop_reason is StopReason.MAX_TURNS
    assert not run.engine.seen


@pytest.mark.parametrize("n", [0, -1, 129, "two"])
async def test_number_of_choices_out_of_range_is_refused(n: Any) -> None:
    async with serving(numbered()) as run:
        client = run.client(ChatClient)
        client.user("one", None)
        status, _ = await client.post({**client.body(), "n": n})
    assert status == 400


async def test_refused_choice_stops_the_others() -> None:
    """A budget of tokens that has room for one reply and not for the next."""
    async with serving(lambda _: "x" * 30, limits=Limits(max_context_tokens=60)) as run:
        client = run.client(ChatClient)
        client.user("word " * 100, None)
        status, _ = await client.post({**client.body(), "n": 3})
        assert status == 400
        assert not run.session.turns
        assert not run.session.sequences
        client.items.clear()
        await client.ask("one")
    run.trajectory()
