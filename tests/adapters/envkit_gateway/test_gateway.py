"""The gateway: exact continuation whatever a client rewrites, images, refusals, retries."""

import asyncio
import gc
import json
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import aiohttp
import pytest
from fakes.agent_clients import CLIENTS, AnthropicClient, ChatClient, Client, ResponsesClient, Said
from fakes.gateway_run import serving
from fakes.odd_engine import OddEngine
from fakes.trajectories import picture

from envkit.metrics import aggregate
from envkit.rollout.engine import GenerateRequest, Generation, Sampling
from envkit.rollout.limits import Limits
from envkit.trajectory import SegmentKind, StopReason
from envkit_gateway import Gateway, Session, SessionLimits
from envkit_gateway.turn import TurnState


def unchanged(said: Said) -> Said:
    return said


def reserialised(said: Said) -> Said:
    """Return a reply as langgraph and opencode write it back."""
    calls = [
        {
            **one,
            "id": f"own-{one['id']}",
            "arguments": json.dumps(json.loads(one["arguments"]), sort_keys=True),
        }
        for one in said.calls
    ]
    return replace(said, text=said.text.strip(), calls=calls, thinking="")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("echo", [unchanged, reserialised])
async def test_conversation_stays_one_sequence(kind: type[Client], stream: bool, echo: Any) -> None:
    async with serving() as run:
        client = run.client(kind, stream=stream, tools=True, echo=echo, system="Be exact.")
        for question in ("one", "two"):
            said = await client.ask(question)
            assert said.thinking == "I think  hard"
            (call,) = said.calls
            assert json.loads(call["arguments"]) == {"b": 2.0, "a": 1, "c": "é"}
            for one in echo(said).calls:
                client.result(one, "3")
            assert (await client.ask()).text == "  It is done. \n"
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
    assert len(trajectory.turns) == 4
    assert trajectory.trained_token_count == trajectory.sampled_token_count


@pytest.mark.parametrize("kind", CLIENTS)
async def test_images_of_users_and_tool_results_reach_the_model(kind: type[Client]) -> None:
    async with serving() as run:
        client = run.client(kind, tools=True)
        said = await client.ask("look", picture(1))
        client.result(said.calls[0], "seen", picture(2))
        await client.ask()
        await client.ask("", picture(3))
    trajectory = run.trajectory()

    assert [image.sha256 for image in trajectory.images()] == [picture(n).sha256 for n in (1, 2, 3)]
    assert len(run.engine.requests[-1].images) == 3


async def test_marked_retry_gets_the_same_reply() -> None:
    async with serving() as run:
        client = run.client(ChatClient)
        client.user("one", None)
        _, first = await client.post(client.body())
        client.headers = {"x-stainless-retry-count": "1"}
        _, again = await client.post(client.body())
    run.trajectory()

    assert len(run.engine.seen) == 1
    assert first["choices"] == again["choices"]


async def test_equal_body_without_a_mark_is_a_fresh_sample() -> None:
    async with serving() as run:
        client = run.client(ChatClient)
        client.user("one", None)
        for _ in range(2):
            await client.post(client.body())
    trajectory = run.trajectory()

    assert len(run.engine.seen) == 2
    assert len(trajectory.sequences()) == 2


async def test_broken_call_that_is_asked_for_again_is_superseded() -> None:
    async with serving(lambda _: '<tool_call>{"name": "add", "arg') as run:
        client = run.client(ChatClient, tools=True)
        client.user("one", None)
        for _ in range(2):
            _, answer = await client.post(client.body())
            assert "tool_calls" not in answer["choices"][0]["message"]
    trajectory = run.trajectory()

    assert trajectory.turns[0].purpose == "superseded"
    assert trajectory.trained_token_count == len(run.engine.seen[1][1])


async def test_reply_of_a_client_that_left_is_given_to_its_retry() -> None:
    async with serving() as run:
        client = await run.disconnected()
        status, _ = await client.post(client.body())
    trajectory = run.trajectory()

    assert status == 200
    assert len(run.engine.seen) == 1
    assert trajectory.turns[0].purpose is None


async def test_lost_reply_is_recorded_and_not_trained() -> None:
    async with serving() as run:
        await run.disconnected()
        other = run.client(ChatClient)
        await other.ask("two")
    trajectory = run.trajectory()

    assert trajectory.turns[0].purpose == "lost"
    assert trajectory.trained_token_count == len(run.engine.seen[1][1])


URL = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
BAD: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": [URL]}]},
    {"messages": [{"role": "user", "content": [{"type": "video", "url": "x"}]}]},
    {"messages": [{"role": "user", "content": "<|image_pad|>"}]},
    {"messages": [{"role": "king", "content": "a"}]},
    {"messages": "text"},
    {"messages": [{"role": "user", "content": {"a": 1}}]},
    {"messages": [{"role": "user", "content": "a"}], "n": 0},
    {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3},
    {"messages": [{"role": "user", "content": "a"}], "stop": [1]},
    {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
    {"messages": [{"role": "user", "content": "a"}], "audio": {"voice": "x"}},
    {"messages": [{"role": "user", "content": "a"}], "max_tokens": "many"},
]


@pytest.mark.parametrize("body", BAD, ids=lambda body: json.dumps(body)[:60])
async def test_bad_request_is_refused_and_the_session_lives(body: dict[str, Any]) -> None:
    async with serving() as run:
        client = run.client(ChatClient)
        status, answer = await client.post({"model": "m", **body})
        if "pad" not in json.dumps(body):  # control tokens of a user are broken up, not refused
            assert status == 400
            assert answer["error"]["type"] == "invalid_request_error"
            assert not run.engine.seen
        assert (await run.client(ChatClient).ask("hello")).text
    run.trajectory()


async def test_errors_come_in_the_dialect_of_the_client() -> None:
    async with serving() as run:
        anthropic = run.client(AnthropicClient)
        _, answer = await anthropic.post({"messages": [], "max_tokens": 1})
        assert answer["type"] == "error"
        responses = run.client(ResponsesClient)
        _, answer = await responses.post({"input": "a", "previous_response_id": "resp_1"})
        assert "no response 'resp_1'" in answer["error"]["message"]
        for key, status in (("wrong", 401), (run.session.key, 200)):
            client = ChatClient(run.gateway.url, key)
            client.user("one", None)
            assert (await client.post(client.body()))[0] == status
        await run.session.close()
        assert (await client.post(client.body()))[0] == 403


async def test_result_marked_as_an_error_is_another_conversation() -> None:
    async with serving() as run:
        client = run.client(AnthropicClient, tools=True)
        said = await client.ask("one")
        client.result(said.calls[0], "3")
        await client.ask()
        await client.ask("two")
        client.items.pop()
        (block,) = client.items[2]["content"]
        for marked in (False, True):
            block["is_error"] = marked
            assert (await client.post(client.body()))[0] == 200
    counts = run.session.counts
    assert (counts["new"], counts["continued"]) == (2, 3)
    run.trajectory()


async def test_every_answer_has_the_ids_that_sdks_report() -> None:
    names: set[str] = set()
    async with serving() as run, aiohttp.ClientSession() as http:
        for kind, stream in ((one, stream) for one in CLIENTS for stream in (False, True)):
            client = run.client(kind, stream=stream)
            client.user("one", None)
            for key in (run.session.key, "wrong"):
                headers = {"authorization": f"Bearer {key}"}
                url = run.gateway.url + kind.path
                async with http.post(url, json=client.body(), headers=headers) as answer:
                    names.add(answer.headers["x-request-id"])
                    assert answer.headers["request-id"] == answer.headers["x-request-id"]
        async with http.get(f"{run.gateway.url}/v1/models") as answer:
            names.add(answer.headers["x-request-id"])
    assert len(names) == 13
    run.trajectory()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/nothing", "invalid_request_error"),
        ("/v1/responses/resp_9", "invalid_request_error"),
        ("/v1/messages/batches", "not_found_error"),
    ],
)
async def test_unknown_path_is_not_found_in_the_form_of_its_dialect(path: str, kind: str) -> None:
    async with (
        serving() as run,
        aiohttp.ClientSession() as http,
        http.get(run.gateway.url + path) as answer,
    ):
        assert answer.status == 404
        assert (await answer.json())["error"]["type"] == kind


async def test_unknown_response_has_the_code_of_the_service() -> None:
    async with serving() as run:
        client = run.client(ResponsesClient, extra={"previous_response_id": "resp_9"})
        client.user("one", None)
        _, answer = await client.post(client.body())
    assert answer["error"]["code"] == "previous_response_not_found"


async def test_sessions_are_released_at_their_end() -> None:
    """Also those whose client left, whose replies wait for a retry."""
    alive = WeakSet[Session]()
    async with Gateway().running() as gateway:
        for _ in range(50):
            async with serving() as run, gateway.serving(run.session):
                alive.add(run.session)
                await run.client(ChatClient).ask("one")
                (turn,) = run.session.turns
                turn.state = TurnState.RUNNING
                run.session.client_left(turn)
            del run, turn
        gc.collect()
        assert not alive
        assert not vars(gateway)["_sessions"]


async def test_body_that_is_not_json_or_too_large_is_refused() -> None:
    async with serving() as run, aiohttp.ClientSession() as http:
        url = f"{run.gateway.url}/v1/chat/completions"
        headers = {"authorization": f"Bearer {run.session.key}"}
        for data, status in ((b"{", 400), (b"[]", 400), (b"[" * 200_000, 400)):
            async with http.post(url, data=data, headers=headers) as answer:
                assert answer.status == status
                assert "error" in await answer.json()


async def test_context_that_is_too_long_is_refused_in_words_that_clients_read() -> None:
    async with serving(limits=Limits(max_context_tokens=200)) as run:
        client = run.client(AnthropicClient)
        client.user("word " * 300, None)
        status, answer = await client.post(client.body())
        assert status == 400
        assert "prompt is too long: " in answer["error"]["message"]
        client.items.clear()
        assert (await client.ask("short")).text
    run.trajectory()


async def test_limits_end_the_episode_with_403() -> None:
    limits = SessionLimits(max_sequences=2)
    async with serving(session_limits=limits) as run:
        for question in ("one", "two"):
            await run.client(ChatClient).ask(question)
        client = run.client(ChatClient)
        client.user("three", None)
        status, answer = await client.post(client.body())
    assert status == 403
    assert "max_sequences" in answer["error"]["message"]
    assert run.session.stop_reason is StopReason.MAX_SEQUENCES


async def test_token_limit_of_zero_is_refused_and_ends_nothing() -> None:
    async with serving() as run:
        for kind, name in zip(
            CLIENTS, ("max_tokens", "max_output_tokens", "max_tokens"), strict=True
        ):
            client = run.client(kind, extra={name: 0})
            client.user("one", None)
            assert (await client.post(client.body()))[0] == 400
        assert run.session.stop_reason is None
        assert run.session.counts["refused"] == 0  # none reached the session


async def test_refused_requests_count_once_and_leave_their_numbers() -> None:
    async with serving(limits=Limits(max_images=0)) as run:
        image, text = run.client(ChatClient), run.client(ChatClient)
        image.user("", picture(1))
        text.user("one", None)
        (refused, _), (_, first) = await asyncio.gather(
            image.post(image.body()), text.post(text.body())
        )
        text.user("two", None)
        _, second = await text.post(text.body())
    assert refused == 400
    assert run.session.counts["refused"] == 1
    assert first["id"] != second["id"]


async def test_response_limit_counts_what_a_request_adds() -> None:
    limits = Limits(max_response_tokens=120)
    async with serving(lambda _: "x" * 60, limits=limits) as run:
        client = run.client(ChatClient)
        await client.ask("one")
        client.user("word " * 20, None)
        await client.post(client.body())
    responses = [one for one in run.trajectory().segments if one.kind is not SegmentKind.PROMPT]
    assert sum(one.token_count for one in responses) <= 120


SCHEMA: dict[str, Any] = {"type": "json_schema", "schema": {"type": "object"}}
WISHES: list[tuple[type[Client], dict[str, Any], str]] = [
    (ChatClient, {"tool_choice": "required"}, "tool_choice"),
    (ChatClient, {"response_format": {"type": "json_schema"}}, "response_format"),
    (ResponsesClient, {"tool_choice": "required"}, "tool_choice"),
    (ResponsesClient, {"text": {"format": SCHEMA}}, "text.format"),
    (AnthropicClient, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (AnthropicClient, {"tool_choice": {"type": "tool", "name": "add"}}, "tool_choice"),
    (AnthropicClient, {"output_config": {"format": SCHEMA}}, "output_config.format"),
    (AnthropicClient, {"output_format": SCHEMA}, "output_config.format"),
]


@pytest.mark.parametrize(("kind", "extra", "name"), WISHES, ids=str)
async def test_wishes_that_are_not_enforced_are_recorded(
    kind: type[Client], extra: dict[str, Any], name: str
) -> None:
    async with serving() as run:
        await run.client(kind, tools=True, extra=extra).ask("one")
        await run.client(kind, tools=True).ask("two")
    trajectory = run.trajectory()
    assert [turn.info.get("unenforced") for turn in trajectory.turns] == [[name], None]
    assert aggregate([trajectory])[f"agent/unenforced/{name}"] == 1.0


async def test_key_of_an_episode_that_is_over_gets_403() -> None:
    async with serving() as run:
        client = run.client(ChatClient)
        async with run.gateway.serving(run.session):
            await client.ask("one")
        client.user("two", None)
        assert (await client.post(client.body()))[0] == 403


async def test_reward_counts_where_every_reply_was_lost() -> None:
    async with serving() as run:
        client = run.client(ChatClient)
        await client.ask("one")
        run.session.turns[0].state = TurnState.LOST
    trajectory = run.trajectory(reward=0.5)
    assert trajectory.reward == 0.5
    assert trajectory.trained_token_count == 0


async def test_fault_of_the_engine_reaches_the_agent_and_the_record() -> None:
    async with serving(faults=(0,)) as run:
        client = run.client(ChatClient)
        client.user("one", None)
        status, _ = await client.post(client.body())
        assert status == 503
        assert run.session.fault is not None
        status, _ = await client.post(client.body())
        assert status == 200
        assert run.session.fault is None
    run.trajectory()


async def test_stop_strings_end_a_reply_and_are_not_shown() -> None:
    async with serving(lambda _: "Thought. Observation:") as run:
        client = run.client(ChatClient, extra={"stop": ["Observation:"], "max_tokens": 100})
        said = await client.ask("one")
        assert said.text == "Thought. "
        await client.ask("two")
        assert run.engine.requests[0].sampling.stop == ("Observation:",)
    assert len(run.trajectory().sequences()) == 1


async def test_client_may_shorten_a_reply_but_not_sample_otherwise() -> None:
    sampling = Sampling(max_new_tokens=8, temperature=0.5)
    async with serving(sampling=sampling) as run:
        short = run.client(ChatClient, extra={"max_tokens": 3, "temperature": 2.0})
        assert (await short.ask("one")).finish == "length"
        long = run.client(ChatClient, extra={"max_tokens": 3000})
        await long.ask("two")
    seen = [request.sampling for request in run.engine.requests]
    assert [one.max_new_tokens for one in seen] == [3, 8]
    assert {one.temperature for one in seen} == {0.5}


async def test_logprobs_come_from_the_record() -> None:
    async with serving(lambda _: "ab") as run:
        client = run.client(ChatClient, extra={"logprobs": True})
        client.user("one", None)
        _, answer = await client.post(client.body())
    (segment,) = [one for one in run.trajectory().segments if one.kind is SegmentKind.MODEL]
    content = answer["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in content] == list(segment.logprobs)


class Ranking(OddEngine):
    """Reports the neighbours of each sampled token as the most probable ones."""

    max_top_logprobs = 5

    async def generate(self, request: GenerateRequest) -> Generation:
        found = await super().generate(request)
        most = range(request.top_logprobs)
        ranked = [[(token + n, -1.0 - n) for n in most] for token in found.token_ids]
        return replace(found, top_logprobs=ranked)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        (ChatClient, {"logprobs": True}),
        (ResponsesClient, {"include": ["message.output_text.logprobs"]}),
    ],
)
async def test_most_probable_tokens_come_from_the_engine(
    kind: type[Client], extra: dict[str, Any], stream: bool
) -> None:
    from fakes.codecs import vision_codec

    codec = vision_codec()
    engine = Ranking(codec, lambda _: "ab")
    async with serving(engine=engine, codec=codec) as run:
        client = run.client(kind, stream=stream, extra={**extra, "top_logprobs": 2})
        client.user("one", None)
        status, answer = await client.post(client.body())
        client.extra["top_logprobs"] = 6
        refused, why = await client.post(client.body())
    (segment,) = [one for one in run.trajectory().segments if one.kind is SegmentKind.MODEL]
    assert status == 200
    if kind is ChatClient:
        content = (answer[0] if stream else answer)["choices"][0]["logprobs"]["content"]
    else:
        whole = answer[-1]["response"] if stream else answer
        content = whole["output"][0]["content"][0]["logprobs"]
    shown = [[(one["token"], one["logprob"]) for one in row["top_logprobs"]] for row in content]
    assert shown == [
        [(codec.decode_all([token + n]), -1.0 - n) for n in range(2)] for token in segment.wire_ids
    ]
    assert refused == 400
    assert "top_logprobs can be at most 5 with engine 'odd', got 6" in why["error"]["message"]


async def test_usage_counts_the_expanded_prompt() -> None:
    async with serving() as run:
        for kind in CLIENTS:
            said = await run.client(kind).ask("look", picture(1))
            used = said.usage.get("prompt_tokens", said.usage.get("input_tokens"))
            assert used == run.engine.requests[-1].train_length


@pytest.mark.parametrize(
    "reply", ["<think>a b\nc</think>\n\nyes", "é" * 99 + "</think>no", "<think>open", "none"]
)
async def test_usage_counts_the_tokens_of_thoughts(reply: str) -> None:
    end = reply.find("</think>") + len("</think>")
    thought = reply if reply.endswith("open") else reply[: end if reply.startswith("<") else 0]
    details = {
        ChatClient: ("completion_tokens_details", "reasoning_tokens"),
        ResponsesClient: ("output_tokens_details", "reasoning_tokens"),
        AnthropicClient: ("output_tokens_details", "thinking_tokens"),
    }
    async with serving(lambda _: reply) as run:
        encode = run.engine.codec.encode_reply
        expected = sum(len(encode(letter)) - 1 for letter in thought)
        for kind, (name, key) in details.items():
            said = await run.client(kind).ask("one")
            assert said.usage[name] == {key: expected}
    run.trajectory()


async def test_models_and_token_counts_are_answered_and_not_recorded() -> None:
    async with serving() as run, aiohttp.ClientSession() as http:
        headers = {"x-api-key": run.session.key}
        async with http.get(f"{run.gateway.url}/v1/models", headers=headers) as answer:
            assert (await answer.json())["data"]
        body = {"messages": [{"role": "user", "content": "one"}], "model": "m"}
        url = f"{run.gateway.url}/v1/messages/count_tokens"
        async with http.post(url, json=body, headers=headers) as answer:
            counted = (await answer.json())["input_tokens"]
        await run.client(AnthropicClient).ask("one")
    assert counted == run.engine.requests[0].train_length
    assert len(run.trajectory().turns) == 1
