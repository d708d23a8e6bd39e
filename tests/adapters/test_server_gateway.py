"""The gateway in front of a real server: what agents get is what the server sampled.

Run by `make contract-sglang` and `make contract-vllm`, which start the servers.
"""

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from fakes.agent_clients import CLIENTS, AnthropicClient, ChatClient, Client
from fakes.gateway_run import Run, serving
from fakes.real_servers import KINDS, PICTURES, until_idle

from envkit import make
from envkit.rollout import EpisodeSpec, Player, RolloutConfig
from envkit.rollout.engine import GenerateRequest, Generation, Sampling
from envkit.rollout.token_stream import Report
from envkit.tokens import ChatCodec, vocabulary_size_of
from envkit.trajectory import SegmentKind, Trajectory, check_trajectory
from envkit_remote import RemoteEngine

LOGPROB_TOLERANCE = 5e-3
"""Scoring does not exclude the banned ids, which takes 1.2e-3 from even odds."""
CALL = r'<tool_call>\n\{"name": "add", "arguments": \{"b":  [1-9]\.0, "a": [1-9]\}\}\n</tool_call>'
"""Matched by every reply of a test with tools, as the models are not trained."""
BACKGROUND = "You are an assistant who describes pictures. " * 40
"""Fills a few blocks of any prefix cache."""


class Watched:
    """A real engine; remembers the ids of each request and reply."""

    def __init__(self, engine: RemoteEngine) -> None:
        self.inner = engine
        self.name, self.logprob_kind = engine.name, engine.logprob_kind
        self.seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.asked = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self._noted(request, self.inner.generate(request))

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        return await self._noted(request, self.inner.stream(request, report))

    async def _noted(
        self, request: GenerateRequest, sampling: Coroutine[Any, Any, Generation]
    ) -> Generation:
        self.asked += 1
        ids = tuple(request.wire_ids)
        generation = await sampling
        self.seen.append((ids, tuple(generation.token_ids)))
        return generation

    async def abort(self, request_id: str) -> None:
        await self.inner.abort(request_id)

    async def end_session(self, session_id: str) -> None:
        await self.inner.end_session(session_id)

    async def aclose(self) -> None: ...


@pytest.fixture
def plain(codec: ChatCodec, server_model: str) -> Sampling:
    """Sampling without the ids beyond the tokenizer's, which an untrained model samples as well."""
    banned = range(codec.vocabulary_size, vocabulary_size_of(server_model) or 0)
    return Sampling(max_new_tokens=12, banned_ids=tuple(banned))


def constrained(kind: str) -> Sampling:
    """Sample tool calls, in whatever tokens the model likes."""
    extras = {"regex": CALL} if kind == "sglang" else {"structured_outputs": {"regex": CALL}}
    return Sampling(max_new_tokens=200, extras=extras)


async def check_scores(trajectory: Trajectory, engine: RemoteEngine) -> None:
    """Compare the recorded log-probabilities with those of the server over the whole text."""
    for sequence in trajectory.sequences():
        segments = sequence.segments
        wire = [one for segment in segments for one in segment.wire_ids]
        images = [image for segment in segments for image in segment.images]
        scored = await engine.score(wire, images)
        start = 0
        for segment in segments:
            end = start + segment.token_count
            if segment.kind is SegmentKind.MODEL:
                recorded = list(segment.logprobs)
                assert scored[start:end] == pytest.approx(recorded, abs=LOGPROB_TOLERANCE)
            start = end


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_conversation_with_images_is_one_exact_and_cached_sequence(
    kind: type[Client],
    stream: bool,
    codec: ChatCodec,
    engine: RemoteEngine,
    server_kind: str,
    plain: Sampling,
) -> None:
    async with serving(codec=codec, engine=Watched(engine), sampling=plain) as run:
        client: Client = run.client(kind, stream=stream, system=BACKGROUND)
        for turn, picture in enumerate(PICTURES):
            said = await client.ask(f"Picture {turn}, what is it?", picture)
            assert said.text
    trajectory = run.trajectory()

    (sequence,) = trajectory.sequences()
    assert [image.sha256 for image in trajectory.images()] == [one.sha256 for one in PICTURES]
    block = KINDS[server_kind].cache_block
    lengths, cached = [], []
    for turn in trajectory.turns:
        lengths.append(turn.prompt_tokens)
        cached.append(turn.cached_tokens)
    for earlier, found in zip(lengths, cached[1:], strict=False):
        assert found >= earlier // block * block > 0
    assert sum(one.token_count for one in sequence.segments) > lengths[-1]


async def test_recorded_logprobs_are_those_of_the_whole_text(
    codec: ChatCodec, engine: RemoteEngine, plain: Sampling
) -> None:
    async with serving(codec=codec, engine=Watched(engine), sampling=plain) as run:
        client = run.client(ChatClient)
        await client.ask("What is it?", PICTURES[0])
        start = list(client.items)
        await client.ask("And now?", PICTURES[1])
        client.items = [*start]
        await client.ask("Another question.")
    trajectory = run.trajectory()

    assert [one.reason for one in trajectory.sequences()] == [None, "branch"]
    await check_scores(trajectory, engine)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_calls_come_back_in_any_words_and_keep_the_sampled_ids(
    kind: type[Client], codec: ChatCodec, engine: RemoteEngine, server_kind: str
) -> None:
    watched = Watched(engine)
    async with serving(codec=codec, engine=watched, sampling=constrained(server_kind)) as run:
        client: Client = run.client(kind, tools=True)
        said = await client.ask("Add.")
        for _ in range(2):
            (call,) = said.calls
            assert call["name"] == "add"
            client.result(call, "3", PICTURES[2])
            said = await client.ask()
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
    assert len(trajectory.images()) == 2
    rewritten = [codec.encode_reply(codec.decode(ids)) for _, ids in watched.seen]
    assert [tuple(ids) for ids in rewritten] != [ids for _, ids in watched.seen]  # odd ids are kept


async def test_reply_of_a_client_that_left_is_sampled_once(
    codec: ChatCodec, engine: RemoteEngine, server_kind: str, server_url: str
) -> None:
    watched = Watched(engine)
    bias = {"logit_bias": {"700": 1000.0}, "ignore_eos": True}
    sampling = Sampling(max_new_tokens=400, extras=bias)
    async with serving(codec=codec, engine=watched, sampling=sampling) as run:
        client = run.client(ChatClient)
        client.user("Tell me more.", None)
        cut = asyncio.create_task(client.post(client.body()))
        while not watched.asked:
            await asyncio.sleep(0.01)
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        await asyncio.sleep(0.05)
        status, answer = await client.post(client.body())
    trajectory = run.trajectory()

    assert (status, watched.asked, len(trajectory.turns)) == (200, 1, 1)
    assert answer["usage"]["completion_tokens"] == 400
    await until_idle(server_kind, server_url)


async def test_end_of_an_episode_frees_the_server(
    codec: ChatCodec, engine: RemoteEngine, server_kind: str, server_url: str
) -> None:
    watched = Watched(engine)
    sampling = Sampling(max_new_tokens=6000, extras={"ignore_eos": True})
    async with serving(codec=codec, engine=watched, sampling=sampling) as run:
        client = run.client(AnthropicClient)
        client.user("Tell me more.", None)
        asking = asyncio.create_task(client.post(client.body()))
        while not watched.asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
    assert (await asking)[0] in (403, 503)
    assert run.session.turns == []
    await until_idle(server_kind, server_url)


async def test_sessions_in_parallel_do_not_mix(
    codec: ChatCodec, engine: RemoteEngine, plain: Sampling
) -> None:
    async def hold(number: int) -> Run:
        sampling = replace(plain, seed=number)
        async with serving(codec=codec, engine=Watched(engine), sampling=sampling) as run:
            client = run.client(CLIENTS[number % 3], stream=number % 2 == 0)
            for turn in range(3):
                await client.ask(f"Question {number}.{turn}", PICTURES[turn] if turn else None)
        return run

    runs = await asyncio.gather(*map(hold, range(12)))
    for run in runs:
        assert len(run.trajectory().sequences()) == 1
    assert sum(run.engine.asked for run in runs) == 36


OPENAI = """
import openai
client = openai.OpenAI()
task = open("prompt.txt").read()
said = [{"role": "user", "content": task}]
chunks = client.chat.completions.create(model="m", messages=said, stream=True)
text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
said += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
whole = client.chat.completions.create(model="m", messages=said, logprobs=True)
assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
asked = [{"role": "user", "content": task}]
answer = client.responses.create(model="m", input=asked)
asked += [*answer.output, {"role": "user", "content": "Go on."}]
*_, last = client.responses.create(model="m", input=asked, stream=True)
print(last.response.output_text)
"""
ANTHROPIC = """
import anthropic
client = anthropic.Anthropic()
said = [{"role": "user", "content": open("prompt.txt").read()}]
answer = client.messages.create(model="m", max_tokens=50, messages=said)
said += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "Go on."}]
with client.messages.stream(model="m", max_tokens=50, messages=said) as events:
    print(events.get_final_text())
"""


@pytest.mark.parametrize(
    ("code", "turns"), [(OPENAI, 4), (ANTHROPIC, 2)], ids=["openai", "anthropic"]
)
async def test_command_with_a_real_client_is_recorded_exactly(
    code: str,
    turns: int,
    codec: ChatCodec,
    engine: RemoteEngine,
    server_kind: str,
    plain: Sampling,
) -> None:
    if server_kind == "sglang" and code is ANTHROPIC:
        pytest.skip("SGLang's environment has no package anthropic")
    python = os.environ[f"ENVKIT_{server_kind.upper()}_PYTHON"]
    agent = {"command": [python, "-c", code], "timeout_s": 120}
    sampling = {"max_new_tokens": 8, "banned_ids": plain.banned_ids}
    config = RolloutConfig.from_mapping({"agent": agent, "sampling": sampling})
    player = Player(engine, codec, config)
    (found,) = await player.play(lambda: make("canary-v0"), EpisodeSpec(seed=3))
    await player.aclose()

    assert found.fault is None, found.fault
    assert found.turns[-1].info["agent_output"]["exit_status"] == 0, found.turns[-1].info
    assert check_trajectory(found) == ()
    assert len(found.turns) == turns
    assert len(found.sequences()) == turns // 2
    await check_scores(found, engine)
