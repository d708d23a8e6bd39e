"""Property: however clients rewrite histories, no reply is spliced wrongly or trained twice."""

import json
import random
from collections import Counter
from typing import Any

import aiohttp
from fakes.agent_clients import CLIENTS, AnthropicClient, Client, Said
from fakes.codecs import vision_codec
from fakes.gateway_campaign import run_conversation
from fakes.gateway_run import Run, call_once, serving
from fakes.junk_bodies import OPTIONS, mutated
from fakes.trajectories import picture
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envkit.threads.pool import WorkerPool
from envkit_gateway import Train


def rewritten(said: Said, rng: random.Random) -> Said:
    """Return a reply as some client may write it back; some changes alter its meaning."""
    text, calls, thinking = said.text, [dict(one) for one in said.calls], said.thinking
    if rng.random() < 0.5:
        text = text.strip()
    if rng.random() < 0.5:
        thinking = ""
    if rng.random() < 0.1:
        thinking = f"{thinking} edited"
    if rng.random() < 0.1:
        text = f"{text} edited"
    for one in calls:
        if rng.random() < 0.5:
            order = {"sort_keys": True} if rng.random() < 0.5 else {"separators": (",", ":")}
            one["arguments"] = json.dumps(json.loads(one["arguments"]), **order)  # type: ignore[arg-type]
    if calls and rng.random() < 0.1:
        calls[0]["arguments"] = json.dumps({"a": 5})
    return Said(text, calls, thinking)


async def converse(client: Client, rng: random.Random, steps: int) -> None:
    """Ask, answer calls, edit and truncate the history."""
    forks: list[list[dict[str, Any]]] = []
    for _ in range(steps):
        image = picture(rng.randrange(5)) if rng.random() < 0.3 else None
        said = await client.ask(rng.choice(["one", "two", " three \n"]), image)
        while said.calls:
            for call in said.calls:
                shown = picture(rng.randrange(5)) if rng.random() < 0.2 else None
                client.result(call, rng.choice(["3", " 3", "3\n"]), shown)
            if rng.random() < 0.1:
                break
            said = await client.ask()
        forks.append(json.loads(json.dumps(client.items)))
        if rng.random() < 0.3:
            client.items = rng.choice(forks)
        if rng.random() < 0.1:
            client.system += "!"


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
@example(seed=434141)  # asks again for a reply, whose first sample is then not trained
async def test_random_conversations_are_exact(seed: int) -> None:
    rng = random.Random(seed)

    def write(context: str) -> str:
        if rng.random() < 0.2:
            return rng.choice(["", "   ", "<tool_call>{", "x</think>y", "\u00e9 <think>"])
        return call_once(context)

    def echo(said: Said) -> Said:
        return rewritten(said, rng)

    async with serving(write) as run:
        for _ in range(2):
            kind = rng.choice(CLIENTS)
            client: Client = run.client(
                kind,
                stream=rng.random() < 0.5,
                tools=rng.random() < 0.7,
                echo=echo,
            )
            await converse(client, rng, 4)
    trajectory = run.trajectory(train=Train.ALL)

    assert set(trajectory.metadata["agent"]["untrained"]) <= {"superseded"}


async def test_rewritten_histories_continue_exactly_if_they_mean_the_same() -> None:
    """A part of `scripts/campaigns/gateway.py`."""
    pool, counts = WorkerPool(), Counter[str]()
    try:
        for seed in range(6):
            await run_conversation(vision_codec(), seed, pool, counts)
    finally:
        pool.close()
    assert counts["requests"] == 96


async def _bodies(run: Run) -> list[tuple[type[Client], dict[str, Any]]]:
    """Return a valid body of each dialect: images, a call, its result, and most options."""
    found: list[tuple[type[Client], dict[str, Any]]] = []
    for kind in CLIENTS:
        client: Client = run.client(kind, tools=True, system="Be brief.")
        said = await client.ask("look", picture(1))
        client.result(said.calls[0], "seen", picture(2))
        await client.ask()
        client.user("go on", None)
        found.append((kind, {**client.body(), **OPTIONS[kind]}))
    return found


def _check_answer(kind: type[Client], status: int, text: str) -> None:
    """Check that a request was answered, or refused as the dialect's clients expect."""
    if status == 200:
        assert '"error": {' not in text
        assert "event: error" not in text
        return
    assert status == 400, text
    answer = json.loads(text)
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]
    assert (answer.get("type") == "error") == (kind is AnthropicClient)


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
async def test_wrong_bodies_are_refused_and_leave_a_sound_record(seed: int) -> None:
    rng = random.Random(seed)
    statuses = Counter[int]()
    async with serving() as run, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {run.session.key}"}
        bodies = await _bodies(run)
        for _ in range(60):
            kind, body = rng.choice(bodies)
            body = mutated(body, rng) | ({"stream": True} if rng.random() < 0.3 else {})
            data = json.dumps(body).encode()
            async with http.post(run.gateway.url + kind.path, data=data, headers=headers) as got:
                _check_answer(kind, got.status, await got.text())
                statuses[got.status] += 1
        assert run.session.fault is None
    run.trajectory(train=Train.ALL)

    assert statuses[200]
    assert statuses[400]
