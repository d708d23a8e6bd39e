"""TRL's real GRPOTrainer below envkit's subclass, with a tiny Qwen2.5-VL, for contract tests."""

import asyncio
import copy
import dataclasses
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import (  # pyright: ignore[reportMissingImports]
    Dataset,
    disable_progress_bars,
)
from fakes.codecs import vision_codec
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from fakes.trl_run import grpo_arguments, spy_on_loss
from transformers import PrinterCallback

from envkit.env import Capabilities, Turn
from envkit.errors import EnvFault
from envkit.registration import register, registry
from envkit.rollout.config import RolloutConfig
from envkit.rollout.request import EpisodeRequest
from envkit.tasks import Task
from envkit_canary import CanaryEnv
from envkit_transformers.engine import TransformersEngine
from envkit_transformers.loading import load_model
from envkit_trl.trainer import EnvGRPOTrainer

CANARY: dict[str, Any] = {"turns": 3, "length": 1, "alphabet": "0123456789"}
CANARY_REQUEST = EpisodeRequest(env_id="canary-v0", env_kwargs=CANARY)


class FailingEnv(CanaryEnv):
    """Fails in the middle of tasks whose look is odd."""

    capabilities = Capabilities(thread_safe=True)

    def on_turn(self, response_text: str) -> Turn:
        if self.turn == 1 and self.task["look"] % 2:
            raise EnvFault("the backend is gone")
        return super().on_turn(response_text)


class FailsAtOnce(CanaryEnv):
    """Never starts."""

    capabilities = Capabilities(thread_safe=True)

    def on_reset(self, task: Task) -> Turn:
        raise EnvFault("there is no backend")


def prepare() -> None:
    """Register the environments; one thread and no progress bars."""
    disable_progress_bars()
    torch.set_num_threads(1)
    register_toys()
    for name, made in (
        ("canary-v0", CanaryEnv),
        ("toy-failing-v0", FailingEnv),
        ("toy-fails-at-once-v0", FailsAtOnce),
    ):
        if name not in registry():
            register(name, entry_point=made)


@dataclasses.dataclass
class Bench:
    """One trainer, what its loss got, and how to end it."""

    trainer: Any
    engine: Any
    model: Any
    losses: list[dict[str, Any]]

    def train(self) -> None:
        self.trainer.train()


@contextmanager
def benches(folder: Path) -> Generator[Callable[..., Bench]]:
    """Give a function that makes trainers of the tiny Qwen2.5-VL, and close them all."""
    made: list[Bench] = []

    def make(*requests: EpisodeRequest, **options: Any) -> Bench:
        made.append(_make_bench(folder, requests or (CANARY_REQUEST,) * 4, **options))
        return made[-1]

    yield make
    for one in made:
        one.trainer.close()
        asyncio.run(one.engine.aclose())


def _make_bench(
    folder: Path,
    requests: tuple[EpisodeRequest, ...],
    *,
    engine: Any = None,
    config: RolloutConfig | None = None,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Bench:
    """Return a trainer over the requests; `arguments` go to GRPOConfig, `options` to it."""
    model, parts = load_model(str(tiny_model_dir("qwen2_5_vl")), dtype="float32")
    sampler = engine or TransformersEngine(copy.deepcopy(model), parts)
    if len(requests) == 1:  # TRL drops a batch that it cannot fill
        requests *= 4
    rows = [
        {"prompt": [{"role": "user", "content": f"{n}"}], "envkit": request.to_column()}
        for n, request in enumerate(requests)
    ]
    given: dict[str, Any] = {"codec": vision_codec(), **(options or {})}
    trainer: Any = EnvGRPOTrainer(
        model,
        engine=sampler,
        config=config or RolloutConfig.from_mapping({"sampling": {"max_new_tokens": 6}}),
        args=grpo_arguments(folder, **arguments),
        train_dataset=Dataset.from_list(rows),
        **given,
    )
    trainer.remove_callback(PrinterCallback)
    losses = spy_on_loss(trainer)
    return Bench(trainer=trainer, engine=sampler, model=model, losses=losses)
