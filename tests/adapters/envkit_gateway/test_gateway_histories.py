"""What a history that has to be rendered again looks like to the model, by real chat templates."""

import json
from typing import Any

import aiohttp
import pytest
from fakes import templates
from fakes.gateway_run import Run, serving
from fakes.matrix import share

from envkit.tokens import ChatCodec
from envkit.trajectory import StopReason

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
