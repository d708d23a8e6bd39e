"""Shared code of the canary runs: options, warm-up, evaluation and report."""

import argparse
import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from canary_model import SmallModel, load_half_trained, make_small_model
from curves import Run, draw_runs

import envkit
from envkit.rollout import Engine, RolloutConfig, ScriptedEngine, collect
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec, join_features
from envkit.trajectory import Row, whole_row
from envkit.wrappers import BlankImage, SwapImage

ENV_ID: Final = "canary-v0"
ENV: Final[dict[str, Any]] = {"turns": 2, "length": 1, "alphabet": "0123456789"}
CHANCE: Final = 0.1
GROUP: Final = 4


def parse_options(about: str) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=80, help="GRPO steps")
    parser.add_argument("--warmup-steps", type=int, default=300, help="maximum warm-up steps")
    parser.add_argument("--warmup-until", type=float, default=0.5, metavar="PROBABILITY")
    parser.add_argument(
        "--half",
        action="store_true",
        help="start from the built-in half-trained model, without a warm-up",
    )
    parser.add_argument(
        "--prompts", type=int, default=32, help=f"prompts per step, {GROUP} episodes each"
    )
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--evaluate", type=int, default=256, metavar="EPISODES")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="only two steps, as a smoke test")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.warmup_steps, options.prompts, options.evaluate = 2, 25, 8, 8
    return options


# ---- warm-up


def make_policy(options: argparse.Namespace) -> SmallModel:
    """Return the model that the run starts from."""
    return load_half_trained() if options.half else make_small_model(options.seed)


def warm_up(policy: SmallModel, codec: ChatCodec, run: Run, options: argparse.Namespace) -> None:
    """Train on oracle trajectories until held-out digits reach the target probability."""
    if options.half:
        return
    held_out = oracle_rows(codec, 64, seed=derive_seed("held out", options.seed))
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(options.warmup_steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 30)
        rows = oracle_rows(codec, 32, seed=derive_seed("warm-up", options.seed, step))
        loss = -reply_logprobs(policy, rows).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 4:
            with torch.inference_mode():
                # A reply is a digit and the end of the turn; the digits are every second token.
                probability = float(reply_logprobs(policy, held_out)[::2].exp().mean())
            run.warmup.append((step + 1, probability))
            print(
                f"warm-up {step + 1:4d}  loss {float(loss):.3f}  p(digit) {probability:.3f}",
                flush=True,
            )
            if probability >= options.warmup_until:
                return


def oracle_rows(codec: ChatCodec, episodes: int, *, seed: int) -> list[Row]:
    """Return the rows of episodes played by the environment's oracle."""
    env: Any = envkit.make(ENV_ID, **ENV)
    engine = ScriptedEngine(codec, env.oracle())

    async def play() -> list[Row]:
        config = RolloutConfig(env_kwargs=ENV, seed=seed)
        found = collect(ENV_ID, engine, codec, episodes=episodes, config=config)
        # They arrive as they finish, and a run must be reproducible.
        played = sorted([trajectory async for trajectory in found], key=lambda t: t.seed or 0)
        return [whole_row(trajectory, filler_id=codec.stop_ids[0]) for trajectory in played]

    return asyncio.run(play())


def reply_logprobs(policy: SmallModel, rows: Sequence[Row]) -> torch.Tensor:
    """Return the model's log-probabilities of the tokens with mask 1, row by row, (N,)."""
    sequences = [row.prompt_ids + row.response_ids for row in rows]
    shape = len(rows), max(map(len, sequences))
    ids = torch.full(shape, policy.processor.tokenizer.pad_token_id)
    attention, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for number, (row, sequence) in enumerate(zip(rows, sequences, strict=True)):
        ids[number, : len(sequence)] = torch.tensor(sequence)
        attention[number, : len(sequence)] = 1
        mask[number, len(row.prompt_ids) : len(sequence)] = torch.tensor(row.loss_mask).bool()
    device = policy.model.device
    ids, attention, mask = ids.to(device), attention.to(device), mask.to(device)
    pictures = join_features(feature for row in rows for feature in row.features)
    logits = policy.model(
        input_ids=ids,
        attention_mask=attention,
        mm_token_type_ids=(ids == policy.model.config.image_token_id).long(),
        **{name: torch.from_numpy(array).to(device) for name, array in pictures.items()},
    ).logits
    chosen = mask[:, 1:]
    return logits[:, :-1][chosen].log_softmax(-1).gather(1, ids[:, 1:][chosen][:, None])[:, 0]


# ---- evaluation and report


def evaluate(
    engine: Engine,
    codec: ChatCodec,
    options: argparse.Namespace,
    *,
    ablations: bool = False,
) -> dict[str, float]:
    """Return mean rewards on held-out tasks, sampled at temperature 1."""
    make = partial(envkit.make, ENV_ID, **ENV)
    envs: dict[str, Any] = {"images": make}
    if ablations:
        envs["blank"] = lambda: BlankImage(make())
        envs["swapped"] = lambda: SwapImage(make())

    config = RolloutConfig(
        seed=derive_seed("evaluation", options.seed),
        sampling={"max_new_tokens": 8, "seed": options.seed},
    )

    async def play(factory: Any) -> float:  # noqa: ANN401
        found = collect(factory, engine, codec, episodes=options.evaluate, config=config)
        return float(np.mean([t.reward async for t in found if t.reward is not None]))

    return {name: asyncio.run(play(factory)) for name, factory in envs.items()}


def report(run: Run, options: argparse.Namespace, name: str = "canary") -> None:
    """Write the figures and the image, and print the outcome."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{'half-' if options.half else ''}{name}-seed{run.seed}.json"
    path.write_text(json.dumps(run.as_json(), indent=1) + "\n", encoding="utf-8")
    draw_runs(out, "canary")
    for shown, value in run.end.items():
        print(f"after GRPO: {value:.3f} with {shown}", flush=True)
    if run.mismatch:
        print(f"largest log-probability difference: {max(m for m, _ in run.mismatch):.1e}")
    minutes = f"{run.seconds / 60:.1f} minutes, {run.cpu_seconds / 60:.1f} of CPU time"
    print(f"{minutes}; wrote {path}", flush=True)


def check_quick(run: Run, mismatch: float = 1e-4) -> int:
    """Check that the short run covered everything that the long one does."""
    is_fine = (
        len(run.rewards) == 2
        and run.changed == run.tensors
        and all(largest < mismatch for largest, _ in run.mismatch)
        and set(run.end) == {"images", "blank", "swapped"}
    )
    print("quick run: fine" if is_fine else f"quick run: FAILED, {run.as_json()}")
    return 0 if is_fine else 1
