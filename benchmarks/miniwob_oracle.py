"""Play a scripted policy on many seeds of MiniWoB++ tasks in the real browser.

    python benchmarks/miniwob_oracle.py [--tasks a,b] [--seeds 200] [--policy oracle]
        [--first 0] [--environments 3] [--json FILE]

Prints the number of seeds per task that ended with reward 1, and the first that did not.
"""

import argparse
import asyncio
import json
from pathlib import Path

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


async def play(names: list[str], options: argparse.Namespace) -> dict[str, int]:
    """Play all tasks, several at a time, and return the solved seeds of each."""
    waiting, solved = list(names), dict.fromkeys(names, 0)

    async def work() -> None:
        env = MiniwobEnv(mix="all", max_turns=options.turns)
        policy = MiniwobEnv.policies[options.policy]()
        while waiting:
            name, missed = waiting.pop(0), list[int]()
            for seed in range(options.first, options.first + options.seeds):
                if await is_solved(env, policy, name, seed):
                    solved[name] += 1
                else:
                    missed.append(seed)
            hint = f"  not seed {missed[0]}" if missed else ""
            print(f"{name:32} {solved[name]}/{options.seeds}{hint}", flush=True)
        await env.aclose()

    await asyncio.gather(*(work() for _ in range(options.environments)))
    return solved


def main() -> None:
    """Play, print, and write the counts as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", help="comma-separated names (default: all)")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--turns", type=int, help="replies (default: the task's own)")
    parser.add_argument("--policy", choices=sorted(MiniwobEnv.policies), default="oracle")
    parser.add_argument("--environments", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    every = PLANS if options.policy == "oracle" else TASKS
    names = options.tasks.split(",") if options.tasks else sorted(every)
    solved = asyncio.run(play(names, options))
    complete = sum(count == options.seeds for count in solved.values())
    print(f"{complete} of {len(names)} tasks solved on every seed")
    if options.json is not None:
        options.json.write_text(json.dumps(solved, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
