"""Every answer and event against the types that OpenAI and Anthropic publish in their packages."""

import json
from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from fakes.agent_clients import CLIENTS, AnthropicClient, ChatClient, Client, ResponsesClient
from fakes.client_scripts import calling, codec, gateway
from fakes.odd_engine import OddEngine, StreamingOddEngine
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

WHOLE: dict[type[Client], Any] = {
    ChatClient: ChatCompletion,
    ResponsesClient: Response,
    AnthropicClient: Message,
}
EVENT: dict[type[Client], Any] = {
    ChatClient: ChatCompletionChunk,
    ResponsesClient: ResponseStreamEvent,
    AnthropicClient: RawMessageStreamEvent,
}
LOGPROBS: dict[type[Client], dict[str, Any]] = {
    ChatClient: {"logprobs": True},
    ResponsesClient: {"include": ["message.output_text.logprobs"]},
    AnthropicClient: {},
}


def check(kind: Any, value: Any) -> None:
    """Validate as the package would, which its own parsing of answers does not."""
    TypeAdapter(kind).validate_json(json.dumps(value))


@pytest.mark.parametrize("limit", [4096, 3], ids=["whole", "cut"])
@pytest.mark.parametrize("stream", ["", "after", "while sampling"])
@pytest.mark.parametrize("kind", CLIENTS)
async def test_answers_have_every_field_of_their_published_type(
    kind: type[Client], stream: str, limit: int
) -> None:
    script, is_live = calling("add", '{"b":  2.0, "a": 1}'), stream == "while sampling"
    engine = StreamingOddEngine(codec(), script) if is_live else OddEngine(codec(), script)
    async with gateway(script, engine=engine) as run:
        name = "max_output_tokens" if kind is ResponsesClient else "max_tokens"
        extra = {**({} if is_live else LOGPROBS[kind]), name: limit}
        client: Any = run.client(kind, stream=bool(stream), tools=True, extra=extra)
        for _ in range(2):
            client.user("one", None)
            status, answer = await client.post(client.body())
            assert status == 200
            if stream:
                for event in answer:
                    check(EVENT[kind], event)
            else:
                check(WHOLE[kind], answer)
            said = client.read(answer)
            client.remember(said)
            for call in said.calls:
                client.result(call, "3")
    assert len(run.engine.seen) == 2


async def test_models_and_counts_have_their_published_type() -> None:
    import httpx

    async with gateway(calling("add", "{}")) as run, httpx.AsyncClient() as http:
        headers = {"x-api-key": run.session.key}
        found = await http.get(f"{run.gateway.url}/v1/models/any/name", headers=headers)
        check(Model, found.json())
        body = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
        url = f"{run.gateway.url}/v1/messages/count_tokens"
        check(MessageTokensCount, (await http.post(url, json=body, headers=headers)).json())
