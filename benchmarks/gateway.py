"""Measure what the gateway adds to a turn: CPU time per request of an agent's long conversation.

A client in its own process holds conversations of many turns over chat completions and sends its
whole history each time. An engine that answers at once samples the replies. The same conversations
are played by the rollout loop. CPU time of this process, divided by turns; the difference is the
gateway: HTTP, JSON, matching.

Another client begins with 201 messages. It either continues them, or edits one in the middle before
each request, so that each request starts a sequence. The last figure is 128 sessions of 20 turns at
once.
"""

import asyncio
import sys
import time
from functools import cache
from typing import Any

from harness import run, sized
from http_turn import Corridor
from loop import ANSWER, reply

from envkit.rollout import EpisodeSpec, Player, RolloutConfig, ScriptedEngine
from envkit.tokens import ChatCodec, load_codec
from envkit_transformers import builtin_model_dir

CLIENT = """
import http.client, json, os, sys
turns, text, kind = int(sys.argv[1]), *sys.argv[2:]
url = os.environ["OPENAI_BASE_URL"].removeprefix("http://").removesuffix("/v1")
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
connection = http.client.HTTPConnection(url)
messages = [{"role": "user", "content": json.load(open("task.json"))["prompt"]}]
for turn in range(0 if kind == "short" else 100):
    messages += [{"role": "assistant", "content": "I open the door and look behind it."},
                 {"role": "user", "content": f"{turn}. {text}"}]
for turn in range(turns):
    if kind == "edit":
        messages[100]["content"] = f"Note {turn}: {text}"
    body = json.dumps({"model": "m", "messages": messages})
    connection.request("POST", "/v1/chat/completions", body, head)
    reply = json.load(connection.getresponse())["choices"][0]["message"]["content"]
    if kind != "edit":
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": text}]
print("done")
"""


@cache
def text_codec() -> ChatCodec:
    """Return the codec of all conversations."""
    return load_codec(builtin_model_dir("builtin-text"))


async def seconds_per_turn(
    agent: object, turns: int, episodes: int, *, at_once: int = 1, sequences: int = 1
) -> float:
    """Return this process's CPU seconds per turn."""
    codec = text_codec()
    config = RolloutConfig.from_mapping({"agent": agent, "sanity": "off"})
    player = Player(ScriptedEngine(codec, reply), codec, config)
    await player.play(lambda: Corridor(opening=0, max_turns=turns), EpisodeSpec(seed=0))
    started = time.process_time()
    places = asyncio.Semaphore(at_once)

    async def play(seed: int) -> None:
        async with places:
            (found,) = await player.play(
                lambda: Corridor(opening=0, max_turns=turns), EpisodeSpec(seed=seed)
            )
        assert len(found.turns) == turns, found.fault
        assert len(found.sequences()) == sequences

    await asyncio.gather(*map(play, range(episodes)))
    used = time.process_time() - started
    await player.aclose()
    return used / (turns * episodes)


def agent(turns: int, kind: str) -> dict[str, list[str]]:
    """Return the client as an agent: "short" at first, or "continue" or "edit" 201 messages."""
    return {"command": [sys.executable, "-ISc", CLIENT, str(turns), ANSWER, kind]}


async def measure(turns: int, episodes: int) -> dict[str, float]:
    """Return CPU milliseconds per turn through the loop and through the gateway."""
    loop = await seconds_per_turn(None, turns, episodes)
    gateway = await seconds_per_turn(agent(turns, "short"), turns, episodes)
    return {
        "messages": 2 * turns - 1,
        "loop_ms": 1000 * loop,
        "gateway_ms": 1000 * gateway,
        "added_ms": 1000 * (gateway - loop),
    }


async def measure_others(turns: int, episodes: int, sessions: int) -> dict[str, float]:
    """Return CPU milliseconds per request of long histories, and of many sessions."""
    continued = await seconds_per_turn(agent(turns, "continue"), turns, episodes)
    edited = await seconds_per_turn(agent(turns, "edit"), turns, episodes, sequences=turns)
    few = turns * 2 // 5
    many = await seconds_per_turn(agent(few, "short"), few, sessions, at_once=sessions)
    return {
        "continued_from_201_ms": 1000 * continued,
        "edited_at_201_ms": 1000 * edited,
        "many_sessions_ms": 1000 * many,
    }


def figures_of(episodes: int, turns: int, sessions: int) -> dict[str, Any]:
    """Return the figures of conversations of three lengths, of long ones, and of many."""
    lengths = {"short": max(1, turns // 10), "middle": turns // 2, "long": turns}
    found = {name: asyncio.run(measure(count, episodes)) for name, count in lengths.items()}
    return {**found, **asyncio.run(measure_others(turns, min(4, episodes), sessions))}


if __name__ == "__main__":
    run(
        figures_of,
        episodes=sized(20, 1),
        turns=sized(50, 4, "turns of a long conversation"),
        sessions=sized(128, 4, "sessions at once"),
    )
