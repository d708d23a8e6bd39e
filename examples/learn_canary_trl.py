"""Train a vision-language model to read digits off images by GRPO on a CPU.

    python examples/learn_canary_trl.py --seed 0
    python examples/learn_canary_trl.py --half     # start GRPO immediately, on a half-trained model

A small Qwen2.5-VL with random weights is warmed up on trajectories of the oracle until it reads a
digit with probability 0.5, then trained by TRL's GRPOTrainer on two-turn `canary-v0` episodes: a
new image each turn, nothing in the text. The embedded engine samples with the weights of the last
optimizer step; its log-probabilities are compared with the trainer's at every step. At the end the
policy is evaluated with the right images, blank ones, and those of another task.

Needs: pip install 'envkit-rl[transformers,trl]'
"""

import argparse
import asyncio
import copy
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Final

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from canary_model import SmallModel
from canary_run import (
    CHANCE,
    ENV,
    ENV_ID,
    GROUP,
    check_quick,
    evaluate,
    make_policy,
    parse_options,
    report,
    warm_up,
)
from curves import Run
from datasets import Dataset, disable_progress_bars
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig

from envkit.rollout import RolloutConfig
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec
from envkit_transformers import TransformersEngine
from envkit_trl.trainer import EnvGRPOTrainer

MAX_COMPLETION: Final = 96
"""Maximum tokens of an episode after its prompt; two replies and an observation are about 50."""


def main() -> int:
    """Run warm-up, GRPO and evaluation; returns the exit status."""
    options = parse_options((__doc__ or "").split("\n\n")[0])
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    disable_progress_bars()
    started = time.monotonic()
    policy = make_policy(options)
    codec = policy.codec()
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
    report(run, options)
    return status if status or not options.quick else check_quick(run)


# ---- GRPO


class Progress(TrainerCallback):
    """Prints a line after every optimizer step and keeps the figures."""

    def __init__(self, run: Run, steps: int) -> None:
        self.run, self.steps = run, steps
        self.trainer: EnvGRPOTrainer | None = None
        self._last = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        """Record the figures of the trainer's last generation."""
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
    # The engine has its own model, as on another machine.
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


def grpo_config(options: argparse.Namespace, *, max_completion: int) -> GRPOConfig:
    """Return the trainer's settings for a small model on a CPU."""
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="envkit-learn-"),
        per_device_train_batch_size=options.prompts * GROUP,
        num_generations=GROUP,
        max_completion_length=max_completion,
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


def dataset_of(requests: Sequence[EpisodeRequest]) -> Dataset:
    """Return the trainer's dataset; the environments write the prompts."""
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": request.env_id}],
                ENVKIT_COLUMN: request.to_column(),
            }
            for request in requests
        ]
    )


def make_trainer(
    policy: SmallModel,
    engine: TransformersEngine,
    codec: ChatCodec,
    progress: Progress,
    options: argparse.Namespace,
) -> EnvGRPOTrainer:
    """Return the trainer with its settings."""
    seeds = [derive_seed("train", options.seed, n) for n in range(options.steps * options.prompts)]
    requests = [EpisodeRequest(env_id=ENV_ID, env_kwargs=ENV, seed=seed) for seed in seeds]
    trainer = EnvGRPOTrainer(
        policy.model,
        engine=engine,
        codec=codec,
        config=RolloutConfig(seed=options.seed, sampling={"max_new_tokens": 8}),
        args=grpo_config(options, max_completion=MAX_COMPLETION),
        turn_discount=0.0,  # no image depends on an earlier reply
        processing_class=policy.processor,
        train_dataset=dataset_of(requests),
        callbacks=[progress],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


if __name__ == "__main__":
    sys.exit(main())
