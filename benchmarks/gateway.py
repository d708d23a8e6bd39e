"""Measure what the gateway adds to a turn: CPU time per request of an agent's long conversation.

A client in its own process holds conversations of many turns over chat completions and sends its
whole history each time. An engine that answers at once samples the replies. The same conversations
are played by the rollout loop. CPU time of this process, divided by turns; the difference is the
gateway: HTTP, JSON, matching.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.rollout import EpisodeSpec, Player, RolloutConfig, ScriptedEngine
from envkit.tasks import Task
from envkit.tokens import load_codec
from envkit_transformers import builtin_model_dir

ANSWER = "The search found nothing new, so try another door of the long corridor. " * 3

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


class Corridor(Env):
    """Says something of constant length after each reply."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)

    def on_reset(self, task: Task) -> Turn:
        """Say where it starts."""
        return Turn("You stand in a corridor.")

    def on_turn(self, response_text: str) -> Turn:
        """Say something of constant length."""
        return Turn(ANSWER)


def say(context: PolicyContext) -> str:
    """Reply with a sentence of constant length."""
    return f"I open door {context.turn} and look behind it, then I come back to the corridor."


async def seconds_per_turn(agent: object, turns: int, episodes: int) -> float:
    """Return this process's CPU seconds per turn."""
    codec = load_codec(builtin_model_dir("builtin-text"))
    config = RolloutConfig.from_mapping({"agent": agent, "sanity": "off"})
    player = Player(ScriptedEngine(codec, say), codec, config)
    await player.play(lambda: Corridor(max_turns=turns), EpisodeSpec(seed=0))
    started = time.process_time()
    for seed in range(episodes):
        (found,) = await player.play(lambda: Corridor(max_turns=turns), EpisodeSpec(seed=seed))
        assert len(found.turns) == turns, found.fault
        assert len(found.sequences()) == 1
    used = time.process_time() - started
    await player.aclose()
    return used / (turns * episodes)


async def measure(turns: int, episodes: int) -> dict[str, Any]:
    """Return CPU milliseconds per turn through the loop and through the gateway."""
    command = [sys.executable, "-ISc", CLIENT, str(turns), ANSWER]
    loop = await seconds_per_turn(None, turns, episodes)
    gateway = await seconds_per_turn({"command": command}, turns, episodes)
    return {
        "turns": turns,
        "messages": 2 * turns - 1,
        "loop_ms": 1000 * loop,
        "gateway_ms": 1000 * gateway,
        "added_ms": 1000 * (gateway - loop),
    }


def main() -> None:
    """Print and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    found = [asyncio.run(measure(turns, options.episodes)) for turns in (5, 25, 50)]
    for one in found:
        print(
            f"up to {one['messages']:3} messages: {one['gateway_ms']:.2f} ms per turn, "
            f"{one['loop_ms']:.2f} by the loop, {one['added_ms']:.2f} added"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
