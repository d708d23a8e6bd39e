"""Do tree rollouts pay? Trees with `tree_advantages` against plain GRPO at equal sampled tokens.

Both start from the built-in half-trained model and play `canary-v0` with three turns of one digit.
GRPO plays four episodes per task and credits each with its reward minus the group's mean. The tree
plays two trunks per task and forks each before turns 1 and 2, which gives eight leaves. A step ends
when as many tokens were sampled as the budget says, less what earlier steps sampled over it. The
update is one REINFORCE step, mean over tokens, with the credit divided by its deviation. The policy
is evaluated on held-out tasks at temperature 1 before and after.

    python benchmarks/tree.py [--steps 20] [--seeds 3] [--json FILE]
"""

import argparse
import asyncio
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

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
) -> tuple[list[list[Trajectory]], int]:
    """Play tasks, four at once, until the budget of sampled tokens is spent."""
    groups: list[list[Trajectory]] = []
    tokens = 0
    for start in range(0, len(seeds), 4):
        if tokens >= budget:
            break
        found = await asyncio.gather(*(ARMS[arm](player, one) for one in seeds[start : start + 4]))
        groups += found
        tokens += sum(one.sampled_token_count for group in found for one in group)
    return groups, tokens


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
        config = RolloutConfig(seed=derive_seed("evaluation"), sampling={"max_new_tokens": 8})
        found = collect(make, engine, codec, episodes=episodes, config=config)
        return [one.reward async for one in found if one.reward is not None]

    return statistics.fmean(asyncio.run(play()))


def train(arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one run."""
    torch.manual_seed(seed)
    policy = load_half_trained()
    codec, sampler = policy.codec(), copy.deepcopy(policy.model)
    engine = TransformersEngine(sampler, policy.processor, seed=seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=options.learning_rate)
    started, tokens, rewards = time.process_time(), 0, list[float]()
    before = evaluate(engine, codec, options.evaluate)

    async def step(number: int) -> tuple[list[list[Trajectory]], int]:
        player = Player(engine, codec, RolloutConfig(sampling={"max_new_tokens": 8}))
        tasks = [derive_seed("train", seed, number, n) % 2**31 for n in range(64)]
        try:
            return await sample(player, arm, tasks, options.budget * (number + 1) - tokens)
        finally:
            await player.aclose()

    for number in range(options.steps):
        groups, spent = asyncio.run(step(number))
        tokens += spent
        trunks = [one.reward for group in groups for one in group if one.origin is None]
        rewards.append(statistics.fmean(one for one in trunks if one is not None))
        update(policy, optimizer, groups)
        sampler.load_state_dict(policy.model.state_dict())
    after = evaluate(engine, codec, options.evaluate)
    asyncio.run(engine.aclose())
    return {
        "arm": arm,
        "seed": seed,
        "sampled_tokens": tokens,
        "before": round(before, 3),
        "after": round(after, 3),
        "rewards": [round(one, 3) for one in rewards],
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def main() -> None:
    """Train both arms with every seed, print and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=400, help="sampled tokens of a step")
    parser.add_argument("--evaluate", type=int, default=192, help="episodes")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for arm in ARMS:
            figures.append(train(arm, seed, options))
            sys.stdout.write(json.dumps(figures[-1]) + "\n")
            sys.stdout.flush()
    for arm in ARMS:
        ends = [one["after"] for one in figures if one["arm"] == arm]
        sys.stdout.write(f"{arm}: {statistics.fmean(ends):.3f} after, seeds {ends}\n")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
