"""Measure a judge: the time of a cached verdict, and requests per second to a local server.

Goal: a 99th percentile of cache hits under 1 ms. A hit is a whole `Judge.grade`: rendering the
question, hashing it and looking it up. It never waits, so its CPU time is counted. The server
answers immediately, so the second figure is the work of client and server on one core.
"""

import asyncio
import json
import statistics
import time

from aiohttp import web
from harness import run, sized

from envkit.messages import message
from envkit.rewards import RewardContext
from envkit_judges import Criterion, Endpoint, Judge

CRITERIA = tuple(
    Criterion(name=name, text=f"The answer is {name}, as a careful reader would judge it.")
    for name in ("correct", "complete", "grounded", "brief")
)
REPLY = json.dumps({"reason": "r", "scores": {criterion.name: 7 for criterion in CRITERIA}})


def context_of(number: int, characters: int) -> RewardContext:
    """Return an episode with an answer of some length."""
    question = f"Question {number}: which of the two rivers is longer, and by how much?"
    answer = ("The first one is longer. " * (characters // 25 + 1))[:characters]
    return RewardContext(
        task={"prompt": question, "answer": "the first, by 320 km"},
        answer=answer,
        messages=(message("user", question), message("assistant", answer)),
    )


async def hit_microseconds(judge: Judge, characters: int, rounds: int) -> list[float]:
    """Return the CPU time of each cached verdict, in microseconds."""
    context = context_of(-characters, characters)
    await judge.grade(CRITERIA, context)
    taken: list[float] = []
    for _ in range(rounds):
        started = time.thread_time()
        await judge.grade(CRITERIA, context)
        taken.append((time.thread_time() - started) * 1e6)
    return taken


async def requests_per_second(judge: Judge, count: int) -> float:
    """Return the number of different questions answered per second."""
    contexts = [context_of(number, 400) for number in range(count)]
    started = time.perf_counter()
    await asyncio.gather(*(judge.grade(CRITERIA, context) for context in contexts))
    return count / (time.perf_counter() - started)


async def _complete(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": REPLY}}]})


async def measure(rounds: int, requests: int) -> dict[str, float]:
    """Return all figures."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", _complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    judge = Judge(Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", model="judge"))
    figures: dict[str, float] = {}
    try:
        for characters in (400, 4_000, 40_000):
            taken = await hit_microseconds(judge, characters, rounds)
            name = f"hit_{characters}_characters"
            figures[f"{name}_median_us"] = round(statistics.median(taken), 1)
            figures[f"{name}_p99_us"] = round(statistics.quantiles(taken, n=100)[98], 1)
        figures["requests_per_second"] = round(await requests_per_second(judge, requests), 1)
    finally:
        await judge.aclose()
        await runner.cleanup()
    return figures


if __name__ == "__main__":
    run(
        measure,
        rounds=sized(5_000, 10, "cached verdicts of each length"),
        requests=sized(2_000, 4, "different questions"),
    )
