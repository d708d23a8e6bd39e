"""Cut a tenth of an agent's requests and retry them; no reply may be lost or sampled twice.

Agents hold conversations over chat completions, half of them streamed. A cut closes the connection
at a random time, and the retry has the header that the clients of OpenAI and Anthropic send. Or it
comes while the engine still samples, and the retry has the same bytes and no header. Streams have
text while the engine samples.

    python scripts/campaigns/gateway_cuts.py --turns 100000 --sessions 1024
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
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.agent_clients import ChatClient  # noqa: E402

from envkit.env import Capabilities, Env, Turn  # noqa: E402
from envkit.messages import text_of  # noqa: E402
from envkit.rollout import EpisodeSpec, Player, RolloutConfig, ScriptedEngine  # noqa: E402
from envkit.rollout.engine import GenerateRequest, Generation  # noqa: E402
from envkit.rollout.token_stream import Report  # noqa: E402
from envkit.tasks import Task  # noqa: E402
from envkit.tokens import ChatCodec, load_codec  # noqa: E402
from envkit.trajectory import StopReason, Trajectory, check_trajectory  # noqa: E402
from envkit_gateway import AgentTask  # noqa: E402
from envkit_transformers import builtin_model_dir  # noqa: E402

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
        self.holds: dict[int, Hold] = {}
        """The next request of an episode, by its number."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Count the call, and wait if the agent is about to cut its request."""
        counts["sampled"] += 1
        assert request.context is not None
        hold = self.holds.pop(int(text_of(request.context.messages[0])), None)
        if hold is not None:
            hold.reached.set()
            await hold.ended.wait()
        return await super().generate(request)

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        """Report the ids of a reply one after the other."""
        generation = await self.generate(request)
        for token in generation.token_ids:
            report((token,))
            counts["reported tokens"] += 1
            await asyncio.sleep(random.random() * LATENCY_S / 4)
        return generation

    def _seconds(self, _: GenerateRequest) -> float:
        return random.random() * LATENCY_S


class Hold:
    """A request that waits in the engine."""

    def __init__(self) -> None:
        """Create one that the engine has not reached."""
        self.reached, self.ended = asyncio.Event(), asyncio.Event()


class Agent:
    """Holds conversations and cuts some of its requests."""

    def __init__(self, engine: HeldEngine, turns: int) -> None:
        """Create an agent for any number of episodes."""
        self._engine, self._turns = engine, turns
        self._seconds = LATENCY_S
        """Time of the last reply of any episode that was read to its end."""

    async def play(self, task: AgentTask) -> str:
        """Play one episode."""
        number = int(task.prompt)
        rng = random.Random(number)
        client = ChatClient(task.url, task.api_key)
        for turn in range(self._turns):
            client.user(task.prompt if turn == 0 else f"turn {turn}", None)
            client.stream, client.headers = rng.random() < 0.5, {}
            if rng.random() < 0.1:
                if rng.random() < 0.5:
                    await self._cut_at_random(client, rng)
                    client.headers = {"x-stainless-retry-count": "1"}
                else:
                    await self._cut_while_sampling(client, number, rng)
            started = time.monotonic()
            said = await client.ask()
            self._seconds = time.monotonic() - started
            counts["turns"] += 1
            received[number].append(said.text)
        return "done"

    async def _cut_at_random(self, client: ChatClient, rng: random.Random) -> None:
        """Close the connection before, during or shortly after the reply."""
        counts["cut at random"] += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.random() * 1.5 * self._seconds):
                await client.post(client.body())
                counts["cut after the whole reply"] += 1

    async def _cut_while_sampling(
        self, client: ChatClient, number: int, rng: random.Random
    ) -> None:
        """Close the connection after the engine got the request and before it answers."""
        counts["cut while sampling"] += 1
        hold = self._engine.holds[number] = Hold()
        request = asyncio.create_task(client.post(client.body()))
        await hold.reached.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        asyncio.get_running_loop().call_later(rng.random() * LATENCY_S, hold.ended.set)


def check(trajectory: Trajectory, number: int, turns: int) -> None:
    """Compare an episode's record with what its agent has read."""
    assert trajectory.stop_reason is StopReason.TERMINATED, trajectory.fault
    assert check_trajectory(trajectory) == ()
    said = [turn.response_text for turn in trajectory.turns]
    assert said == received.pop(number), (number, said)
    assert len(said) == turns
    assert len(trajectory.sequences()) == 1
    assert trajectory.trained_token_count == trajectory.sampled_token_count


async def run(turns: int, sessions: int, episode_turns: int) -> None:
    """Play episodes until so many turns were answered."""
    codec = load_codec(builtin_model_dir("builtin-text"))
    engine = HeldEngine(codec)
    agent = {"function": Agent(engine, episode_turns).play}
    player = Player(engine, codec, RolloutConfig.from_mapping({"agent": agent, "sanity": "off"}))
    numbers, shown = count(), time.monotonic()

    async def worker() -> None:
        nonlocal shown
        while counts["turns"] < turns:
            number = next(numbers)
            (found,) = await player.play(partial(Room, number), EpisodeSpec(seed=number))
            check(found, number, episode_turns)
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                sys.stdout.write(f"{counts['turns']:,} turns\n")
                sys.stdout.flush()

    async with asyncio.TaskGroup() as group:
        for _ in range(sessions):
            group.create_task(worker())
    await player.aclose()
    assert counts["sampled"] == counts["turns"], counts


def main() -> None:
    """Run the campaign and print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=100_000, help="turns in all")
    parser.add_argument("--sessions", type=int, default=1024, help="episodes at a time")
    parser.add_argument("--length", type=int, default=8, help="turns of an episode")
    options = parser.parse_args()
    started = time.monotonic()
    asyncio.run(run(options.turns, options.sessions, options.length))
    counts["seconds"] = round(time.monotonic() - started)
    sys.stdout.write(json.dumps(dict(sorted(counts.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()
