"""Do tree rollouts pay? Trees with `tree_advantages` against plain GRPO at equal sampled tokens.

Both start from the built-in half-trained model and play `canary-v0` with three turns of one digit.
GRPO plays four episodes per task and credits each with its reward minus the group's mean. The tree
plays two trunks per task and forks each before turns 1 and 2, which gives eight leaves. A step ends
when as many tokens were sampled as the budget says, less what earlier steps sampled over it. The
update is one REINFORCE step, mean over tokens, with the credit divided by its deviation. Both arms
have the same optimizer and tasks. The policy is evaluated at temperature 1 on tasks that no run
trains on, the same for all runs and with the same sampling seeds. The interval is Student's, of the
difference between the arms over seeds.
"""

import asyncio
import copy
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import run, sized

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from canary_model import SmallModel, load_half_trained
from canary_run import reply_logprobs

import envkit
from envkit.advantages import tree_advantages
from envkit.rollout import AtTurns, EpisodeSpec, Player, RolloutConfig, collect, play_tree
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec
from envkit.trajectory import SegmentKind, Trajectory
from envkit_transformers import TransformersEngine

ENV: dict[str, Any] = {"turns": 3, "length": 1, "alphabet": "0123456789"}
GROUP, TRUNKS = 4, 2
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""By number of seeds, the 97.5% quantile of Student's distribution."""


def make() -> Any:  # noqa: ANN401  # a gymnasium environment
    """Return one environment."""
    return envkit.make("canary-v0", **ENV)


async def plain_group(player: Player, seed: int) -> list[Trajectory]:
    """Play the episodes of a task, as GRPO does."""
    return [
        one
        for member in range(GROUP)
        for one in await player.play(
            make, EpisodeSpec(seed=seed, group_id=str(seed), member=member)
        )
    ]


async def forest(player: Player, seed: int) -> list[Trajectory]:
    """Play the trees of a task."""
    return [
        leaf
        for member in range(TRUNKS)
        for leaf in await play_tree(
            make,
            player,
            branching=AtTurns(turns=(1, 2)),
            spec=EpisodeSpec(seed=seed, group_id=str(seed), member=member),
        )
    ]


ARMS: dict[str, Callable[[Player, int], Any]] = {"grpo": plain_group, "tree": forest}


async def sample(
    player: Player, arm: str, seeds: Sequence[int], budget: int
) -> list[list[Trajectory]]:
    """Play tasks, four at once, until the budget of sampled tokens is spent."""
    groups: list[list[Trajectory]] = []
    tokens = 0
    for start in range(0, len(seeds), 4):
        if tokens >= budget:
            break
        found = await asyncio.gather(*(ARMS[arm](player, one) for one in seeds[start : start + 4]))
        groups += found
        tokens += sum(one.sampled_token_count for group in found for one in group)
    return groups


def update(
    policy: SmallModel, optimizer: torch.optim.Optimizer, groups: Sequence[list[Trajectory]]
) -> None:
    """Take one step on the credit of every sampled token; without forks it is GRPO's."""
    rows, weights = [], list[float]()
    for group in groups:
        credit = tree_advantages(group)
        for leaf in group:
            for row in leaf.steps(merge=True):
                rows.append(row)
                for segment in row.segments:
                    if segment.kind is SegmentKind.MODEL:
                        value = credit[leaf.episode_id][segment.turn]
                        weights += [value] * int(segment.array("loss_mask").sum())
    logprobs = reply_logprobs(policy, rows)
    advantage = torch.tensor(weights)
    scale = advantage.std().clamp_min(1e-6)  # arms differ in the size of their credit
    optimizer.zero_grad()
    (-(advantage / scale * logprobs).mean()).backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()


def evaluate(engine: TransformersEngine, codec: ChatCodec, episodes: int) -> float:
    """Return the mean reward on held-out tasks at temperature 1."""

    async def play() -> list[float]:
        config = RolloutConfig(
            seed=derive_seed("evaluation"), sampling={"max_new_tokens": 8, "seed": 0}
        )
        found = collect(make, engine, codec, episodes=episodes, config=config)
        return [one.reward async for one in found if one.reward is not None]

    return statistics.fmean(asyncio.run(play()))


def train(
    arm: str, seed: int, *, steps: int, budget: int, episodes: int, learning_rate: float
) -> dict[str, Any]:
    """Return the figures of one run."""
    policy = load_half_trained()
    codec, sampler = policy.codec(), copy.deepcopy(policy.model)
    engine = TransformersEngine(sampler, policy.processor)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=learning_rate)
    config = RolloutConfig(sampling={"max_new_tokens": 8, "seed": seed})
    cpu, totals, rewards = dict.fromkeys(("sample", "update"), 0.0), Counter[str](), list[float]()

    async def step(number: int) -> list[list[Trajectory]]:
        player = Player(engine, codec, config)
        tasks = [derive_seed("train", seed, number, n) % 2**31 for n in range(64)]
        left = budget * (number + 1) - totals["sampled_tokens"]
        try:
            return await sample(player, arm, tasks, left)
        finally:
            await player.aclose()

    for number in range(steps):
        started = time.process_time()
        groups = asyncio.run(step(number))
        sampled = time.process_time()
        totals += counted(groups)
        trunks = [one.reward for group in groups for one in group if one.origin is None]
        rewards.append(statistics.fmean(one for one in trunks if one is not None))
        update(policy, optimizer, groups)
        sampler.load_state_dict(policy.model.state_dict())
        cpu["sample"] += sampled - started
        cpu["update"] += time.process_time() - sampled
    after = evaluate(engine, codec, episodes)
    asyncio.run(engine.aclose())
    return {
        "arm": arm,
        "seed": seed,
        **totals,
        "after": round(after, 4),
        "rewards": [round(one, 3) for one in rewards],
        "cpu_seconds": {name: round(one, 1) for name, one in cpu.items()},
    }


def counted(groups: Sequence[list[Trajectory]]) -> Counter[str]:
    """Count the work of a step: tokens and turns that the model sampled, tokens in rows."""
    counts = Counter(tasks=len(groups))
    for leaf in (one for group in groups for one in group):
        counts["episodes"] += 1
        counts["sampled_tokens"] += leaf.sampled_token_count
        counts["turns"] += len(leaf.own_turns)
        rows = leaf.steps(merge=True)
        counts["row_tokens"] += sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    return counts


def untrained(episodes: int) -> float:
    """Return the mean reward of the model that all runs start from."""
    policy = load_half_trained()
    engine = TransformersEngine(policy.model, policy.processor)
    try:
        return evaluate(engine, policy.codec(), episodes)
    finally:
        asyncio.run(engine.aclose())


def compared(figures: Sequence[dict[str, Any]], before: float) -> dict[str, Any]:
    """Return the mean of each arm and the difference, with the interval over seeds."""
    ends = {arm: [one["after"] for one in figures if one["arm"] == arm] for arm in ARMS}
    differences = [a - b for a, b in zip(ends["tree"], ends["grpo"], strict=True)]
    seeds, half = len(differences), math.nan
    if seeds in STUDENT:
        half = STUDENT[seeds] * statistics.stdev(differences) / math.sqrt(seeds)
    mean = statistics.fmean(differences)
    found: dict[str, Any] = {
        "seeds": seeds,
        "before": before,
        "difference": {"mean": mean, "low": mean - half, "high": mean + half},
    }
    for arm in ARMS:
        runs = [one for one in figures if one["arm"] == arm]
        found[arm] = {"after": statistics.fmean(ends[arm])} | {
            name: statistics.fmean(one[name] for one in runs)
            for name in ("tasks", "episodes", "turns", "sampled_tokens", "row_tokens")
        }
        for name in ("sample", "update"):
            found[arm][f"{name}_cpu_s"] = statistics.fmean(one["cpu_seconds"][name] for one in runs)
    return found


def measure(
    steps: int, seeds: int, budget: int, evaluate: int, learning_rate: float
) -> dict[str, Any]:
    """Train both arms with every seed and compare them."""
    torch.set_num_threads(1)
    before = untrained(evaluate)
    figures: list[dict[str, Any]] = []
    for seed in range(seeds):
        for arm in ARMS:
            one = train(
                arm,
                seed,
                steps=steps,
                budget=budget,
                episodes=evaluate,
                learning_rate=learning_rate,
            )
            figures.append(one)
            print(json.dumps(figures[-1]), flush=True)
    return {**compared(figures, before), "runs": figures}


if __name__ == "__main__":
    run(
        measure,
        steps=sized(10, 1),
        seeds=sized(5, 1),
        budget=sized(400, 20, "sampled tokens per step"),
        evaluate=sized(256, 4, "evaluation episodes"),
        learning_rate=3e-4,
    )
