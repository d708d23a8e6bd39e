"""A vision-language model learns to read digits off pictures, by GRPO, on a CPU.

    python examples/learn_canary_trl.py --seed 0

A small Qwen2.5-VL with random weights is warmed up on trajectories of the oracle until it reads a
digit with probability 0.5, then trained by TRL's GRPOTrainer on two-turn `canary-v0` episodes: a
new picture each turn, nothing in the text. The embedded engine samples with the weights of the last
optimizer step; its log-probabilities are compared with the trainer's at every step. In the end the
policy is evaluated with the pictures, with blank ones and with those of another task.

Needs: pip install 'envkit-rl[hf,trl]'
"""

import argparse
import asyncio
import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from canary_model import SmallModel, make_small_model
from curves import Run, draw_runs
from datasets import Dataset, disable_progress_bars
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig

import envkit
from envkit.rollout import RolloutConfig, ScriptedEngine, collect
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec, join_features
from envkit.trajectory import Row, whole_row
from envkit.wrappers import BlankImage, SwapImage
from envkit_transformers import TransformersEngine
from envkit_trl.trainer import EnvGRPOTrainer

ENV_ID: Final = "canary-v0"
ENV: Final[dict[str, Any]] = {"turns": 2, "length": 1, "alphabet": "0123456789"}
CHANCE: Final = 0.1
GROUP: Final = 4
MAX_COMPLETION: Final = 96
"""Tokens of an episode after its prompt: two replies and an observation are about 50."""


def main() -> int:
    """Run warm-up, GRPO and evaluation; returns the exit status."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    disable_progress_bars()
    started = time.monotonic()
    policy = make_small_model(options.seed)
    codec = ChatCodec(policy.processor)
    run = Run(seed=options.seed, parameters=policy.parameter_count, chance=CHANCE)
    print(f"{policy.parameter_count:,} parameters, seed {options.seed}", flush=True)
    status = 0
    try:
        warm_up(policy, codec, run, options)
        learn(policy, codec, run, options)
    except KeyboardInterrupt:
        print("interrupted: the curves so far are kept", flush=True)
        status = 130
    run.seconds, run.cpu_seconds = time.monotonic() - started, time.process_time()
    report(run, options.out)
    return status if status or not options.quick else check_quick(run)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=80, help="of GRPO")
    parser.add_argument("--warmup-steps", type=int, default=300, help="at most")
    parser.add_argument("--warmup-until", type=float, default=0.5, metavar="PROBABILITY")
    parser.add_argument("--prompts", type=int, default=32, help=f"a step, {GROUP} episodes each")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--evaluate", type=int, default=256, metavar="EPISODES")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="two steps, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.warmup_steps, options.prompts, options.evaluate = 2, 25, 8, 8
    return options


# ---- warm-up


def warm_up(policy: SmallModel, codec: ChatCodec, run: Run, options: argparse.Namespace) -> None:
    """Train on oracle trajectories until the held-out digits have the probability wanted."""
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
    """Return the rows of episodes that the environment's oracle played."""
    env: Any = envkit.make(ENV_ID, **ENV)
    engine = ScriptedEngine(codec, env.oracle())

    async def play() -> list[Row]:
        config = RolloutConfig(env_kwargs=ENV, seed=seed)
        found = collect(ENV_ID, engine, codec, episodes=episodes, config=config)
        # They come as they finish; a run is to be the same again.
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
    pictures = join_features(feature for row in rows for feature in row.features)
    logits = policy.model(
        input_ids=ids,
        attention_mask=attention,
        mm_token_type_ids=(ids == policy.model.config.image_token_id).long(),
        **{name: torch.from_numpy(array) for name, array in pictures.items()},
    ).logits
    chosen = mask[:, 1:]
    return logits[:, :-1][chosen].log_softmax(-1).gather(1, ids[:, 1:][chosen][:, None])[:, 0]


# ---- GRPO


class Progress(TrainerCallback):
    """Prints a line after every optimizer step and keeps the figures."""

    def __init__(self, run: Run, steps: int) -> None:
        self.run, self.steps = run, steps
        self.trainer: EnvGRPOTrainer | None = None
        self._last = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        """Read what the trainer's last generation was worth."""
        assert self.trainer is not None
        rewards = [t.reward for t in self.trainer.trajectories if t.reward is not None]
        mismatch = self.trainer.mismatch
        now = time.monotonic()
        self.run.rewards.append(float(np.mean(rewards)))
        self.run.mismatch.append((mismatch.largest, mismatch.mean))
        print(
            f"GRPO {state.global_step:4d}/{self.steps}  reward {self.run.rewards[-1]:.3f}  "
            f"engine - trainer: max {mismatch.largest:.1e} mean {mismatch.mean:.1e} "
            f"({mismatch.tokens} tokens)  {now - self._last:.1f} s",
            flush=True,
        )
        self._last = now


def learn(policy: SmallModel, codec: ChatCodec, run: Run, options: argparse.Namespace) -> None:
    """Train by GRPO and evaluate the policy before and after."""
    # The engine has a model of its own, as it would on another machine.
    engine = TransformersEngine(copy.deepcopy(policy.model), policy.processor, seed=options.seed)
    progress = Progress(run, options.steps)
    trainer = make_trainer(policy, engine, codec, progress, options)
    progress.trainer = trainer
    before = [parameter.detach().clone() for parameter in policy.model.parameters()]
    try:
        trainer.sync_weights()
        run.start = evaluate(engine, codec, options)
        print(f"before GRPO: {run.start['images']:.3f} with images", flush=True)
        trainer.train()
        trainer.sync_weights()
        run.end = evaluate(engine, codec, options, ablations=True)
    finally:
        trainer.close()
        asyncio.run(engine.aclose())
        after = policy.model.parameters()
        run.changed = sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        run.tensors = len(before)


def make_trainer(
    policy: SmallModel,
    engine: TransformersEngine,
    codec: ChatCodec,
    progress: Progress,
    options: argparse.Namespace,
) -> EnvGRPOTrainer:
    """Return the trainer of all of this."""
    batch = options.prompts * GROUP
    seeds = [derive_seed("train", options.seed, n) for n in range(options.steps * options.prompts)]
    requests = [EpisodeRequest(env_id=ENV_ID, env_kwargs=ENV, seed=seed) for seed in seeds]
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="learn-canary-"),
        per_device_train_batch_size=batch,
        num_generations=GROUP,
        max_completion_length=MAX_COMPLETION,
        max_steps=options.steps,
        learning_rate=options.learning_rate,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": 2 * options.steps // 3},
        warmup_steps=min(10, options.steps // 3),
        adam_beta2=0.95,
        beta=0.0,
        temperature=1.0,
        seed=options.seed,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = EnvGRPOTrainer(
        policy.model,
        engine=engine,
        codec=codec,
        config=RolloutConfig(seed=options.seed, sampling={"max_new_tokens": 8}),
        args=args,
        turn_discount=0.0,  # no picture depends on an earlier reply
        processing_class=policy.processor,
        train_dataset=Dataset.from_list(
            [
                {
                    "prompt": [{"role": "user", "content": ENV_ID}],
                    ENVKIT_COLUMN: request.to_column(),
                }
                for request in requests
            ]
        ),
        callbacks=[progress],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


# ---- evaluation and report


def evaluate(
    engine: TransformersEngine,
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


def report(run: Run, out: Path) -> None:
    """Write the figures and the picture, and print the outcome."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"canary-seed{run.seed}.json"
    path.write_text(json.dumps(run.as_json(), indent=1) + "\n", encoding="utf-8")
    draw_runs(out)
    for name, value in run.end.items():
        print(f"after GRPO: {value:.3f} with {name}", flush=True)
    if run.mismatch:
        print(f"largest log-probability difference: {max(m for m, _ in run.mismatch):.1e}")
    minutes = f"{run.seconds / 60:.1f} minutes, {run.cpu_seconds / 60:.1f} of CPU time"
    print(f"{minutes}; wrote {path}", flush=True)


def check_quick(run: Run) -> int:
    """Say whether the short run did everything the long one does."""
    is_fine = (
        len(run.rewards) == 2
        and run.changed == run.tensors
        and all(largest < 1e-4 for largest, _ in run.mismatch)
        and set(run.end) == {"images", "blank", "swapped"}
    )
    print("quick run: fine" if is_fine else f"quick run: FAILED, {run.as_json()}")
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
