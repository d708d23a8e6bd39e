# ruff: noqa: ANN401  # TRL and transformers pass anything
"""Train the built-in model behind a browser-use agent with TRL's GRPO, on a CPU.

    python examples/train_browser_use.py --steps 3

Each episode is a process with its own Chromium (Debian: apt install chromium); its screenshot of
the page reaches the model through the gateway. The model is far too small for browser-use's JSON,
so the reward is the share of digits in its reply. At the end, the script compares what was trained
with what the engine sampled, and the recorded screenshots with those that the engine got.

Needs: pip install 'envkit-rl[transformers,trl]' browser-use
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from datasets import disable_progress_bars
from transformers import AutoModelForImageTextToText, PrinterCallback
from trl import GRPOConfig

from envkit.rollout import RolloutConfig
from envkit.rollout.engine import GenerateRequest, Generation
from envkit.tokens import load_codec
from envkit.trajectory import SegmentKind, Trajectory
from envkit_transformers import TransformersEngine, builtin_model_dir, create_engine
from envkit_trl import EnvGRPOTrainer, task_dataset

AGENT = Path(__file__).with_name("browser_agent.py").resolve()
GROUP = 4


def watch(engine: TransformersEngine) -> list[tuple[GenerateRequest, Generation]]:
    """Return a list to which the engine adds everything that it is asked and answers."""
    seen: list[tuple[GenerateRequest, Generation]] = []
    generate = engine.generate

    async def generate_and_note(request: GenerateRequest) -> Generation:
        found = await generate(request)
        seen.append((request, found))
        return found

    engine.generate = generate_and_note  # type: ignore[method-assign]
    return seen


def check(
    trajectory: Trajectory, seen: list[tuple[GenerateRequest, Generation]], trained: list[list[int]]
) -> None:
    """Check an episode: what was trained is what was sampled, from the screenshots it shows."""
    (row,) = trajectory.steps(merge=True)
    for segment in row.segments:
        if segment.kind is SegmentKind.MODEL:
            (request, reply) = next(
                pair for pair in seen if tuple(pair[1].token_ids) == segment.wire_ids
            )
            assert [one.sha256 for one in request.images] == [one.sha256 for one in row.images]
            assert tuple(reply.logprobs) == segment.logprobs
    sampled = [i for i, mask in zip(row.response_ids, row.loss_mask, strict=True) if mask]
    assert sampled in trained
    assert len(row.images) >= 1, "no screenshot reached the model"


def main() -> None:
    """Train and check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--agent-python", default=sys.executable, help="Python with browser-use")
    options = parser.parse_args()
    torch.manual_seed(0)
    disable_progress_bars()
    folder = str(builtin_model_dir("builtin-half"))
    codec, engine = load_codec(folder), create_engine(folder, dtype="float32", seed=0)
    seen, trained = watch(engine), list[list[int]]()
    config = RolloutConfig.from_mapping(
        {
            "agent": {"command": [options.agent_python, str(AGENT)], "timeout_s": 300},
            "env_kwargs": {"turns": 1, "length": 1, "alphabet": "0123456789"},
            "sampling": {"max_new_tokens": 32},
        }
    )

    def digits(completion_ids: list[list[int]], **_: Any) -> list[float]:
        """Return the share of digits in each reply."""
        texts = [codec.decode(ids) for ids in completion_ids]
        return [sum(one.isdigit() for one in text) / max(1, len(text)) for text in texts]

    trainer = EnvGRPOTrainer(
        AutoModelForImageTextToText.from_pretrained(folder, dtype="float32"),
        engine=engine,
        codec=codec,
        config=config,
        reward_funcs=[digits],
        train_dataset=task_dataset(
            "canary-v0", count=options.steps, seed=0, env_kwargs=config.env_kwargs
        ),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=GROUP,
            num_generations=GROUP,
            max_completion_length=96,
            max_steps=options.steps,
            learning_rate=5e-4,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
        ),
    )
    trainer.remove_callback(PrinterCallback)
    compute = trainer.compute_loss

    def compute_loss(model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
        masks = (inputs["completion_mask"] * inputs["tool_mask"]).tolist()
        for ids, mask in zip(inputs["completion_ids"].tolist(), masks, strict=True):
            trained.append([token for token, one in zip(ids, mask, strict=True) if one])
        for one in trainer.trajectories:
            check(one, seen, trained)
        advantages = [round(one, 2) for one in inputs["advantages"].tolist()]
        print(f"step {trainer.state.global_step + 1}: advantages {advantages}", flush=True)
        return compute(model, inputs, *rest, **named)

    trainer.compute_loss = compute_loss
    started = time.monotonic()
    trainer.train()
    episodes = options.steps * GROUP
    print(f"{episodes} episodes in {time.monotonic() - started:.0f} s")
    print(f"sampled {len(seen)}, trained {len(trained)}, mismatch {trainer.mismatch.largest:.0e}")
    trainer.close()
    asyncio.run(engine.aclose())


if __name__ == "__main__":
    main()
