"""Measure MiniWoB++ in the real browser: steps per second and reset time.

A step is a click, half a second of page time and an encoded screenshot, in several concurrent
environments. A reset shows another problem of the same task. Wall time, so it depends on the
machine's load. Goals: 100 steps per second on one page, reset under 20 ms.

    python benchmarks/miniwob_steps.py [--json FILE]
"""

import asyncio
import random
import statistics
import time

from harness import run, size

from envkit_browser.miniwob import MiniwobEnv

TASK = "click-checkboxes"
CLICK = '{"action": "click", "x": %d, "y": %d}'


async def _reset(env: MiniwobEnv, seed: int) -> None:
    await env.areset(seed=0, options={"task": {"name": TASK, "seed": seed}})


async def reset_milliseconds(count: int) -> float:
    """Return the median time of a reset to another problem."""
    env = MiniwobEnv(task=TASK)
    await _reset(env, 0)
    times: list[float] = []
    for seed in range(count):
        started = time.perf_counter()
        await _reset(env, seed)
        times.append(1000 * (time.perf_counter() - started))
    await env.aclose()
    return statistics.median(times)


async def steps_per_second(environments: int, steps: int) -> float:
    """Return the steps per second of all environments together, without resets."""
    envs = [MiniwobEnv(task=TASK, max_turns=10**6) for _ in range(environments)]
    for env in envs:
        await _reset(env, 0)

    async def play(env: MiniwobEnv, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(steps // environments):
            # Above the Submit button and below the bar, so no episode ends.
            await env.astep(CLICK % (rng.randrange(320), rng.randrange(104, 140)))

    started = time.perf_counter()
    await asyncio.gather(*(play(env, seed) for seed, env in enumerate(envs)))
    elapsed = time.perf_counter() - started
    for env in envs:
        await env.aclose()
    return steps // environments * environments / elapsed


async def measure(steps: int) -> dict[str, float]:
    """Return all figures by name."""
    figures = {"reset_ms": round(await reset_milliseconds(max(1, steps // 10)), 1)}
    for environments in (1, 2, 4, 8):
        rate = await steps_per_second(environments, steps)
        figures[f"steps_per_second_{environments}"] = round(rate, 1)
    return figures


if __name__ == "__main__":
    run(measure, steps=size(400, 8, "number of steps of each kind"))
