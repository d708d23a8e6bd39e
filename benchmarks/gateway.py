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

from harness import run, size
from http_turn import Corridor
from loop import ANSWER, reply

from envkit.rollout import EpisodeSpec, Player, RolloutConfig, ScriptedEngine
from envkit.tokens import ChatCodec, load_codec
from envkit_transformers import builtin_model_dir

CLIENT = """
import http.client, json, os, sys
task = json.load(open("task.json"))
url = os.environ["OPENAI_BASE_URL"].removeprefix("http://").removesuffix("/v1")
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
connection = http.client.HTTPConnection(url)
messages = [{"role": "user", "content": task["prompt"]}]
for turn in range(int(sys.argv[1])):
    body = json.dumps({"model": "m", "messages": messages})
    connection.request("POST", "/v1/chat/completions", body, head)
    reply = json.load(connection.getresponse())["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": sys.argv[2]}]
print("done")
"""

LONG = """
import http.client, json, os, sys
url = os.environ["OPENAI_BASE_URL"].removeprefix("http://").removesuffix("/v1")
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
connection = http.client.HTTPConnection(url)
said = [{"role": "assistant", "content": "I open the door and look behind it."}]
messages = [{"role": "user", "content": sys.argv[2]}]
for turn in range(100):
    messages += said + [{"role": "user", "content": f"{turn}. {sys.argv[2]}"}]
for turn in range(int(sys.argv[1])):
    if sys.argv[3] == "edit":
        messages[100]["content"] = f"Note {turn}: {sys.argv[2]}"
    connection.request("POST", "/v1/chat/completions",
                       json.dumps({"model": "m", "messages": messages}), head)
    reply = json.load(connection.getresponse())["choices"][0]["message"]["content"]
    if sys.argv[3] == "continue":
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "Next."}]
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


async def measure(turns: int, episodes: int) -> dict[str, float]:
    """Return CPU milliseconds per turn through the loop and through the gateway."""
    command = [sys.executable, "-ISc", CLIENT, str(turns), ANSWER]
    loop = await seconds_per_turn(None, turns, episodes)
    gateway = await seconds_per_turn({"command": command}, turns, episodes)
    return {
        "messages": 2 * turns - 1,
        "loop_ms": 1000 * loop,
        "gateway_ms": 1000 * gateway,
        "added_ms": 1000 * (gateway - loop),
    }


async def measure_others(turns: int, episodes: int, sessions: int) -> dict[str, float]:
    """Return CPU milliseconds per request of long histories, and of many sessions."""
    long = [sys.executable, "-ISc", LONG, str(turns), ANSWER]
    continued = await seconds_per_turn({"command": [*long, "continue"]}, turns, episodes)
    edited = await seconds_per_turn({"command": [*long, "edit"]}, turns, episodes, sequences=turns)
    held = {"command": [sys.executable, "-ISc", CLIENT, str(turns * 2 // 5), ANSWER]}
    many = await seconds_per_turn(held, turns * 2 // 5, sessions, at_once=sessions)
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
        episodes=size(20, 1),
        turns=size(50, 4, "turns of a long conversation"),
        sessions=size(128, 4, "sessions at once"),
    )
