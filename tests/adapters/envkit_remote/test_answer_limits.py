"""Bounds on an engine's answer: what hostile servers send, and the longest honest answers."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from fakes.remote_requests import ask
from fakes.search_server import running

from envkit import fast_json
from envkit.errors import EngineFault, FaultKind
from envkit.rollout.engine import GenerateRequest
from envkit_remote import RemoteEngine
from envkit_remote.engine import answer_limit
from envkit_remote.transport import AnswerLimit
from envkit_sglang import SGLangEngine
from envkit_vllm import VLLMEngine

KINDS = [SGLangEngine, VLLMEngine]
LISTS = b'{"meta_info":[' + b"[]," * 100_000 + b"[]]}"


@asynccontextmanager
async def answering(body: bytes, content_type: str) -> AsyncGenerator[str]:
    """Start a server that answers every request alike."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with running(app) as address:
        yield address


def sglang(tokens: int, top: int, text: str) -> bytes:
    """Return an answer of SGLang."""
    entries = [[-1.2345678, 150_000 + n, text] for n in range(tokens)]
    meta = {
        "id": "a", "finish_reason": {"type": "length", "length": tokens}, "prompt_tokens": 3,
        "completion_tokens": tokens, "output_token_logprobs": entries,
        "output_top_logprobs": [[[-1.5, 150_000, text]] * top] * tokens if top else None,
    }  # fmt: skip
    ids = [entry[1] for entry in entries]
    answer = {"text": text * tokens, "output_ids": ids, "meta_info": meta}
    return fast_json.dumps({**answer, "prompt_token_ids": [4, 5, 6]})


def vllm(tokens: int, top: int, text: str) -> bytes:
    """Return an answer of vLLM."""
    one = {"token": text, "token_id": 150_000, "logprob": -1.2345678, "bytes": [*text.encode()]}
    content = [{**one, "rank": 1, "top_logprobs": [one] * top}] * tokens
    choice = {
        "index": 0, "logprobs": {"content": content}, "finish_reason": "length",
        "token_ids": [150_000] * tokens,
    }  # fmt: skip
    usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
    answer = {"request_id": "a", "choices": [choice], "usage": usage}
    return fast_json.dumps({**answer, "prompt_token_ids": [4, 5, 6]})


def of_top(top: int) -> GenerateRequest:
    return replace(ask(), top_logprobs=top)


@pytest.mark.parametrize("answer", [sglang, vllm])
@pytest.mark.parametrize(("tokens", "top"), [(1, 0), (1, 20), (32_768, 0), (4096, 20)])
@pytest.mark.parametrize("text", ["a", "[{,:", '"\\'])
def test_longest_honest_answers_are_within_their_limit(
    answer: Any, tokens: int, top: int, text: str
) -> None:
    body = answer(tokens, top, text)
    limit = answer_limit(of_top(top), tokens)
    limit.check("http://server", body)
    assert len(body) <= limit.max_bytes


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_answer_may_have_as_many_values_as_the_limit(more: int) -> None:
    limit = answer_limit(of_top(0), 10)
    assert limit.max_values is not None
    body = b"[" + b"[]," * (limit.max_values // 2) + b"0" * 10
    body += b"," * (limit.max_values + more - fast_json.values_in(body))
    if more <= 0:
        limit.check("http://server", body)
        return
    with pytest.raises(EngineFault, match=rf"answered with {limit.max_values + 1} JSON values"):
        limit.check("http://server", body)


def test_answer_with_extras_has_any_number_of_values() -> None:
    limit = answer_limit(ask(extras={"return_hidden_states": True}), 10)
    limit.check("http://server", LISTS)
    assert limit.max_values is None


def test_more_tokens_and_longer_prompts_may_have_more_values() -> None:
    few, more, top, long = (
        answer_limit(request, tokens).max_values or 0
        for request, tokens in (
            (of_top(0), 10),
            (of_top(0), 20),
            (of_top(20), 10),
            (replace(ask(), train_length=1003), 10),
        )
    )
    assert (more - few, top - few, long - few) == (240, 4800, 1000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_absurdly_many_lists_are_a_permanent_fault_that_nobody_parses(
    kind: type[RemoteEngine], is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(_data: bytes) -> None:
        raise AssertionError

    body = b"data:" + LISTS + b"\n\ndata: [DONE]\n\n" if is_stream else LISTS
    content_type = "text/event-stream" if is_stream else "application/json"
    async with answering(body, content_type) as address:
        engine = kind(address, context_length=1000, check_logprobs=False)
        monkeypatch.setattr(fast_json, "loads_large", parse)
        with pytest.raises(EngineFault, match="JSON values, which is more than") as caught:
            await (engine.stream(ask(), lambda _ids: None) if is_stream else engine.generate(ask()))
        await engine.aclose()
    assert (caught.value.kind, caught.value.retryable) == (FaultKind.PERMANENT, False)


@pytest.mark.parametrize(("kind", "answer"), [(SGLangEngine, sglang), (VLLMEngine, vllm)])
@pytest.mark.parametrize(("tokens", "is_off_loop"), [(30, False), (30_000, True)])
async def test_event_loop_reads_only_short_answers(
    kind: type[RemoteEngine],
    answer: Any,
    tokens: int,
    is_off_loop: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    parse = kind.dialect_type.generation

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.get_ident())
        return parse(*args, **kwargs)

    monkeypatch.setattr(kind.dialect_type, "generation", noted)
    async with answering(answer(tokens, 0, "a"), "application/json") as address:
        engine = kind(address, context_length=64_000, check_logprobs=False)
        request = ask(max_new_tokens=tokens)
        generation = await engine.generate(request)
        await engine.aclose()
    assert len(generation.token_ids) == tokens
    assert [one != threading.get_ident() for one in threads] == [is_off_loop]


def test_body_shorter_than_its_limit_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = fast_json.values_in

    def noted(data: bytes) -> int:
        counted.append(len(data))
        return count(data)

    monkeypatch.setattr(fast_json, "values_in", noted)
    limit = AnswerLimit(max_bytes=100, max_values=10)
    for size in (9, 10, 11):
        limit.check("http://server", b" " * size)
    assert counted == [11]


async def test_pages_about_a_server_have_few_values() -> None:
    async with answering(LISTS, "application/json") as address:
        engine = SGLangEngine(address, context_length=1000)
        with pytest.raises(EngineFault, match="JSON values"):
            await engine.generate(ask(temperature=0.5))
        await asyncio.wait_for(engine.aclose(), 120)
