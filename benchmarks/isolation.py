"""Measure the cost of a step in a worker process: `python benchmarks/isolation.py`.

The same replies are played alternately in this process and in a worker. The best round of each
counts, because other load only makes a round slower. Both sides include hashing and PNG encoding of
new images, since every record needs them.
"""

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from harness import run, seconds, sized

from envkit.env import Env, Turn
from envkit.rollout import EnvSource
from envkit.rollout.host import AnyEnv
from envkit.tasks import Task
from envkit_isolation import isolated


class Echo(Env):
    """Repeats the reply."""

    def __init__(self) -> None:
        super().__init__(max_turns=1000)

    def on_reset(self, task: Task) -> Turn:
        """Ask for a reply."""
        return Turn("say something")

    def on_turn(self, response_text: str) -> Turn:
        """Repeat it."""
        return Turn(response_text)


def seconds_per_step(env: AnyEnv, reply: str, steps: int) -> float:
    """Play some steps, resetting after each episode, and return the mean time per step."""
    left, seed, started = steps, 0, time.perf_counter()
    while left > 0:
        env.reset(seed=seed)
        seed, is_over = seed + 1, False
        while left > 0 and not is_over:
            observation, _, terminated, truncated, _ = env.step(reply)
            for image in observation["images"]:
                _ = image.sha256, image.png_bytes()
            left, is_over = left - 1, terminated or truncated
    return (time.perf_counter() - started) / steps


def compare(factory: Callable[[], AnyEnv], reply: str, steps: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds of a step with and without isolation."""
    direct, worker = factory(), isolated(factory)()
    try:
        taken = [
            (seconds_per_step(direct, reply, steps), seconds_per_step(worker, reply, steps))
            for _ in range(rounds)
        ]
    finally:
        direct.close()
        worker.close()
    plain, apart = (min(column) * 1e3 for column in zip(*taken, strict=True))
    return {"ms": plain, "isolated_ms": apart, "ratio": apart / plain}


def starts(count: int) -> dict[str, float]:
    """Return the startup time of the first worker, and the least of later ones."""
    factory = isolated(EnvSource("canary-v0", '{"turns": 2}'))
    first, *later = (seconds(lambda: factory().close(), time.perf_counter) for _ in range(count))
    return {"first_start_s": first, "later_start_ms": min(later) * 1e3}


def measure(rounds: int, starts_of: int, steps: int) -> dict[str, Any]:
    """Return the figures of starts, and of steps with text, small images and screenshots."""
    echo = import_module(Path(__file__).stem).Echo  # a worker cannot import from __main__
    click = '{"action": "left_click", "coordinate": [200, 200]}'
    return {
        **starts(starts_of),
        "text": compare(echo, "hello", steps, rounds),
        "canary-v0": compare(EnvSource("canary-v0"), "AAAA", steps // 5, rounds),
        "computer-use-v0": compare(EnvSource("computer-use-v0"), click, steps // 15, rounds),
    }


if __name__ == "__main__":
    run(
        measure,
        rounds=sized(8, 1, "rounds; the best one counts"),
        starts_of=sized(20, 2, "workers started"),
        steps=sized(500, 15, "steps of text per round"),
    )
