"""Replies of hostile or broken servers, over real sockets, through a whole episode."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, World
from fakes.sglang_hostile import Reply, good, hostile_server, http
from fakes.virtual_time import skip

from envkit.faults import FaultPlan
from envkit.rollout import Backoff, RetryBudget, play
from envkit.trajectory import StopReason, Trajectory
from envkit_sglang import SGLangEngine

HASTY = RetryBudget(
    max_engine_retries_per_turn=1,
    engine_unavailable_s=0.1,
    backoff=Backoff(initial_s=0.01, maximum_s=0.02),
)
TIMEOUT_S = 60.0
"""An answer that comes takes less on any machine."""
FAULTS = (StopReason.ENGINE_FAULT, StopReason.LEDGER_FAULT)
Change = Callable[[dict[str, Any]], Any]


def keep_silent(request: dict[str, Any]) -> None:
    """Answer nothing in time."""
    skip(TIMEOUT_S)


def meta(**fields: Any) -> Change:
    """Answer rightly but for some keys of `meta_info`."""
    return lambda answer: answer["meta_info"].update(fields)


def top(**fields: Any) -> Change:
    """Answer rightly but for some keys of the answer itself."""
    return lambda answer: answer.update(fields)


def without(key: str) -> Change:
    return lambda answer: answer["meta_info"].pop(key)


def token(identity: Any) -> Change:
    """Sample another id, the same one wherever the answer has it."""

    def change(answer: dict[str, Any]) -> None:
        answer["output_ids"][0] = identity
        answer["meta_info"]["output_token_logprobs"][0][1] = identity

    return change


def logprob(value: Any) -> Change:
    def change(answer: dict[str, Any]) -> None:
        answer["meta_info"]["output_token_logprobs"][0][0] = value

    return change


def entry(value: Any) -> Change:
    def change(answer: dict[str, Any]) -> None:
        answer["meta_info"]["output_token_logprobs"][1] = value

    return change


def changed(change: Change) -> Reply:
    def reply(request: dict[str, Any]) -> bytes:
        answer = good(request)
        change(answer)
        return http(json.dumps(answer).encode())

    return reply


def raw(answer: bytes) -> Reply:
    return lambda request: answer


def deep(count: int) -> Reply:
    """Answer rightly, with a key that is nested so deep."""

    def reply(request: dict[str, Any]) -> bytes:
        text = json.dumps(good(request))
        return http(text[:-2].encode() + b', "x": ' + b"[" * count + b"]" * count + b"}}")

    return reply


def number(text: bytes) -> Reply:
    """Answer rightly, with the log-probability -0.5 written in another way."""

    def reply(request: dict[str, Any]) -> bytes:
        return http(json.dumps(good(request)).encode().replace(b"-0.5", text))

    return reply


HOSTILE: dict[str, Reply] = {
    # ids
    "negative id": changed(token(-1)),
    "id of 10^30": changed(token(10**30)),
    "id beyond the vocabulary": changed(token(49_216)),
    "float id": changed(token(20.0)),
    "text id": changed(token("20")),
    "bool id": changed(token(True)),
    "null id": changed(token(None)),
    "list id": changed(token([20])),
    "ids a text": changed(top(output_ids="abc")),
    "ids missing": changed(top(output_ids=None)),
    "ids of another reply": changed(top(output_ids=[1, 2, 3])),
    "no ids": changed(lambda a: (top(output_ids=[])(a), meta(output_token_logprobs=[])(a))),
    # log-probabilities
    "null log-probability": changed(logprob(None)),
    "text log-probability": changed(logprob("nan")),
    "bool log-probability": changed(logprob(True)),
    "log-probability above 0": changed(logprob(0.5)),
    "NaN": number(b"NaN"),
    "-Infinity": number(b"-Infinity"),
    "number of 400 digits": number(b"-1" + b"0" * 400),
    "number of 5000 digits": number(b"-1" + b"0" * 5000),
    "entries null": changed(meta(output_token_logprobs=None)),
    "entries a mapping": changed(meta(output_token_logprobs={"0": 1})),
    "entry null": changed(entry(None)),
    "entry empty": changed(entry([])),
    "entry a text": changed(entry("ab")),
    "entry a mapping": changed(entry({"logprob": -1})),
    "entries missing": changed(without("output_token_logprobs")),
    # counts and reasons
    "prompt tokens missing": changed(without("prompt_tokens")),
    "prompt tokens a text": changed(meta(prompt_tokens="3")),
    "prompt tokens negative": changed(meta(prompt_tokens=-3)),
    "another prompt": changed(meta(prompt_tokens=1)),
    "completion tokens wrong": changed(meta(completion_tokens=99)),
    "cached tokens a float": changed(meta(cached_tokens=0.5)),
    "cached tokens of 10^30": changed(meta(cached_tokens=10**30)),
    "finish reason missing": changed(without("finish_reason")),
    "finish reason null": changed(meta(finish_reason=None)),
    "finish reason unknown": changed(meta(finish_reason={"type": "tired"})),
    "finish reason of a list": changed(meta(finish_reason={"type": ["stop"]})),
    "abort with status 503": changed(meta(finish_reason={"type": "abort", "status_code": 503})),
    "abort with a text as status": changed(
        meta(finish_reason={"type": "abort", "status_code": "x"})
    ),
    "weight version a mapping": changed(meta(weight_version={"a": 1})),
    "queue time a text": changed(meta(queue_time="long")),
    "queue time NaN": changed(meta(queue_time=float("nan"))),
    "prompt ids of another prompt": changed(top(prompt_token_ids=[1, 2, [3]])),
    # extras
    "extras 900 deep": deep(900),
    "extras 200000 deep": deep(200_000),
    "half a surrogate in the extras": changed(meta(note="\ud800")),
    "huge number in the extras": changed(meta(note=10**1000)),
    # bodies
    "null": raw(http(b"null")),
    "list": raw(http(b"[]")),
    "text": raw(http(b'"ok"')),
    "empty body": raw(http(b"")),
    "empty object": raw(http(b"{}")),
    "meta null": raw(http(b'{"meta_info": null}')),
    "HTML": raw(http(b"<html>")),
    "not UTF-8": raw(http(b'{"meta_info": "\xff\xfe"}')),
    "truncated JSON": raw(http(b'{"output_ids": [1, 2')),
    "JSON and more": raw(http(b"{}{}")),
    "only brackets": raw(http(b"[" * 200_000)),
    "no gzip although it says so": raw(http(b"{}", headers="Content-Encoding: gzip\r\n")),
    # connections
    "body shorter than it says": raw(http(b'{"a": 1', length=4096)),
    "headers without end": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "no HTTP": raw(b"hello there\r\n\r\n"),
    "bad status line": raw(b"HTTP/1.1 ABC Nope\r\n\r\n"),
    "bad length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}"),
    "endless header": raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"),
    "connection closed": raw(b""),
    "no answer": keep_silent,
    # statuses
    "redirect": raw(http(b"", status="302 Found", headers="Location: /generate\r\n")),
    "204": raw(http(b"", status="204 No Content")),
    "400": raw(http(b'{"error": {"message": ["x"]}}', status="400 Bad Request")),
    "401": raw(http(b"", status="401 Unauthorized")),
    "404": raw(http(b"", status="404 Not Found")),
    "429": raw(http(b"", status="429 Slow", headers="Retry-After: 0\r\n")),
    "429 with a date": raw(
        http(b"", status="429 Slow", headers="Retry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n")
    ),
    "429 with nonsense": raw(http(b"", status="429 Slow", headers="Retry-After: soon\r\n")),
    "500": raw(http(b"\xff", status="500 Internal Server Error")),
    "500 with half a surrogate": raw(http(b'{"error": "\\ud800"}', status="500 Oops")),
    "503 nested": raw(http(b"[" * 5000, status="503 Service Unavailable")),
    "599": raw(http(b"", status="599 Odd")),
}
HARMLESS = {"queue time a text", "queue time NaN"}


async def played(url: str) -> Trajectory:
    engine = SGLangEngine(url, timeout_s=TIMEOUT_S)
    try:
        return await play(
            lambda: CountingEnv(World(), FaultPlan(0.0)),
            engine,
            text_codec(),
            retries=HASTY,
            seed=5,
        )
    finally:
        await engine.aclose()


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.slow
async def test_hostile_reply_is_a_typed_fault_or_a_right_answer(name: str) -> None:
    async with hostile_server(HOSTILE[name]) as url:
        trajectory = await played(url)
    if name in HARMLESS:
        assert trajectory.reward == 1.0
        return
    assert trajectory.stop_reason in FAULTS
    assert trajectory.reward is None
    assert trajectory.fault is not None
    assert 0 < len(trajectory.fault.message) < 2000
    trajectory.fault.message.encode()  # it can be stored


async def test_right_answers_play_the_episode() -> None:
    async with hostile_server(changed(lambda answer: None)) as url:
        trajectory = await played(url)
    assert trajectory.reward == 1.0
    assert len(HOSTILE) >= 47
