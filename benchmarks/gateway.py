"""Measure what the gateway adds to a turn: CPU time per request of an agent's long conversation.

A client in its own process holds conversations of many turns over chat completions and sends its
whole history each time. An engine that answers at once samples the replies. The same conversations
are played by the rollout loop. CPU time of this process, divided by turns; the difference is the
gateway: HTTP, JSON, matching.

Another client begins with 201 messages. It either continues them, or edits one in the middle before
each request, so that each request starts a sequence. The last figure is 128 sessions of 20 turns at
once. `--before` measures another checkout in turn with this one.

    git worktree add --detach ../before d1a091a3
    python benchmarks/gateway.py --before ../before [--json FILE]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from harness import run

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


async def seconds_per_turn(
    agent: object, turns: int, episodes: int, *, at_once: int = 1, sequences: int = 1
) -> float:
    """Return this process's CPU seconds per turn."""
    codec = load_codec(builtin_model_dir("builtin-text"))
    config = RolloutConfig.from_mapping({"agent": agent, "sanity": "off"})
    player = Player(ScriptedEngine(codec, say), codec, config)
    await player.play(lambda: Corridor(max_turns=turns), EpisodeSpec(seed=0))
    started = time.process_time()
    places = asyncio.Semaphore(at_once)

    async def play(seed: int) -> None:
        async with places:
            (found,) = await player.play(lambda: Corridor(max_turns=turns), EpisodeSpec(seed=seed))
        assert len(found.turns) == turns, found.fault
        assert len(found.sequences()) == sequences

    await asyncio.gather(*map(play, range(episodes)))
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


async def measure_others() -> dict[str, float]:
    """Return CPU milliseconds per request of long histories, and of many sessions."""
    long = [sys.executable, "-ISc", LONG, "50", ANSWER]
    continued = await seconds_per_turn({"command": [*long, "continue"]}, 50, 4)
    edited = await seconds_per_turn({"command": [*long, "edit"]}, 50, 4, sequences=50)
    held = {"command": [sys.executable, "-ISc", CLIENT, "20", ANSWER]}
    many = await seconds_per_turn(held, 20, 128, at_once=128)
    return {
        "continued_from_201_ms": 1000 * continued,
        "edited_at_201_ms": 1000 * edited,
        "sessions_128_ms": 1000 * many,
    }


def others_of(checkout: Path) -> dict[str, float]:
    """Return the figures of `measure_others` for a checkout, with this file."""
    folders = os.pathsep.join(str(checkout / name) for name in ("", "envs", "adapters"))
    done = subprocess.run(
        [sys.executable, __file__, "--others"],
        env={**os.environ, "PYTHONPATH": folders},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def figures_of(episodes: int, before: Path | None, others: bool) -> dict[str, Any]:
    """Return the figures of conversations of three lengths, and the others of each checkout."""
    if others:  # a process of `others_of`
        print(json.dumps(asyncio.run(measure_others())))
        raise SystemExit
    found = [asyncio.run(measure(turns, episodes)) for turns in (5, 25, 50)]
    for one in found:
        print(
            f"up to {one['messages']:3} messages: {one['gateway_ms']:.2f} ms per turn, "
            f"{one['loop_ms']:.2f} by the loop, {one['added_ms']:.2f} added"
        )
    checkouts = {"before": before, "now": Path(__file__).parents[1]}
    compared = {name: others_of(path) for name, path in checkouts.items() if path is not None}
    return {"conversations": found, "others": compared}


if __name__ == "__main__":
    run(
        figures_of,
        episodes=20,
        before={"type": Path, "help": "a checkout to compare with"},
        others={"action": "store_true", "help": argparse.SUPPRESS},
    )
