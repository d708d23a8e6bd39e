"""Compare the embedded engine's speed on multi-turn conversations with `model.generate`.

The same conversations are played three times with the same model and number of sampled tokens per
turn: by the engine (cache kept between turns, all sessions in one forward), by `model.generate`
over all conversations at once (left-padded, whole history each turn), and by `model.generate` one
conversation at a time. Only compare ratios from a single run. On a shared machine, CPU seconds are
steadier; both are printed. Goals: twice as fast as batched, five times as fast as one by one.
"""

import asyncio
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from harness import run, sized

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from envkit.rollout.engine import GenerateRequest, Sampling
from envkit_transformers import TransformersEngine, builtin_model_dir
from envkit_transformers.dependencies import quiet_transformers
from envkit_transformers.loading import load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload.

    By default a prompt of 1,024 tokens (instructions, tools, images, the question), shared by the
    members of a group, and short observations. Unshared or short prompts leave the engine less to
    save: `--group 1 --prompt-tokens 512`.
    """

    conversations: int
    group: int
    """Conversations with the same prompt; they differ from the first reply on."""
    turns: int
    prompt_tokens: int
    observation_tokens: int
    reply_tokens: int

    @property
    def sampled(self) -> int:
        """Tokens that each method samples."""
        return self.conversations * self.turns * self.reply_tokens

    def new_tokens(self, conversation: int, turn: int) -> list[int]:
        """Return the environment's text before a turn, of slightly varying length."""
        owner = conversation // self.group if turn == 0 else conversation
        count = (self.prompt_tokens if turn == 0 else self.observation_tokens) + owner
        start = 1000 + 997 * owner + 131 * turn
        return [start + 7 * i % 9000 for i in range(count)]


WARM_UP: Final = Workload(
    conversations=2, group=1, turns=1, prompt_tokens=16, observation_tokens=8, reply_tokens=2
)


async def play_engine(engine: TransformersEngine, load: Workload) -> None:
    """Play every conversation as its own task."""

    async def converse(number: int) -> None:
        wire: list[int] = []
        for turn in range(load.turns):
            wire += load.new_tokens(number, turn)
            generation = await engine.generate(
                GenerateRequest(
                    request_id=f"{number:04d}-{turn:04d}",
                    session_id=f"{number:04d}",
                    wire_ids=list(wire),
                    images=(),
                    train_length=len(wire),
                    sampling=Sampling(max_new_tokens=load.reply_tokens, stop_ids=(-1,)),
                )
            )
            wire += generation.token_ids
        await engine.end_session(f"{number:04d}")

    await asyncio.gather(*(converse(number) for number in range(load.conversations)))


def play_generate(model: Any, load: Workload, *, batched: bool) -> None:  # noqa: ANN401
    """Play with the model's own generate, the whole history as prompt in every turn."""
    if batched:
        _play_rows(model, load, list(range(load.conversations)))
        return
    for number in range(load.conversations):
        _play_rows(model, load, [number])


def _play_rows(model: Any, load: Workload, numbers: list[int]) -> None:  # noqa: ANN401
    histories: dict[int, list[int]] = {number: [] for number in numbers}
    for turn in range(load.turns):
        for number, history in histories.items():
            history += load.new_tokens(number, turn)
        width = max(len(history) for history in histories.values())
        rows = [[0] * (width - len(history)) + history for history in histories.values()]
        masks = [
            [0] * (width - len(history)) + [1] * len(history) for history in histories.values()
        ]
        with torch.inference_mode():
            output = model.generate(
                input_ids=torch.tensor(rows, device=model.device),
                attention_mask=torch.tensor(masks, device=model.device),
                max_new_tokens=load.reply_tokens,
                min_new_tokens=load.reply_tokens,
                do_sample=True,
                top_k=0,
            )
        for history, row in zip(histories.values(), output[:, width:].tolist(), strict=True):
            history += row


class Stopwatch:
    """Keeps each method's best round, in wall and CPU seconds."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def round(self, name: str) -> Generator[None]:
        """Time one round."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.wall[name] = min(wall, self.wall.get(name, wall))
        self.cpu[name] = min(cpu, self.cpu.get(name, cpu))


async def engine_rounds(model: Any, load: Workload, watch: Stopwatch, rounds: int) -> None:  # noqa: ANN401
    """Measure the embedded engine, excluding startup."""
    engine = TransformersEngine(model)
    await play_engine(engine, WARM_UP)
    for _ in range(rounds):
        with watch.round("engine"):
            await play_engine(engine, load)
    await engine.aclose()


def measure(
    model: str | None, dtype: str, threads: int, rounds: int, **sizes: int
) -> dict[str, Any]:
    """Measure the three methods and return the figures."""
    torch.set_num_threads(threads)
    load = Workload(**sizes)
    model_name = model or str(builtin_model_dir("builtin-text", print))
    with quiet_transformers():
        loaded, _ = load_model(model_name, dtype=dtype)
    watch = Stopwatch()
    asyncio.run(engine_rounds(loaded, load, watch, rounds))
    for name, batched in (("batched", True), ("one_by_one", False)):
        play_generate(loaded, WARM_UP, batched=batched)
        for _ in range(rounds):
            with watch.round(name):
                play_generate(loaded, load, batched=batched)
    return {
        "model": Path(model_name).name,
        "workload": asdict(load),
        "dtype": str(loaded.dtype),
        "threads": torch.get_num_threads(),
        "seconds": watch.wall,
        "cpu_seconds": watch.cpu,
        "tokens_per_second": {name: load.sampled / value for name, value in watch.wall.items()},
        "speedup": {
            f"{clock}_vs_{name}": times[name] / times["engine"]
            for clock, times in (("wall", watch.wall), ("cpu", watch.cpu))
            for name in ("batched", "one_by_one")
        },
    }


if __name__ == "__main__":
    run(
        measure,
        model={"help": "folder or hub name (default: the built-in model)"},
        dtype={"default": "auto", "help": "auto, float32, bfloat16 or float16"},
        threads=1,
        conversations=sized(8, 2),
        group=sized(4, 1, "conversations that share a prompt"),
        turns=sized(6, 1),
        prompt_tokens=sized(1024, 64),
        observation_tokens=sized(32, 16),
        reply_tokens=sized(32, 4),
        rounds={"default": 1, "help": "rounds; the best one counts"},
    )
