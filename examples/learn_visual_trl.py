"""Train a small vision-language model on demonstrations of three visual worlds, then by GRPO.

    python examples/learn_visual_trl.py --seed 0

`envkit demos` plays the oracles of `visual/lights-v0`, `visual/pegs-v0` and `visual/clock-v0` with
some noise, and writes the episodes with the tokens of the built-in half-trained model, which knows
none of these worlds. The model is trained on them, noisy replies excluded, and then by TRL's
GRPOTrainer on all three worlds at once. At the end it is evaluated on other tasks with the right
images, blank ones, and those of another task.

Needs: pip install 'envkit-rl[transformers,trl]'
"""

import argparse
import asyncio
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from canary_model import SmallModel
from canary_run import GROUP, reply_logprobs
from curves import Run, draw_runs
from datasets import disable_progress_bars
from learn_canary_trl import dataset_of, grpo_config
from tokenizers import AddedToken
from transformers import PrinterCallback, TrainerCallback

import envkit
from envkit.rollout import Engine, RolloutConfig, collect
from envkit.rollout.request import EpisodeRequest
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec
from envkit.trajectory import Row, load, step_rows
from envkit.wrappers import BlankImage, SwapImage
from envkit_transformers import BuiltinModel, TransformersEngine, builtin_model_dir
from envkit_transformers.loading import load_model
from envkit_transformers.vlm_folder import save_folder
from envkit_trl import load_processor
from envkit_trl.trainer import EnvGRPOTrainer

WORLDS: Final[Mapping[str, int]] = {"lights": 4, "pegs": 14, "clock": 20}
"""World -> demonstrations per step, about as many images of each."""
ENV: Final[dict[str, Any]] = {"pixels": 224}
MAX_PIXELS: Final = 128 * 128
WORDS: Final = (
    "<action>",
    "</action>",
    "Moves left:",
    "Pressed.",
    "Jumped.",
    "Answer the question about the picture.",
)
ENVKIT: Final = "from envkit.cli import main; main()"
"""The command `envkit` of this interpreter, even if it is not on the path."""
MAX_COMPLETION: Final = 512
"""Maximum tokens of an episode after its prompt."""


def main() -> int:
    """Run demonstrations, supervised training, GRPO and evaluation; returns the exit status."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    disable_progress_bars()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="envkit-learn-") as name:
        folder = Path(name)
        policy = make_policy(folder / "model")
        codec = policy.codec()
        runs = {
            world: Run(
                seed=options.seed,
                parameters=policy.parameter_count,
                chance=unwrapped(world).chance_level,
            )
            for world in WORLDS
        }
        print(f"{policy.parameter_count:,} parameters, seed {options.seed}", flush=True)
        status = 0
        try:
            for world in WORLDS:
                demonstrate(world, folder, options)
            print(f"demonstrations: {time.monotonic() - started:.0f} s", flush=True)
            imitate(policy, codec, runs, folder, options)
            learn(policy, codec, runs, options)
        except KeyboardInterrupt:
            print("interrupted: the curves so far are kept", flush=True)
            status = 130
    for run in runs.values():
        run.seconds, run.cpu_seconds = time.monotonic() - started, cpu_seconds()
    report(runs, options)
    return status


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it waited for."""
    return sum(os.times()[:4])


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demos", type=int, default=1500, help="episodes of each world to imitate")
    parser.add_argument("--imitation-steps", type=int, default=500)
    parser.add_argument("--steps", type=int, default=30, help="GRPO steps")
    parser.add_argument(
        "--prompts", type=int, default=32, help=f"prompts per step, {GROUP} episodes each"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="of GRPO")
    parser.add_argument("--evaluate", type=int, default=256, metavar="EPISODES")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="only two steps, as a smoke test")
    options = parser.parse_args()
    if options.quick:
        options.demos, options.imitation_steps, options.steps = 60, 2, 2
        options.prompts, options.evaluate = 6, 8
    return options


def env_id(world: str) -> str:
    """Return the id of a world."""
    return f"visual/{world}-v0"


def unwrapped(world: str) -> Any:  # noqa: ANN401  # a visual environment
    """Return a world's environment."""
    return envkit.make(env_id(world)).unwrapped


def make_policy(folder: Path) -> SmallModel:
    """Write the built-in model with more tokens and smaller images, and return it.

    Every line of the system prompts becomes one token, which keeps episodes short. Their
    embeddings are rows that were only padding.
    """
    source = builtin_model_dir(BuiltinModel.HALF)
    model, processor = load_model(str(source), dtype="float32")
    prompts = [unwrapped(world).system_prompt for world in WORLDS]
    lines = dict.fromkeys([*(line for text in prompts for line in text.split("\n")), *WORDS])
    tokenizer = processor.tokenizer
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in lines])
    assert len(tokenizer) <= model.config.text_config.vocab_size
    folder.mkdir()
    save_folder(folder, model, tokenizer, max_pixels=MAX_PIXELS)
    return SmallModel(model=model, processor=load_processor(folder))


# ---- demonstrations


def demonstrate(world: str, folder: Path, options: argparse.Namespace) -> None:
    """Write demonstrations of a world's oracle, with noise and its recovery."""
    arguments = ["demos", env_id(world), "-n", str(options.demos), "--noise", "0.1"]
    arguments += [f"--env-kwargs={key}={value}" for key, value in ENV.items()]
    arguments += ["--test-share", "0.1", "--seed", str(options.seed), "--quiet"]
    arguments += ["--model", str(folder / "model"), "--out", str(folder / world)]
    subprocess.run([sys.executable, "-c", ENVKIT, *arguments], check=True)


def imitate(
    policy: SmallModel,
    codec: ChatCodec,
    runs: Mapping[str, Run],
    folder: Path,
    options: argparse.Namespace,
) -> None:
    """Train on the demonstrations; the learning rate falls at the end."""
    rows = {world: rows_of(folder / world / "train", codec) for world in runs}
    held_out = {world: rows_of(folder / world / "test", codec)[:64] for world in runs}
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-3, weight_decay=0.01)
    rng = random.Random(options.seed)
    last = options.imitation_steps
    for step in range(last):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 30, 0.1 + 3 * (last - step) / last)
        optimizer.zero_grad()
        for world in runs:
            chosen = with_pixels(rng.sample(rows[world], WORLDS[world]), codec)
            (-reply_logprobs(policy, chosen).mean() / len(runs)).backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 24 or step + 1 == last:
            measure(policy, codec, runs, held_out, step + 1)


def rows_of(folder: Path, codec: ChatCodec) -> list[Row]:
    """Return the rows of a folder of demonstrations; noisy replies have mask 0."""
    found = load(folder)
    return [row for one in found for row in step_rows(one, filler_id=codec.stop_ids[0], merge=True)]


def with_pixels(rows: Sequence[Row], codec: ChatCodec) -> list[Row]:
    """Return rows with what the model reads of their images."""
    return [replace(row, features=codec.image_features(row.images)) for row in rows]


def measure(
    policy: SmallModel,
    codec: ChatCodec,
    runs: Mapping[str, Run],
    held_out: Mapping[str, Sequence[Row]],
    step: int,
) -> None:
    """Record the probability of the oracle's tokens in held-out demonstrations."""
    for world, run in runs.items():
        with torch.inference_mode():
            found = reply_logprobs(policy, with_pixels(held_out[world], codec))
        run.warmup.append((step, float(found.mean().exp())))
    said = "  ".join(f"{world} {run.warmup[-1][1]:.3f}" for world, run in runs.items())
    print(f"imitation {step:4d}  p(token) {said}  {cpu_seconds():.0f} s", flush=True)


# ---- GRPO


class Progress(TrainerCallback):
    """Prints a line after every optimizer step and keeps the figures of each world."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self.runs = runs
        self.trainer: EnvGRPOTrainer | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        """Record the figures of the trainer's last generation."""
        assert self.trainer is not None
        mismatch = self.trainer.mismatch
        for world, run in self.runs.items():
            played = [t for t in self.trainer.trajectories if t.env_id == env_id(world)]
            run.rewards.append(float(np.mean([t.reward for t in played if t.reward is not None])))
            run.mismatch.append((mismatch.largest, mismatch.mean))
        said = "  ".join(f"{world} {run.rewards[-1]:.3f}" for world, run in self.runs.items())
        print(
            f"GRPO {state.global_step:4d}  {said}  engine - trainer: max {mismatch.largest:.1e}  "
            f"{cpu_seconds():.0f} s",
            flush=True,
        )


def learn(
    policy: SmallModel, codec: ChatCodec, runs: Mapping[str, Run], options: argparse.Namespace
) -> None:
    """Train by GRPO on all worlds, and evaluate before and after."""
    # The engine has its own model, as on another machine.
    engine = TransformersEngine(copy.deepcopy(policy.model), policy.processor, seed=options.seed)
    progress = Progress(runs)
    trainer = make_trainer(policy, engine, codec, progress, options)
    progress.trainer = trainer
    try:
        trainer.sync_weights()
        for world, run in runs.items():
            run.start = evaluate(world, engine, codec, options, shown=("images",))
            print(f"before GRPO, {world}: {run.start}", flush=True)
        trainer.train()
        trainer.sync_weights()
        for world, run in runs.items():
            run.end = evaluate(world, engine, codec, options)
            print(f"after GRPO, {world}: {run.end}", flush=True)
    finally:
        trainer.close()
        asyncio.run(engine.aclose())


def make_trainer(
    policy: SmallModel,
    engine: TransformersEngine,
    codec: ChatCodec,
    progress: Progress,
    options: argparse.Namespace,
) -> EnvGRPOTrainer:
    """Return the trainer; every step has prompts of all worlds."""
    requests = [
        EpisodeRequest(
            env_id=env_id(tuple(WORLDS)[number % len(WORLDS)]),
            env_kwargs=ENV,
            seed=derive_seed("train", options.seed, number),
        )
        for number in range(options.steps * options.prompts)
    ]
    trainer = EnvGRPOTrainer(
        policy.model,
        engine=engine,
        codec=codec,
        config=rollouts(options.seed),
        args=grpo_config(options, max_completion=MAX_COMPLETION),
        processing_class=policy.processor,
        train_dataset=dataset_of(requests),
        callbacks=[progress],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def rollouts(seed: int) -> RolloutConfig:
    """Return settings that keep all images, as an episode must be one row."""
    return RolloutConfig(seed=seed, history="keep", sampling={"max_new_tokens": 16, "seed": seed})


# ---- evaluation and report


def evaluate(
    world: str,
    engine: Engine,
    codec: ChatCodec,
    options: argparse.Namespace,
    *,
    shown: Sequence[str] = ("images", "blank", "swapped"),
) -> dict[str, float]:
    """Return mean rewards on held-out tasks by the images shown, sampled at temperature 1."""
    make = partial(envkit.make, env_id(world), **ENV)
    factories: dict[str, Any] = {
        "images": make,
        "blank": lambda: BlankImage(make()),
        "swapped": lambda: SwapImage(make()),
    }
    config = rollouts(derive_seed("evaluation", options.seed))

    async def play(factory: Any) -> float:  # noqa: ANN401
        found = collect(factory, engine, codec, episodes=options.evaluate, config=config)
        return float(np.mean([t.reward async for t in found if t.reward is not None]))

    return {name: asyncio.run(play(factories[name])) for name in shown}


def report(runs: Mapping[str, Run], options: argparse.Namespace) -> None:
    """Write the figures and the image."""
    options.out.mkdir(parents=True, exist_ok=True)
    for world, run in runs.items():
        path = options.out / f"visual-{world}.json"
        path.write_text(json.dumps(run.as_json(), indent=1) + "\n", encoding="utf-8")
    draw_runs(options.out, "visual")
    run = runs["lights"]
    minutes = f"{run.seconds / 60:.1f} minutes, {run.cpu_seconds / 60:.1f} of CPU time"
    print(f"{minutes}; wrote {options.out}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
