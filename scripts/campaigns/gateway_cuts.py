"""Cut a tenth of an agent's requests and retry them; no reply may be lost or sampled twice.

Agents hold conversations over chat completions, half of them streamed. A cut closes the connection
at a random time, and the retry has the header that the clients of OpenAI and Anthropic send. Or it
comes while the engine still samples, and the retry has the same bytes and no header.

    python scripts/campaigns/gateway_cuts.py --requests 100000 --sessions 1024
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from itertools import count
from typing import ClassVar

import aiohttp

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.messages import text_of
from envkit.rollout import EpisodeSpec, Player, RolloutConfig, ScriptedEngine
from envkit.rollout.engine import GenerateRequest, Generation
from envkit.tasks import Task
from envkit.tokens import ChatCodec, load_codec
from envkit.trajectory import StopReason, Trajectory, check_trajectory
from envkit_gateway import AgentTask
from envkit_transformers import builtin_model_dir

LATENCY_S = 0.02
"""Longest time that the engine takes for a reply."""
counts = Counter[str]()
received = defaultdict[int, list[str]](list)
"""Replies that each agent has read to their end, by its episode's number."""


class Room(Env):
    """Shows the number of the episode."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)

    def __init__(self, number: int) -> None:
        """Create the environment."""
        super().__init__(max_turns=1)
        self.number = number

    def on_reset(self, task: Task) -> Turn:
        """Return the number."""
        return Turn(str(self.number))

    def on_turn(self, response_text: str) -> Turn:
        """End the episode."""
        return Turn("", reward=1.0, done=True)


class HeldEngine(ScriptedEngine):
    """Samples a different text each time; an agent can hold its own request until it has cut it."""

    def __init__(self, codec: ChatCodec) -> None:
        """Create the engine."""
        numbers = count()
        super().__init__(codec, lambda _: f"sample {next(numbers)}", latency=self._seconds)
        self.held: dict[int, asyncio.Event] = {}
        self.reached: dict[int, asyncio.Event] = {}

    async def generate(self, request: GenerateRequest) -> Generation:
        """Count the call, and wait if the agent is about to cut its request."""
        counts["sampled"] += 1
        assert request.context is not None
        number = episode_of(request.context)
        if number in self.held:
            self.reached[number].set()
            await self.held[number].wait()
        return await super().generate(request)

    def _seconds(self, _: GenerateRequest) -> float:
        return random.random() * LATENCY_S


def episode_of(context: PolicyContext) -> int:
    """Return the number of an episode, from its first observation."""
    return int(text_of(context.messages[0]))


class Agent:
    """Holds a conversation and cuts some of its requests."""

    def __init__(self, engine: HeldEngine, http: aiohttp.ClientSession, turns: int) -> None:
        """Create an agent for any number of episodes."""
        self._engine, self._http, self._turns = engine, http, turns
        self._seconds = LATENCY_S
        """Time of the last reply that was read to its end."""

    async def play(self, task: AgentTask) -> str:
        """Play one episode."""
        number = int(task.prompt)
        rng = random.Random(number)
        messages = [{"role": "user", "content": task.prompt}]
        for turn in range(self._turns):
            body = {"model": "m", "messages": messages, "stream": rng.random() < 0.5}
            send = f"{task.base_url}/chat/completions", json.dumps(body)
            head = {"authorization": f"Bearer {task.api_key}"}
            retry = dict(head)
            if rng.random() < 0.1:
                if rng.random() < 0.5:
                    retry["x-stainless-retry-count"] = "1"
                    await self._cut_at_random(send, head, rng)
                else:
                    await self._cut_while_sampling(send, head, number, rng)
            reply = await self._read(send, retry)
            received[number].append(reply)
            messages += [
                {"role": "assistant", "content": reply},
                {"role": "user", "content": f"go on to {turn}"},
            ]
        return "done"

    async def _cut_at_random(
        self, send: tuple[str, str], head: dict[str, str], rng: random.Random
    ) -> None:
        """Close the connection before, during or shortly after the reply."""
        counts["cut at random"] += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.random() * 1.5 * self._seconds):
                await self._read(send, head)
                counts["cut after the whole reply"] += 1

    async def _cut_while_sampling(
        self, send: tuple[str, str], head: dict[str, str], number: int, rng: random.Random
    ) -> None:
        """Close the connection after the engine got the request and before it answers."""
        counts["cut while sampling"] += 1
        self._engine.reached[number] = asyncio.Event()
        self._engine.held[number] = asyncio.Event()
        request = asyncio.create_task(self._read(send, head))
        await self._engine.reached[number].wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        asyncio.get_running_loop().call_later(
            rng.random() * LATENCY_S, self._engine.held.pop(number).set
        )

    async def _read(self, send: tuple[str, str], head: dict[str, str]) -> str:
        """Send a request and return the reply's text."""
        started = time.monotonic()
        async with self._http.post(send[0], data=send[1], headers=head) as response:
            text = await response.text()
        self._seconds = time.monotonic() - started
        counts["requests"] += 1
        assert response.status == 200, text
        if not text.startswith("data:"):
            return json.loads(text)["choices"][0]["message"]["content"]
        lines = [one[6:] for one in text.splitlines() if one.startswith("data: {")]
        deltas = [json.loads(one)["choices"] for one in lines]
        return "".join(one[0]["delta"].get("content") or "" for one in deltas if one)


def check(trajectory: Trajectory, number: int, turns: int) -> None:
    """Compare an episode's record with what its agent has read."""
    assert trajectory.stop_reason is StopReason.TERMINATED, trajectory.fault
    assert check_trajectory(trajectory) == ()
    said = [turn.response_text for turn in trajectory.turns]
    assert said == received.pop(number), (number, said)
    assert len(said) == turns
    assert len(trajectory.sequences()) == 1
    assert trajectory.trained_token_count == trajectory.sampled_token_count


async def run(requests: int, sessions: int, turns: int) -> None:
    """Play episodes until so many requests were answered."""
    codec = load_codec(builtin_model_dir("builtin-text"))
    engine = HeldEngine(codec)
    connector = aiohttp.TCPConnector(limit=0)
    shown = time.monotonic()
    async with aiohttp.ClientSession(connector=connector) as http:
        agent = {"function": Agent(engine, http, turns).play}
        config = RolloutConfig.from_mapping({"agent": agent, "sanity": "off"})
        player = Player(engine, codec, config)
        numbers = count()

        async def worker() -> None:
            nonlocal shown
            while counts["requests"] < requests:
                number = next(numbers)
                room = partial(Room, number)
                (found,) = await player.play(room, EpisodeSpec(seed=number))
                check(found, number, turns)
                counts["turns"] += turns
                if time.monotonic() - shown > 20:
                    shown = time.monotonic()
                    sys.stdout.write(f"{counts['requests']:,} requests\n")
                    sys.stdout.flush()

        async with asyncio.TaskGroup() as group:
            for _ in range(sessions):
                group.create_task(worker())
        await player.aclose()
    assert counts["sampled"] == counts["turns"], counts


def main() -> None:
    """Run the campaign and print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=1024, help="episodes at a time")
    parser.add_argument("--turns", type=int, default=8, help="turns per episode")
    options = parser.parse_args()
    started = time.monotonic()
    asyncio.run(run(options.requests, options.sessions, options.turns))
    counts["seconds"] = round(time.monotonic() - started)
    sys.stdout.write(json.dumps(dict(sorted(counts.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()
