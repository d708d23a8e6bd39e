"""The built-in models on the canary: the seeing one's rewards, and GRPO from the half-trained one.

The trainer is a plain loop in torch, because TRL is rarely installed where this runs.
"""

import asyncio
import copy
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from canary_model import SmallModel, load_half_trained
from canary_run import ENV, GROUP, reply_logprobs

from envkit.rollout import Engine, RolloutConfig, collect
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec
from envkit.trajectory import Row, Trajectory, whole_row
from envkit.wrappers import BlankImage, SwapImage
from envkit_canary import CanaryEnv
from envkit_transformers import TransformersEngine, create_engine

RATE: Final = 5e-4
WRAPS: Final[Mapping[str, Any]] = {"images": None, "blank": BlankImage, "swapped": SwapImage}


def rewards(
    engine: Engine,
    codec: ChatCodec,
    kwargs: Mapping[str, Any],
    *,
    episodes: int,
    temperature: float,
) -> dict[str, dict[int, float]]:
    """Return the rewards by seed, with the right images, blank ones and those of another task."""
    make = partial(CanaryEnv, **kwargs)  # no plugin is registered where envkit is not installed
    config = RolloutConfig(
        seed=derive_seed("gpu check", 0),
        sampling={"max_new_tokens": 24, "seed": 1, "temperature": temperature},
    )

    async def play(wrap: Any) -> dict[int, float]:  # noqa: ANN401
        factory = make if wrap is None else lambda: wrap(make())
        found = collect(factory, engine, codec, episodes=episodes, config=config)
        return {t.seed or 0: t.reward async for t in found if t.reward is not None}

    return {name: asyncio.run(play(wrap)) for name, wrap in WRAPS.items()}


def means(found: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return the mean reward of each kind of images."""
    return {name: sum(by_seed.values()) / len(by_seed) for name, by_seed in found.items()}


def see(figures: dict[str, Any], *, device: str, small: bool) -> None:
    """Play the seeing model greedily on the device and on the CPU, with the same seeds."""
    episodes = 8 if small else 64
    found: dict[str, dict[str, dict[int, float]]] = {}
    figures["episodes"] = episodes
    for place in dict.fromkeys((device, "cpu")):
        engine = create_engine(device=place, seed=0)
        codec = ChatCodec(
            engine.processor, vocabulary_size=engine.model.config.text_config.vocab_size
        )
        try:
            found[place] = rewards(engine, codec, {}, episodes=episodes, temperature=0.0)
        finally:
            asyncio.run(engine.aclose())
        figures[place] = {
            "dtype": str(engine.model.dtype).removeprefix("torch."),
            "rewards": means(found[place]),
        }
    figures["changed_rewards"] = {
        name: sum(reward != found["cpu"][name][seed] for seed, reward in by_seed.items())
        for name, by_seed in found[device].items()
    }


async def play_groups(
    engine: Engine, codec: ChatCodec, prompts: int, step: int
) -> list[Trajectory]:
    """Return the episodes of a step, ordered by group."""
    config = RolloutConfig(seed=derive_seed("gpu check", 1, step), sampling={"max_new_tokens": 8})
    episodes = prompts * GROUP
    make = partial(CanaryEnv, **ENV)
    found = collect(make, engine, codec, episodes=episodes, group_size=GROUP, config=config)
    return sorted([one async for one in found], key=lambda one: one.group_id or "")


def token_advantages(group: Sequence[Row]) -> list[float]:
    """Return the advantage of each sampled token of a group's rows, row by row (N,).

    It is that of the token's turn among the same turns of the group, because no image depends on an
    earlier reply.
    """
    turns = max(len(row.turn_rewards) for row in group)
    table = torch.zeros(len(group), turns)
    for row, values in zip(group, table, strict=True):
        for turn, (_, reward) in enumerate(row.turn_rewards):
            values[turn] = reward
    table = (table - table.mean(0)) / (table.std(0) + 1e-4)
    found: list[float] = []
    for row, values in zip(group, table.tolist(), strict=True):
        ends = [index for index, _ in row.turn_rewards]
        sampled = (index for index, one in enumerate(row.loss_mask) if one)
        found += [values[min(bisect_left(ends, index), turns - 1)] for index in sampled]
    return found


def ban_placeholders(model: Any, inputs: object, output: Any) -> None:  # noqa: ANN401
    """Give media placeholders probability 0, as the engine does when it samples."""
    output.logits[..., [model.config.image_token_id, model.config.video_token_id]] = float("-inf")


def learn(figures: dict[str, Any], *, device: str, small: bool) -> None:
    """Train the half-trained model by GRPO; record rewards before, during and after."""
    steps, prompts, episodes = (3, 2, 8) if small else (200, 16, 256)
    policy = load_half_trained()
    policy.model.to(device)
    codec = policy.codec()
    # The engine has its own model, as on another machine.
    engine = TransformersEngine(copy.deepcopy(policy.model), policy.processor, seed=0)
    policy.model.register_forward_hook(ban_placeholders)
    measure = partial(rewards, engine, codec, ENV, episodes=episodes, temperature=1.0)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=RATE, betas=(0.9, 0.95))
    figures["steps"], figures["episodes_per_step"] = 0, prompts * GROUP
    figures["rewards"], figures["largest_mismatch"] = [], 0.0
    try:
        figures["before"] = means(measure())
        for step in range(steps):
            for settings in optimizer.param_groups:
                settings["lr"] = RATE * min(1.0, (step + 1) / 10, 1.5 * (steps - step) / steps)
            played = asyncio.run(play_groups(engine, codec, prompts, step))
            mismatch = take_step(policy, optimizer, played, filler_id=codec.stop_ids[0])
            version = str(step + 1)
            asyncio.run(engine.update_weights(policy.model.state_dict(), version=version))
            figures["steps"] = step + 1
            figures["rewards"].append(sum(one.reward or 0.0 for one in played) / len(played))
            figures["largest_mismatch"] = max(figures["largest_mismatch"], mismatch)
        figures["after"] = means(measure())
    finally:
        asyncio.run(engine.aclose())


def take_step(
    policy: SmallModel,
    optimizer: torch.optim.Optimizer,
    played: Sequence[Trajectory],
    *,
    filler_id: int,
) -> float:
    """Take an optimizer step; return the largest log-probability difference to the engine."""
    rows = [whole_row(one, filler_id=filler_id) for one in played]
    groups = [rows[start : start + GROUP] for start in range(0, len(rows), GROUP)]
    advantages = [one for group in groups for one in token_advantages(group)]
    sampled = [
        logprob
        for row in rows
        for logprob, one in zip(row.logprobs, row.loss_mask, strict=True)
        if one
    ]
    logprobs = reply_logprobs(policy, rows)
    ratio = (logprobs - logprobs.detach()).exp()
    loss = -(torch.tensor(advantages, device=ratio.device) * ratio).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    return float((logprobs.detach().cpu() - torch.tensor(sampled)).abs().max())
