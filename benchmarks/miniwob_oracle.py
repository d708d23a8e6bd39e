"""Play a scripted policy on many seeds of MiniWoB++ tasks in the real browser.

Prints the number of seeds per task that ended with reward 1, and the first that did not.
"""

import asyncio
from typing import Any

from harness import quiet, run, sized

from envkit.env import Policy, PolicyContext
from envkit_browser.miniwob import PLANS, TASKS, MiniwobEnv


async def is_solved(env: MiniwobEnv, policy: Policy, name: str, seed: int) -> bool:
    """Play one episode and return whether it ended with reward 1."""
    await env.areset(seed=0, options={"task": {"name": name, "seed": seed}})
    for turn in range(env.max_turns):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=seed)
        step = await env.astep(policy(context))
        if step.terminated or step.truncated:
            return step.reward == 1.0
    return False


async def play(
    tasks: str | None, seeds: int, first: int, turns: int | None, policy: str, environments: int
) -> dict[str, Any]:
    """Play all tasks, several at a time, and return the solved seeds of each."""
    names = tasks.split(",") if tasks else sorted(PLANS if policy == "oracle" else TASKS)
    waiting, solved = list(names), dict.fromkeys(names, 0)

    async def work() -> None:
        env = MiniwobEnv(mix="all", max_turns=turns)
        chosen = MiniwobEnv.policies[policy]()
        while waiting:
            name, missed = waiting.pop(0), list[int]()
            for seed in range(first, first + seeds):
                if await is_solved(env, chosen, name, seed):
                    solved[name] += 1
                else:
                    missed.append(seed)
            hint = f"  not seed {missed[0]}" if missed else ""
            print(f"{name:32} {solved[name]}/{seeds}{hint}", flush=True)
        await env.aclose()

    await asyncio.gather(*(work() for _ in range(environments)))
    complete = sum(count == seeds for count in solved.values())
    print(f"{complete} of {len(names)} tasks solved on every seed")
    return {"tasks": len(names), "complete": complete, "solved": solved}


if __name__ == "__main__":
    run(
        play,
        tasks=sized(None, "click-test", "comma-separated names, if not all"),
        seeds=sized(200, 1),
        first=0,
        turns={"type": int, "help": "replies (default: the task's own)"},
        policy={"choices": sorted(MiniwobEnv.policies), "default": "oracle"},
        environments=sized(3, 1),
        show=quiet,
    )
