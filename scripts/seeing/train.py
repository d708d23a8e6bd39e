"""Train the small model that the embedded engine ships.

    python scripts/seeing/train.py --out build/seeing

Supervised learning on replies of the oracles of `canary-v0` and `computer-use-v0`: first only
codes, then codes and two families of desktop tasks at level 1. The state is saved to OUT/state.pt
every few dozen steps; the same command resumes from it. OUT/model is the result, with weights
averaged over the last steps. OUT/half is a checkpoint that reads single digits with probability one
half. Uses one core, and part of a second one for the rows.
"""

import argparse
import copy
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from forward import logprobs, multiply_patches
from policy import CODES, DESKTOP, FAMILIES, SHORT_CODES, make_policy, save_policy, write_run
from rows import GROUPS, Chunk, Example, RowMaker, worker_chunk, worker_pool

from envkit.seeds import derive_seed

_WARM_UP: Final = 30
_REPEATS: Final = 3
"""Number of times each row is trained on."""
_AHEAD: Final = 2
"""Chunks prepared ahead."""
_AVERAGED: Final = 240
"""Number of last steps over which weights are averaged."""
_HALF: Final = 0.5
_AT_ONCE: Final = 4
"""Examples per pass; more do not fit a core's caches and take twice the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of training, up to some step."""

    until: int
    """Last step, from the beginning of the run."""
    families: Mapping[str, int]
    """Examples per step of each family of desktop tasks; none in the first stage."""
    batch: int
    """Codes per step."""
    rates: tuple[float, float]
    """Learning rate at the start and end of the stage; linear in between."""

    @property
    def steps_of_chunk(self) -> int:
        """Steps per chunk."""
        return _REPEATS * (GROUPS if self.families else 3 * GROUPS) // self.batch

    @property
    def episodes_of_chunk(self) -> dict[str, int]:
        """Episodes of each desktop family per chunk."""
        return {family: GROUPS * count // self.batch for family, count in self.families.items()}


_MOVE, _RESIZE = FAMILIES
_BOTH: Final[Mapping[str, int]] = {_MOVE: 4, _RESIZE: 4}
_MORE_RESIZE: Final[Mapping[str, int]] = {_MOVE: 2, _RESIZE: 8}
_MOSTLY_RESIZE: Final[Mapping[str, int]] = {_MOVE: 2, _RESIZE: 12}
STAGES: Final = (
    Stage(until=396, families={}, batch=16, rates=(1e-3, 1e-3)),
    Stage(until=2412, families=_BOTH, batch=4, rates=(1e-3, 1e-3)),
    Stage(until=5796, families=_BOTH, batch=4, rates=(1e-3, 3e-5)),
    Stage(until=5856, families=_MORE_RESIZE, batch=4, rates=(3e-5, 5e-4)),
    Stage(until=7800, families=_MORE_RESIZE, batch=4, rates=(5e-4, 2e-5)),
    Stage(until=7848, families=_MOSTLY_RESIZE, batch=2, rates=(2e-5, 6e-4)),
    Stage(until=9432, families=_MOSTLY_RESIZE, batch=2, rates=(6e-4, 1e-5)),
)
STEPS: Final = STAGES[-1].until


class Training:
    """Model, optimizer and everything else needed to resume a run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.set_num_threads(1)
        self.model, self.tokenizer = make_policy(options.seed)
        multiply_patches(self.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), weight_decay=0.01, betas=(0.9, 0.95)
        )
        self.step = 0
        self.average: dict[str, torch.Tensor] = {}
        self.averaged = 0
        self.seconds = 0.0
        self.has_half = False
        self.losses: list[float] = []
        """Losses of the parts, smoothed over about ten steps."""
        self.state = options.out / "state.pt"
        if self.state.exists():
            self._load()

    def _load(self) -> None:
        saved = torch.load(self.state, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.averaged, self.average = saved["step"], saved["averaged"], saved["average"]
        self.seconds, self.has_half = saved["seconds"], saved["has_half"]

    def save(self) -> None:
        """Write the state and the current model."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "average": self.average,
            "averaged": self.averaged,
            "seconds": self.seconds,
            "has_half": self.has_half,
        }
        torch.save(state, self.state.with_suffix(".new"))
        self.state.with_suffix(".new").replace(self.state)
        save_policy(self.options.out / "now", self.model, self.tokenizer, CODES | DESKTOP)

    def rate(self) -> float:
        """Return the learning rate of the current step."""
        begun = 0
        for stage in STAGES:
            if self.step < stage.until:
                share = (self.step - begun) / (stage.until - begun)
                first, last = stage.rates
                return min(1.0, (self.step + 1) / _WARM_UP) * (first + share * (last - first))
            begun = stage.until
        return STAGES[-1].rates[1]

    def learn(self, parts: Sequence[Sequence[Example]]) -> None:
        """Take a step on the mean loss of the parts."""
        begun = time.process_time()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.zero_grad()
        losses: list[float] = []
        for examples in parts:
            ordered = sorted(examples, key=lambda one: len(one.ids))
            tokens = sum(sum(one.mask) for one in examples)
            losses.append(0.0)
            for start in range(0, len(ordered), _AT_ONCE):
                loss = -self.logprobs(ordered[start : start + _AT_ONCE]).sum() / tokens
                (loss / len(parts)).backward()
                losses[-1] += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        if self.step > STEPS - _AVERAGED:
            self._add_to_average()
        if len(self.losses) != len(losses):
            self.losses = losses
        self.losses = [0.9 * a + 0.1 * b for a, b in zip(self.losses, losses, strict=True)]
        self.seconds += time.process_time() - begun

    def _add_to_average(self) -> None:
        self.averaged += 1
        for name, value in self.model.state_dict().items():
            if name not in self.average:
                self.average[name] = torch.zeros_like(value)
            self.average[name] += (value - self.average[name]) / self.averaged

    def logprobs(self, examples: Sequence[Example]) -> torch.Tensor:
        """Return the log-probabilities of the oracle's tokens, example by example, (N,)."""
        return logprobs(self.model, self.tokenizer.pad_token_id, examples)

    def finish(self) -> None:
        """Write the averaged model."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.average)
        save_policy(self.options.out / "model", model, self.tokenizer, CODES | DESKTOP)


def chunk_starts() -> list[tuple[int, Stage]]:
    """Return the first step and the stage of every chunk of the run."""
    starts: list[tuple[int, Stage]] = []
    step = 0
    while step < STEPS:
        stage = next(stage for stage in STAGES if step < stage.until)
        starts.append((step, stage))
        step += stage.steps_of_chunk
    return starts


def batches(chunk: Chunk, stage: Stage, rng: random.Random) -> Iterator[list[list[Example]]]:
    """Yield the parts of each step on a chunk: codes, and a mixture of the rest."""
    for _ in range(_REPEATS):
        for examples in chunk.values():
            rng.shuffle(examples)
        for number in range(len(chunk["canary"]) // stage.batch):
            codes, *rest = (
                chunk[kind][number * count : (number + 1) * count]
                for kind, count in {"canary": stage.batch, **stage.families}.items()
            )
            yield [codes, list(itertools.chain(*rest))] if rest else [codes]


def train(training: Training, pool: ProcessPoolExecutor) -> None:
    """Train to the last step, from the state's next chunk."""
    options = training.options
    plan = chunk_starts()
    ahead: dict[int, Future[Chunk]] = {}
    held_out = RowMaker(options.out / "now", options.seed).digits(48, derive_seed("held out", 0))
    for number, (start, stage) in enumerate(plan):
        if start < training.step:
            continue
        for later, (_, planned) in list(enumerate(plan))[number : number + 1 + _AHEAD]:
            if later not in ahead:
                ahead[later] = pool.submit(worker_chunk, later, planned.episodes_of_chunk)
        chunk = ahead.pop(number).result()
        rng = random.Random(derive_seed("order", options.seed, number))
        for parts in itertools.islice(batches(chunk, stage, rng), STEPS - training.step):
            training.learn(parts)
            if training.step % 20 == 0:
                _log(training)
                _look_for_half(training, held_out)
        training.save()
    training.finish()


def _log(training: Training) -> None:
    line: dict[str, Any] = {
        "step": training.step,
        "cpu": round(training.seconds),
        "rate": round(training.rate(), 6),
        "losses": [round(loss, 4) for loss in training.losses],
    }
    sys.stderr.write(json.dumps(line) + "\n")
    with (training.options.out / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def _look_for_half(training: Training, held_out: Sequence[Example]) -> None:
    """Write the half-trained model at the first check where it qualifies."""
    if training.has_half:
        return
    with torch.inference_mode():
        # A reply is a digit and the end of the turn; the digits are every second token.
        probability = float(training.logprobs(held_out)[::2].exp().mean())
    sys.stderr.write(f"step {training.step}: p(digit) {probability:.3f}\n")
    if probability >= _HALF:
        training.has_half = True
        save_policy(training.options.out / "half", training.model, training.tokenizer, SHORT_CODES)


def main() -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    training = Training(options)
    save_policy(options.out / "now", training.model, training.tokenizer, CODES | DESKTOP)
    write_run(options.out, script="scripts/seeing/train.py", seed=options.seed, steps=STEPS)
    with worker_pool(options.out / "now", options.seed) as pool:
        train(training, pool)
    return 0


if __name__ == "__main__":
    sys.exit(main())
