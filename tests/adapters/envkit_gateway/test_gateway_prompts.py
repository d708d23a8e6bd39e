"""First prompts against those of vLLM's server, which `scripts/campaigns/prompts.py` compares.

Each test writes by hand what vLLM 0.32 passes to the chat template, and renders that with
transformers.
"""

import copy
from types import ModuleType
from typing import Any

import pytest
from fakes.gateway_run import serving
from fakes.templates import cache_folder, literal_codec, load_tokenizer, make_codec, render
from fakes.trajectories import picture

from envkit.tokens import ChatCodec
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
    tokenizer = copy.deepcopy(load_tokenizer("gemma3"))
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
