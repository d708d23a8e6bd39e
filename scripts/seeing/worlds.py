"""Train the shipped model further, on worlds of the collection `visual/...`.

    python scripts/seeing/worlds.py build/seeing --out build/worlds

Supervised learning on the oracles' replies at level 1, together with the codes and windows that the
model knows. It gets two more text layers and one more layer that sees, which first change nothing,
and tokens for the sentences of the worlds. The state is saved to OUT/state.pt; the same command
resumes from it. OUT/model is the result, with weights averaged over the last steps. Uses one core
with bfloat16 products, and part of a second one for the rows.
"""

import argparse
import copy
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from forward import batch_attention, logprobs, multiply_patches
from policy import CODES, DESKTOP, LEARNED, WORLDS, grow, save_policy, write_run
from rows import Chunk, Example, worker_mixture, worker_pool

from envkit.seeds import derive_seed

_KNOWN: Final = {"canary": 10, "move_window": 8, "resize_window": 18}
_SMALL: Final = {
    "visual/lights-v0 192": 24,
    "visual/tint-v0 192": 28,
    "visual/lake-v0 192": 36,
    "visual/fold-v0 192": 32,
    "visual/clock-v0 192": 32,
    "visual/count-v0 224": 36,
    "visual/pie-v0 288": 28,
}
"""Small pictures, which cost a third, for the worlds that need no more."""
_FIRST: Final = {
    "visual/lights-v0 192": 24,
    "visual/tint-v0 192": 40,
    "visual/lake-v0 192": 44,
    "visual/fold-v0 192": 40,
    "visual/clock-v0 192": 48,
    "visual/count-v0 224": 44,
}
STAGES: Final[Mapping[int, Mapping[str, int]]] = {
    0: _KNOWN | dict.fromkeys(WORLDS, 16),
    512: {"canary": 10, "move_window": 6, "resize_window": 14} | _SMALL | dict.fromkeys(WORLDS, 4),
    640: {"canary": 10, "move_window": 5, "resize_window": 12} | _FIRST,
    960: {
        "canary": 10,
        "move_window": 5,
        "resize_window": 12,
        "visual/lights-v0 192": 12,
        "visual/lights-v0": 10,
        "visual/lake-v0 192": 56,
        "visual/fold-v0 192": 44,
        "visual/clock-v0 192": 40,
        "visual/pegs-v0 192": 36,
        "visual/sudoku-v0 192": 36,
    },
    1200: {
        "canary": 16,
        "move_window": 10,
        "resize_window": 20,
        "visual/lights-v0": 14,
        "visual/clock-v0 192": 30,
        "visual/clock-v0": 12,
        "visual/fold-v0 192": 36,
        "visual/fold-v0": 10,
        "visual/pegs-v0 192": 36,
        "visual/pegs-v0": 10,
    },
    2080: {
        "canary": 24,
        "move_window": 20,
        "resize_window": 40,
        "visual/lights-v0": 20,
        "visual/clock-v0": 24,
        "visual/fold-v0": 24,
        "visual/pegs-v0": 24,
    },
    2800: {
        "canary": 20,
        "move_window": 16,
        "resize_window": 46,
        "visual/lights-v0": 14,
        "visual/clock-v0": 20,
        "visual/fold-v0": 56,
    },
    4096: {
        "canary": 16,
        "move_window": 18,
        "resize_window": 64,
        "visual/lights-v0": 12,
        "visual/clock-v0": 54,
        "visual/fold-v0": 20,
    },
    4800: {
        "canary": 12,
        "move_window": 12,
        "resize_window": 90,
        "visual/lights-v0": 10,
        "visual/clock-v0": 50,
        "visual/fold-v0": 16,
    },
}
"""First step -> rows of each kind per chunk."""
_RATE: Final = 1.5e-3
_WARM_UP: Final = 50
_CHUNK: Final = 16
"""Steps per chunk."""
_REPEATS: Final = 2
"""Number of times each row is trained on."""
_AHEAD: Final = 3
_AVERAGED: Final = 160
"""Number of last steps over which weights are averaged."""
_AT_ONCE: Final = 8
TRAINED_ON: Final = CODES | DESKTOP | LEARNED


class Training:
    """Model, optimizer and everything else needed to resume a run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.set_num_threads(1)
        self.model, self.tokenizer = grow(options.run / "model", options.seed)
        multiply_patches(self.model)
        batch_attention(self.model)
        self.optimizers = _optimizers(self.model)
        self.step, self.seconds = 0, 0.0
        self.average: dict[str, torch.Tensor] = {}
        self.losses: dict[str, float] = {}
        """Losses of the parts, smoothed over about twenty examples."""
        self.state = options.out / "state.pt"
        if self.state.exists():
            saved = torch.load(self.state, weights_only=True)
            self.model.load_state_dict(saved["model"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.step, self.seconds = saved["step"], saved["seconds"]
            self.average = saved["average"]

    def save(self, name: str) -> None:
        """Write the state, and the model to a folder of this name."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [one.state_dict() for one in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
            "average": self.average,
        }
        torch.save(state, self.state.with_suffix(".new"))
        self.state.with_suffix(".new").replace(self.state)
        model = copy.deepcopy(self.model)
        if self.average:
            model.load_state_dict(self.average)
        save_policy(self.options.out / name, model, self.tokenizer, TRAINED_ON)

    def rate(self) -> float:
        """Return the learning rate of the current step."""
        share = min(1.0, 2 * (1 - self.step / self.options.steps))  # constant, then to zero
        return min(1.0, (self.step + 1) / _WARM_UP) * _RATE * share

    def learn(self, batch: Sequence[tuple[str, Example]]) -> None:
        """Take a step on the mean loss of pairs of a kind and an example."""
        begun = time.process_time()
        for group in (group for one in self.optimizers for group in one.param_groups):
            group["lr"] = self.rate()
        self.model.zero_grad()
        ordered = sorted(batch, key=lambda pair: _size_of(pair[1]))
        for start in range(0, len(ordered), _AT_ONCE):
            together = [one for _, one in ordered[start : start + _AT_ONCE]]
            with torch.autocast("cpu", torch.bfloat16):
                values = logprobs(self.model, self.tokenizer.pad_token_id, together)
            pieces = values.split([sum(one.mask) for one in together])
            losses = torch.stack(
                [_loss(piece, one) for piece, one in zip(pieces, together, strict=True)]
            )
            (losses.sum() / len(batch)).backward()
            found: list[float] = losses.tolist()
            for (kind, _), loss in zip(ordered[start:], found, strict=False):
                self.losses[kind] = 0.95 * self.losses.get(kind, loss) + 0.05 * loss
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        first = self.options.steps - _AVERAGED + 1
        if self.step >= first:
            self._add_to_average(self.step - first)
        self.seconds += time.process_time() - begun

    def _add_to_average(self, before: int) -> None:
        """Add the weights to the mean over this many earlier steps, which starts anew at 0."""
        for name, value in self.model.state_dict().items():
            if not before:
                self.average[name] = torch.zeros_like(value)
            self.average[name] += (value - self.average[name]) / (before + 1)


def _optimizers(model: Any) -> tuple[torch.optim.Optimizer, ...]:  # noqa: ANN401  # a transformers model
    """Return Muon for the matrices of the layers, and AdamW for everything else."""
    inside = {
        name: one
        for name, one in model.named_parameters()
        if one.ndim == 2 and "norm" not in name and "embed" not in name and "lm_head" not in name
    }
    rest = [one for name, one in model.named_parameters() if name not in inside]
    muon = torch.optim.Muon(inside.values(), weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return muon, torch.optim.AdamW(rest, weight_decay=0.01, betas=(0.9, 0.95), fused=True)


def _size_of(example: Example) -> tuple[int, ...]:
    """Return what must be alike for examples to share products without much padding."""
    return *(len(one.tensors["pixel_values"]) for one in example.pictures), len(example.ids)


def _loss(logprobs: torch.Tensor, example: Example) -> torch.Tensor:
    """Return the mean loss of the answers, plus that of the description."""
    end = len(logprobs) - example.described
    loss = -logprobs[:end].mean()
    return loss - 2 * logprobs[end:].mean() if example.described else loss


def counts_of(number: int) -> Mapping[str, int]:
    """Return the rows of each kind in a chunk."""
    return STAGES[max(first for first in STAGES if first <= number * _CHUNK)]


def train(training: Training, pool: ProcessPoolExecutor) -> None:
    """Train to the last step, from the state's next chunk."""
    options = training.options
    ahead: dict[int, Future[Chunk]] = {}
    while training.step < options.steps:
        number = training.step // _CHUNK
        for later in range(number, number + 1 + _AHEAD):
            if later not in ahead:
                ahead[later] = pool.submit(worker_mixture, later, counts_of(later))
        chunk = ahead.pop(number).result()
        rng = random.Random(derive_seed("order", options.seed, number))
        pairs = [(kind, one) for kind, part in chunk.items() for one in part]
        pairs = [pair for _ in range(_REPEATS) for pair in rng.sample(pairs, len(pairs))]
        for place in range(_CHUNK):
            training.learn(pairs[place::_CHUNK])
        _log(training)
        if number % 4 == 3:
            training.save("now")
    training.save("model")


def _log(training: Training) -> None:
    line: dict[str, Any] = {
        "step": training.step,
        "cpu": round(training.seconds),
        "losses": {kind: round(loss, 3) for kind, loss in training.losses.items()},
    }
    sys.stderr.write(json.dumps(line) + "\n")
    with (training.options.out / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def main() -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", type=Path, help="--out of train.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of this run")
    parser.add_argument("--steps", type=int, default=5312)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    training = Training(options)
    training.save("now")
    first = json.loads((options.run / "run.json").read_text(encoding="utf-8"))
    settings = {"seed": options.seed, "steps": options.steps, "from": first}
    write_run(options.out, script="scripts/seeing/worlds.py", **settings)
    with worker_pool(options.out / "now", options.seed) as pool:
        train(training, pool)
    return 0


if __name__ == "__main__":
    sys.exit(main())
