"""Measure the cost of a step in a worker process: `python benchmarks/isolation.py`.

The same replies are played alternately in this process and in a worker. The best round of each
counts, because other load only makes a round slower. Both sides include hashing and PNG encoding of
new images, since every record needs them.
"""

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from envkit.env import Env, Turn
from envkit.rollout import EnvSource
from envkit.rollout.host import AnyEnv
from envkit.tasks import Task
from envkit_isolation import isolated

ROUNDS: Final = 8
STARTS: Final = 20


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


def compare(name: str, factory: Callable[[], AnyEnv], reply: str, steps: int) -> None:
    """Print the cost of a step with and without isolation."""
    direct, worker = factory(), isolated(factory)()
    try:
        rounds = [
            (seconds_per_step(direct, reply, steps), seconds_per_step(worker, reply, steps))
            for _ in range(ROUNDS)
        ]
    finally:
        direct.close()
        worker.close()
    plain, apart = (min(column) * 1e3 for column in zip(*rounds, strict=True))
    print(f"{name}: {plain:.2f} ms per step, {apart:.2f} ms isolated")


def start() -> None:
    """Print the startup time of the first and later workers."""
    factory = isolated(EnvSource("canary-v0", '{"turns": 2}'))
    times: list[float] = []
    for _ in range(STARTS):
        started = time.perf_counter()
        factory().close()
        times.append(time.perf_counter() - started)
    print(f"start and close: {times[0]:.2f} s the first, {min(times[1:]) * 1e3:.0f} ms later")


if __name__ == "__main__":
    start()
    importable = import_module(Path(__file__).stem).Echo  # a worker cannot import from __main__
    compare("text", importable, "hello", 500)
    compare("canary-v0, images of 224 x 84", EnvSource("canary-v0"), "AAAA", 90)
    click = '{"action": "left_click", "coordinate": [200, 200]}'
    compare("computer-use-v0, screenshots", EnvSource("computer-use-v0"), click, 30)
