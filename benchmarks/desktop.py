"""Measure the simulated desktop: steps per second on one core, with encoded screenshots.

"edit" types a character into a field of a level 5 form or ticks a box; "repaint" drags a
window across the screen and back; "oracle" plays whole episodes of all families, including resets;
"full" redraws and re-encodes everything. Counted per second of CPU time. Goals: 1,000 edits and 250
full repaints.
"""

import time

from harness import run, sized

from envkit.env import PolicyContext
from envkit_desktop import ComputerUseEnv, DesktopTasks
from envkit_desktop.screen import Screen

CLICK = '{"action": "click", "x": %d, "y": %d}'
TYPE = '{"action": "type", "text": "%s"}'
DRAG = '{"action": "drag", "x": %d, "y": %d, "to": [%d, %d]}'


def _env(family: str, steps: int) -> ComputerUseEnv:
    env = ComputerUseEnv(max_turns=steps + 1)
    task = DesktopTasks(families=[family], level=5).task(3)
    env.reset(seed=0, options={"task": {**task, "popups": []}})
    return env


def edits_per_second(steps: int) -> float:
    """Return steps that change one widget, per second of CPU time."""
    env = _env("toggle_checks", steps)
    window = env.desk.window("main")
    assert window is not None
    x, y = window.x + 40, window.y + 60
    started = time.process_time()
    for step in range(steps):
        env.step(CLICK % (x, y + 28 * (step % 3)))
    return steps / (time.process_time() - started)


def drags_per_second(steps: int) -> float:
    """Return steps that drag a window, per second of CPU time."""
    env = _env("toggle_checks", steps)
    started = time.process_time()
    for step in range(steps):
        window = env.desk.window("main")
        assert window is not None
        x, y = window.x + 40, window.y + 10
        way = 30 if step % 2 else -30
        env.step(DRAG % (x, y, x + way, y))
    return steps / (time.process_time() - started)


def repaints_per_second(count: int) -> float:
    """Return fully drawn and encoded images of a busy desktop per second."""
    desk = _env("change_settings", 1).desk
    started = time.process_time()
    for _ in range(count):
        Screen(desk.width, desk.height).shoot(desk)
    return count / (time.process_time() - started)


def oracle_steps_per_second(episodes: int) -> float:
    """Return steps per second of whole episodes, including resets and the oracle's planning."""
    env = ComputerUseEnv()
    oracle, steps = env.oracle(), 0
    started = time.process_time()
    for seed in range(episodes):
        env.reset(seed=seed)
        for turn in range(env.max_turns):
            context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=seed)
            steps += 1
            step = env.step(oracle(context))
            if step.terminated or step.truncated:
                break
    return steps / (time.process_time() - started)


def measure(steps: int) -> dict[str, float]:
    """Return all figures."""
    edits_per_second(50)  # loads the font
    return {
        "edits_per_second": round(edits_per_second(steps), 1),
        "drags_per_second": round(drags_per_second(steps), 1),
        "full_repaints_per_second": round(repaints_per_second(steps // 2), 1),
        "oracle_steps_per_second": round(oracle_steps_per_second(steps // 20), 1),
    }


if __name__ == "__main__":
    run(measure, steps=sized(1000, 20, "number of steps of each kind"))
