"""First prompts, prefilled replies and rendered histories, by real chat templates.

Prompts are compared with those of vLLM's server, as `scripts/campaigns/prompts.py` does: each test
writes by hand what vLLM 0.32 passes to the chat template, and renders that with transformers.
"""

import copy
import json
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from fakes import templates
from fakes.agent_clients import CLIENTS, AnthropicClient, ChatClient, Client
from fakes.gateway_run import Run, serving
from fakes.matrix import share
from fakes.templates import cache_folder, literal_codec, load_tokenizer, make_codec, render
from fakes.trajectories import picture

from envkit.tokens import ChatCodec
from envkit.trajectory import SegmentKind, StopReason
from envkit_gateway import anthropic, chat, responses
from envkit_gateway.request import RequestRefused
from envkit_gateway.turn import Choice

ADD: dict[str, Any] = {"name": "add", "parameters": {"type": "object", "properties": {}}}

USER = {"role": "user", "content": "Hi"}

IMAGE = {"type": "image_url", "image_url": {"url": picture(1).data_uri()}}


async def prompt(codec: ChatCodec | str, dialect: ModuleType, **body: Any) -> str:
    """Return the prompt of a first request."""
    codec = literal_codec(codec) if isinstance(codec, str) else codec
    async with serving(codec=codec) as run:
        encoded = await run.session.prompt(dialect.read(body, ()))
    return codec.decode_all(encoded.wire_ids)


async def asked(run: Any, *messages: Any, dialect: ModuleType = chat, **fields: Any) -> Any:
    """Return the turn that answers a request."""
    name = "input" if dialect is responses else "messages"
    (turn,) = await run.session.open(dialect.read({name: [*messages], **fields}, run.session.turns))
    await turn.task
    assert turn.reply is not None, turn.error
    return turn


def qwen36() -> ChatCodec:
    """Return a codec for a template that takes a system message only at the start."""
    tokenizer = copy.copy(load_tokenizer("qwen3"))
    path = cache_folder() / "templates" / "qwen3_6.jinja"
    tokenizer.chat_template = path.read_text(encoding="utf-8")
    return ChatCodec(tokenizer, neutralise=False)


@pytest.mark.parametrize(
    ("dialect", "fields", "thinks"),
    [
        (chat, {"chat_template_kwargs": {"enable_thinking": False}}, False),
        (chat, {"chat_template_kwargs": {"enable_thinking": True, "unknown": "x"}}, True),
        (chat, {"reasoning_effort": "none"}, False),
        (chat, {"reasoning_effort": "low"}, True),
        (
            chat,
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            True,
        ),
        (responses, {"reasoning": {"effort": "none"}}, False),
        (responses, {"chat_template_kwargs": {"enable_thinking": False}}, False),
        (anthropic, {"thinking": {"type": "disabled"}}, False),
        (anthropic, {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, False),
        (anthropic, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, True),
        (anthropic, {"chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
async def test_prompt_thinks_as_the_request_asks(
    dialect: ModuleType, fields: dict[str, Any], thinks: bool
) -> None:
    given = {"input": "Hi"} if dialect is responses else {"messages": [USER]}
    found = await prompt("qwen3", dialect, **given, **fields)
    assert found == render("qwen3", [USER]) + ("" if thinks else "<think>\n\n</think>\n\n")


async def test_thinking_stays_on_where_the_template_cannot_turn_it_off() -> None:
    fields = {"thinking": {"type": "disabled"}}
    assert await prompt("qwen2.5", anthropic, messages=[USER], **fields) == render(
        "qwen2.5", [USER]
    )


async def test_variables_are_part_of_a_conversation() -> None:
    quiet: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    async with serving(lambda _: "Well.", codec=make_codec("qwen3")) as run:
        first = await asked(run, USER, **quiet)
        again = {"role": "user", "content": "And?"}
        talk = (USER, {"role": "assistant", "content": "Well."}, again)
        assert (await asked(run, *talk, **quiet)).sequence is first.sequence
        assert (await asked(run, *talk)).sequence is not first.sequence
    trajectory = run.trajectory()
    assert len(trajectory.sequences()) == 2


@pytest.mark.parametrize(
    "variables", [{"chat_template": "x"}, {"tokenize": False}, {"bos_token": "x"}, {"messages": []}]
)
def test_variables_that_are_not_the_templates_own_are_refused(variables: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match="variables of the chat template"):
        chat.read({"messages": [USER], "chat_template_kwargs": variables}, ())


async def test_an_episode_has_a_limited_number_of_settings() -> None:
    async with serving(codec=make_codec("qwen3")) as run:
        for number in range(8):
            await run.session.prompt(chat.read({**_with(number)}, ()))
        with pytest.raises(RequestRefused, match="8 different settings"):
            await run.session.prompt(chat.read(_with(8), ()))
        await run.session.prompt(chat.read(_with(7), ()))


def _with(number: int) -> dict[str, Any]:
    return {"messages": [USER], "chat_template_kwargs": {"unknown": number}}


async def test_texts_in_variables_form_no_control_token() -> None:
    codec = make_codec("llama3.1")
    fields = {"chat_template_kwargs": {"date_string": "<|eot_id|>"}}
    found = await prompt(codec, chat, messages=[USER], **fields)
    assert found.count("<|eot_id|>") == render("llama3.1", [USER]).count("<|eot_id|>")
    assert "eot_id|>" in found.partition("Today Date: ")[2].partition("\n")[0]


@pytest.mark.parametrize(
    ("dialect", "tool", "expected"),
    [
        (chat, {"strict": True, **ADD}, {**ADD, "description": None, "strict": True}),
        (chat, {"name": "add", "description": ""},
         {"name": "add", "description": "", "parameters": None}),
        (responses, {"strict": False, **ADD}, {**ADD, "description": None, "strict": False}),
        (anthropic, {"name": "add", "input_schema": {"properties": {}}},
         {"name": "add", "description": None, "parameters": {"properties": {}, "type": "object"}}),
    ],
)  # fmt: skip
async def test_tools_are_written_as_vllm_writes_them(
    dialect: ModuleType, tool: dict[str, Any], expected: dict[str, Any]
) -> None:
    given = {"input": "Hi"} if dialect is responses else {"messages": [USER]}
    wire = {"type": "function", "function": tool} if dialect is chat else {"type": "custom", **tool}
    wire = {"type": "function", **tool} if dialect is responses else wire
    function = {name: expected[name] for name in ("name", "description", "parameters")}
    tools = [{"type": "function", "function": {**function, **expected}}]
    found = await prompt("qwen3", dialect, **given, tools=[wire])
    assert found == render("qwen3", [USER], tools=tools)


async def test_namespace_is_part_of_a_tools_name() -> None:
    tool = {"type": "namespace", "name": "math", "tools": [{"type": "function", **ADD}]}
    call = '<tool_call>\n{"name": "math__add", "arguments": {}}\n</tool_call>'

    def write(context: str) -> str:
        assert '"name": "math__add"' in context
        return "Done." if "<tool_response>" in context else call

    async with serving(write, codec=make_codec("qwen3")) as run:
        turn = await asked(run, USER, dialect=responses, tools=[tool])
        request = responses.read({"input": "Hi"}, ())
        (item,) = responses.answer([Choice(turn, turn.reply)], request, str)["output"]
        assert (item["name"], item["namespace"]) == ("add", "math")
        result = {"type": "function_call_output", "call_id": item["call_id"], "output": "3"}
        after = await asked(run, USER, item, result, dialect=responses, tools=[tool])
        assert after.sequence is turn.sequence
    run.trajectory()


SYSTEM = [{"role": "system", "content": text} for text in ("a", "b")]


async def test_system_messages_stay_where_they_are() -> None:
    late = [{"role": "system", "content": "c"}]
    messages = [*SYSTEM, USER, *late]
    assert await prompt("qwen3", chat, messages=messages) == render("qwen3", messages)
    found = await prompt("qwen3", anthropic, system="a", messages=[USER, *late])
    assert found == render("qwen3", [SYSTEM[0], USER, *late])
    with pytest.raises(RequestRefused, match="must be at the beginning"):  # vLLM refuses it too
        await prompt(qwen36(), chat, messages=messages)


async def test_anthropics_system_texts_are_joined_without_the_header_of_claude_code() -> None:
    texts = ("x-anthropic-billing-header: cc_version=1;", "a", "b")
    blocks = [{"type": "text", "text": text} for text in texts]
    whole = [{"role": "system", "content": "ab"}, USER]
    assert await prompt("qwen3", anthropic, system=blocks, messages=[USER]) == render(
        "qwen3", whole
    )
    late = {"role": "system", "content": blocks}
    led = [{"role": "system", "content": "cab"}, USER]
    codec = qwen36()
    expected = await prompt(codec, chat, messages=led)
    assert await prompt(codec, anthropic, system="c", messages=[USER, late]) == expected
    header = {"role": "system", "content": f"{texts[0]}\na"}
    assert await prompt("qwen3", chat, messages=[header, USER]) == render(
        "qwen3", [SYSTEM[0], USER]
    )


async def test_developer_messages_are_part_of_the_system_prompt() -> None:
    note = {"role": "developer", "content": "b"}
    whole = [{"role": "system", "content": "a\n\nb"}, USER]
    found = await prompt("qwen3", chat, messages=[SYSTEM[0], USER, note])
    assert found == render("qwen3", whole)
    items = [{"role": "developer", "content": [{"type": "input_text", "text": "b"}]}, USER]
    found = await prompt("qwen3", responses, instructions="a", input=items)
    assert found == render("qwen3", whole)


async def test_a_late_system_message_continues_a_conversation() -> None:
    async with serving(lambda _: "Well.", codec=make_codec("qwen3")) as run:
        first = await asked(run, USER)
        talk = [USER, {"role": "assistant", "content": "Well."}]
        talk += [{"role": "system", "content": "Hm."}, USER]
        second = await asked(run, *talk)
        third = await asked(run, *talk, talk[1], USER)
        assert first.sequence is second.sequence is third.sequence
    assert len(run.trajectory().sequences()) == 1
    text = make_codec("qwen3").decode_all(first.sequence.record.ledger.wire_ids)
    assert "<|im_start|>system\nHm.<|im_end|>\n<|im_start|>user\nHi<|im_end|>" in text


@pytest.mark.parametrize("role", ["developer", "system"])
async def test_a_message_that_changes_the_system_prompt_starts_a_sequence(role: str) -> None:
    """So do late system messages where the template collects them at the start."""
    name = "deepseek-v3" if role == "system" else "qwen3"
    async with serving(lambda _: "Well.", codec=make_codec(name)) as run:
        first = await asked(run, USER)
        talk = [USER, {"role": "assistant", "content": "Well."}, {"role": role, "content": "Hm."}]
        second = await asked(run, *talk, USER)
        third = await asked(run, *talk, USER, talk[1], USER)
        assert first.sequence is not second.sequence is third.sequence
    run.trajectory()


async def test_texts_are_joined_as_vllm_joins_them() -> None:
    parts = [{"type": "text", "text": text} for text in (" a ", "", "b")]
    messages = [{"role": "user", "content": parts}]
    joined = [{"role": "user", "content": " a \nb"}]
    assert await prompt("qwen3", chat, messages=messages) == render("qwen3", joined)
    assert await prompt("qwen3-vl", chat, messages=messages) == render("qwen3-vl", messages)


@pytest.mark.parametrize("name", ["qwen3", "deepseek-v3"])
@pytest.mark.parametrize("content", [None, ""])
async def test_a_call_beside_no_content(name: str, content: str | None) -> None:
    """The template of DeepSeek-V3 writes no call beside an empty text, which vLLM passes."""
    function = {"name": "add", "arguments": "{}"}
    reply: dict[str, Any] = {"role": "assistant", "content": content}
    reply["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]
    result = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {}}}
    expected = [USER, {**reply, "content": "", "tool_calls": [call]}, result]
    found = await prompt(name, chat, messages=[USER, reply, result])
    assert found == render(name, expected)
    assert ("add" in found) is (name == "qwen3")


async def test_images_of_anthropics_results_follow_their_result() -> None:
    def result(number: int, text: str) -> dict[str, Any]:
        data = picture(number).data_uri().partition(",")[2]
        source = {"type": "base64", "media_type": "image/png", "data": data}
        content = [{"type": "image", "source": source}, {"type": "text", "text": text}]
        return {"type": "tool_result", "tool_use_id": f"c{number}", "content": content}

    uses = [{"type": "tool_use", "id": f"c{n}", "name": "add", "input": {}} for n in (1, 2)]
    talk = [USER, {"role": "assistant", "content": uses}]
    talk.append({"role": "user", "content": [result(1, "a"), result(2, "b")]})
    found = await prompt("qwen3-vl", anthropic, messages=talk)
    after = found.partition("<tool_response>")[2]
    marks = [after.find(mark) for mark in ("a\n</tool", "<|image_pad|>", "b\n</tool")]
    assert marks == sorted(marks)
    assert after.count("<|image_pad|>") == 2


async def test_blocks_without_content_write_nothing() -> None:
    empty = {"role": "user", "content": [{"type": "text", "text": ""}]}
    found = await prompt(
        "qwen3", anthropic, messages=[USER, {"role": "user", "content": []}, empty]
    )
    assert found == render("qwen3", [USER])


async def test_reasoning_that_the_gateway_cannot_read_is_refused() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": "abc"}
    with pytest.raises(RequestRefused, match="encrypted_content"):
        await prompt("qwen3", responses, input=[USER, item, USER])


@pytest.mark.parametrize(("dialect", "first"), [(chat, "arguments"), (responses, "name")])
async def test_a_call_is_written_in_the_order_of_vllm(dialect: ModuleType, first: str) -> None:
    """The template of Mistral-Nemo writes the function's fields as they come."""
    fields = {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "abcdefgh1", "type": "function", "function": {**fields, "own": None}}
    talk: list[Any] = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    talk.append({"role": "tool", "tool_call_id": "abcdefgh1", "content": "3"})
    if dialect is responses:
        item = {"type": "function_call", "call_id": "abcdefgh1", **fields}
        result = {"type": "function_call_output", "call_id": "abcdefgh1", "output": "3"}
        found = await prompt("mistral-nemo", dialect, input=[USER, item, result])
    else:
        found = await prompt("mistral-nemo", dialect, messages=talk)
        assert '"own": null' in found
    assert f'[TOOL_CALLS][{{"{first}": ' in found


async def test_results_keep_their_role_where_the_template_has_one_after_calls() -> None:
    """Gemma 4's template writes a result only after a structured call."""
    tokenizer = copy.deepcopy(load_tokenizer("qwen3"))
    marks = ["<|turn>", "<turn|>", "<|tool_response>", "<tool_response|>", '<|"|>']
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    path = cache_folder() / "templates" / "gemma4_v5.jinja"
    tokenizer.chat_template = path.read_text(encoding="utf-8")
    tokenizer.eos_token = "<turn|>"
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    talk = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    talk.append({"role": "tool", "tool_call_id": "c1", "content": "3"})
    found = await prompt(ChatCodec(tokenizer, neutralise=False), chat, messages=talk)
    assert '<|tool_response>response:add{value:<|"|>3<|"|>}<tool_response|>' in found


CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}


def opened(run: Any, kind: type[Client], start: str) -> Client:
    client = run.client(kind, extra=CONTINUE if kind is ChatClient else {})
    client.user("one", None)
    client.items.append({"role": "assistant", "content": start})
    return client


@pytest.mark.parametrize("kind", [ChatClient, AnthropicClient])
async def test_model_continues_the_start_of_a_reply(kind: type[Client]) -> None:
    contexts: list[str] = []

    def write(context: str) -> str:
        contexts.append(context)
        return " is four."

    async with serving(write) as run:
        client = opened(run, kind, "The answer")
        status, answer = await client.post(client.body())
        assert status == 200, answer
        said = client.read(answer)
    trajectory = run.trajectory()
    assert said.text == " is four."
    assert contexts[0].endswith("assistant\nThe answer")
    assert trajectory.segments[0].kind is SegmentKind.PROMPT
    assert trajectory.trained_token_count == len(run.engine.seen[0][1])


@pytest.mark.parametrize("kind", [ChatClient, AnthropicClient])
async def test_whole_reply_in_a_history_continues_its_sequence(kind: type[Client]) -> None:
    async with serving(lambda _: " is four.") as run:
        client = opened(run, kind, "The answer")
        await client.post(client.body())
        client.items[-1]["content"] = "The answer is four."
        client.extra = {}
        await client.ask("two")
        await client.ask("three")
    trajectory = run.trajectory()
    assert run.session.counts == {"new": 1, "continued": 2}
    assert len(trajectory.sequences()) == 1


async def test_start_of_a_reply_alone_is_another_conversation() -> None:
    async with serving(lambda _: " is four.") as run:
        client = opened(run, AnthropicClient, "The answer")
        await client.post(client.body())
        await client.ask("two")
    run.trajectory()
    assert run.session.counts == {"new": 2}


async def test_start_after_a_reply_begins_a_sequence_that_quotes_it() -> None:
    async with serving(lambda _: " yes") as run:
        client = run.client(AnthropicClient)
        await client.ask("one")
        client.user("two", None)
        client.items.append({"role": "assistant", "content": "Well,"})
        status, _ = await client.post(client.body())
    trajectory = run.trajectory()
    assert status == 200
    assert [branch.reason for branch in trajectory.branches] == ["template"]


async def test_thread_continues_after_a_reply_with_its_start() -> None:
    async with serving(lambda _: " is four.") as run:
        client = opened(run, AnthropicClient, "The answer")
        client.extra = {"thread": {"type": "create"}}
        _, first = await client.post(client.body())
        client.items.clear()
        client.extra = {"thread": {"type": "continue", "previous_message_id": first["id"]}}
        await client.ask("two")
    run.trajectory()
    assert run.session.counts == {"new": 1, "continued": 1}


@pytest.mark.parametrize("kind", [one for one in CLIENTS if one is not AnthropicClient])
async def test_reply_at_the_end_is_answered_with_another(kind: type[Client]) -> None:
    """As OpenAI's service and vLLM do."""
    contexts: list[str] = []

    def write(context: str) -> str:
        contexts.append(context)
        return "yes"

    async with serving(write) as run:
        client = run.client(kind)
        await client.ask("one")
        status, _ = await client.post(client.body())
    run.trajectory()
    assert status == 200
    assert contexts[1].endswith("yes<|im_end|>\n<|im_start|>assistant\n")
    assert run.session.counts == {"new": 2}


BLOCK = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}

BAD: list[tuple[type[Client], dict[str, Any], dict[str, Any]]] = [
    (AnthropicClient, {"role": "assistant", "content": "The answer "}, {}),
    (AnthropicClient, {"role": "assistant", "content": ""}, {}),
    (AnthropicClient, {"role": "assistant", "content": [BLOCK]}, {}),
    (ChatClient, {"role": "user", "content": "a"}, CONTINUE),
    (ChatClient, {"role": "assistant", "content": None}, CONTINUE),
    (ChatClient, {"role": "assistant", "content": "a"}, {"continue_final_message": True}),
]


@pytest.mark.parametrize(("kind", "last", "extra"), BAD, ids=str)
async def test_start_that_the_service_refuses_is_refused(
    kind: type[Client], last: dict[str, Any], extra: dict[str, Any]
) -> None:
    async with serving() as run:
        client = run.client(kind, extra=extra)
        client.user("one", None)
        client.items.append(last)
        status, _ = await client.post(client.body())
    assert status == 400
    assert not run.engine.seen


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    },
}

OBJECTS_ONLY = ("qwen3_5_think", "qwen3_6", "qwen3_8", "nemotron_3_nano", "nemotron_3_super")

"""Published templates that read the arguments of a call only as an object."""


def codec_of(template: str) -> ChatCodec:
    if template in templates.SPECS:
        return templates.default_codec(template)
    name = f"histories-{template}"
    templates.SPECS.setdefault(
        name,
        templates.Spec(name=name, tokenizer="qwen3", template=template, ends=("<|im_end|>",)),
    )
    return templates.default_codec(name)


async def ask(run: Run, messages: list[dict[str, Any]], **fields: Any) -> tuple[int, Any]:
    body = {"model": "m", "messages": messages, "tools": [TOOL], **fields}
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{run.gateway.url}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {run.session.key}"},
        ) as answer,
    ):
        return answer.status, await answer.json()


def quoted(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c00000000", "type": "function"}
    call["function"] = {"name": "add", "arguments": arguments}  # type: ignore[assignment]
    return [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c00000000", "content": "3"},
    ]


def prompt_of(run: Run) -> str:
    codec = run.session.setup.codec
    assert codec is not None
    return codec.decode_all(run.engine.seen[-1][0])


@pytest.mark.parametrize("template", [*OBJECTS_ONLY, "glm4moe", "qwen3"])
@pytest.mark.parametrize(
    "arguments", share(['{"a": 12345}', "12345", "not JSON 12345", "[12345"], of=2)
)
async def test_call_in_a_history_is_rendered_whatever_its_arguments_are(
    template: str, arguments: str
) -> None:
    async with serving(lambda _: "done", codec=codec_of(template)) as run:
        status, answer = await ask(run, quoted(arguments))
        assert status == 200, answer
        assert "12345" in prompt_of(run)
        assert run.session.counts == {"new": 1}


@pytest.mark.parametrize("arguments", ['{"a": 1, "b": "\u00e9"}', '{"b":"\\u00e9","a":1}'])
async def test_arguments_are_rendered_as_servers_do_from_the_object(arguments: str) -> None:
    codec = templates.default_codec("qwen3")
    async with serving(lambda _: "done", codec=codec) as run:
        await ask(run, quoted(arguments))
        written = json.dumps(json.loads(arguments), ensure_ascii=False)
        assert f'"arguments": {written}' in prompt_of(run)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_of_a_quoted_reply_reaches_the_template(field: str) -> None:
    messages = quoted('{"a": 1}')
    messages[1][field] = "I must add."
    async with serving(lambda _: "done", codec=templates.default_codec("qwen3")) as run:
        status, _ = await ask(run, messages)
        assert status == 200
        assert "<think>\nI must add.\n</think>" in prompt_of(run)
        messages[1][field] = "I must subtract."
        follow = [*messages, {"role": "assistant", "content": "done"}]
        await ask(run, [*follow, {"role": "user", "content": "And?"}])
        assert run.session.counts == {"new": 2}
        assert run.trajectory().stop_reason is StopReason.TERMINATED


@pytest.mark.slow  # its tokenizer takes seconds to load
async def test_glm_plain_loop_continues_its_sequence() -> None:
    call = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    replies = iter([f"Adding.{call}", "It is 3."])
    messages = quoted("{}")[:1]
    async with serving(lambda _: next(replies), codec=codec_of("glm4moe")) as run:
        _, answer = await ask(run, messages)
        (said,) = (choice["message"] for choice in answer["choices"])
        (made,) = said["tool_calls"]
        assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == (
            "add", {"a": 1},
        )  # fmt: skip
        result = {"role": "tool", "tool_call_id": made["id"], "content": "3"}
        status, _ = await ask(run, [*messages, said, result])
        assert status == 200
        assert run.session.counts == {"new": 1, "continued": 1}
        assert len(run.trajectory().sequences()) == 1
