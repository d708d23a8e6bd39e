"""A policy learns through verl's real worker, advantages and update code, on a CPU."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from fakes.verl_engine import training_batch, training_worker
from fakes.verl_worker import Bench, Sample
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.workers.rollout.replica import TokenOutput

from envkit.env import Capabilities, Env, Turn
from envkit.registration import register, registry
from envkit.tasks import ListSource, Task

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
PROMPTS, GROUP, STEPS = 2, 16, 14


class LettersEnv(Env):
    """Two turns; a reply that begins with a letter earns half."""

    capabilities = Capabilities(thread_safe=True)

    def __init__(self) -> None:
        super().__init__(max_turns=2)
        self.tasks = ListSource([{"word": "one"}, {"word": "two"}])

    def on_reset(self, task: Task) -> Turn:
        return Turn(task["word"])

    def on_turn(self, response_text: str) -> Turn:
        is_right = response_text[:1].isascii() and response_text[:1].isalpha()
        return Turn("Again.", reward=0.5 * is_right, done=self.turn == 1)


class SamplingServer:
    """Samples with the weights that verl's engine trains."""

    def __init__(self, module: Any, stop_id: int) -> None:
        self.module, self.stop_id = module, stop_id
        self.draw = torch.Generator().manual_seed(0)

    @torch.no_grad()
    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        ids, logprobs = list(prompt_ids), list[float]()
        while len(logprobs) < sampling_params["max_tokens"]:
            scores = self.module(input_ids=torch.tensor([ids]), logits_to_keep=1).logits[0, -1]
            scores = scores.log_softmax(-1)
            chosen = int(torch.multinomial(scores.exp(), 1, generator=self.draw))
            ids.append(chosen)
            logprobs.append(float(scores[chosen]))
            if chosen == self.stop_id:
                break
        return TokenOutput(
            token_ids=ids[len(prompt_ids) :],
            log_probs=logprobs,
            stop_reason="completed",
            extra_fields={"global_steps": 0},
        )


def byte_model(folder: Path) -> Path:
    """Make a model of a few bytes: every token comes up often, so that a few steps teach it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def with_advantages(rows: list[dict[str, Any]]) -> list[dict[str, torch.Tensor]]:
    """Return rows with the advantages of verl's V1 trainer."""
    pad = torch.nn.utils.rnn.pad_sequence
    data = DataProto.from_single_dict({
        "response_mask": pad([row["response_mask"] for row in rows], batch_first=True),
        "token_level_rewards": pad([row["rm_scores"] for row in rows], batch_first=True),
        "uid": np.array([row["uid"] for row in rows], dtype=object),
    })  # fmt: skip
    out = compute_advantage_for_multi_trajectories(
        data, [row["key"] for row in rows], core_algos.AdvantageEstimator.GRPO
    )
    pairs = zip(rows, out.batch["advantages"], strict=True)
    return [
        {
            **row,
            "old_log_probs": row["rollout_log_probs"],
            "advantages": found[: len(row["responses"])],
        }
        for row, found in pairs
    ]


async def test_verl_policy_learns(bench: Callable[..., Bench], tmp_path: Path) -> None:
    if "toy-letters-v0" not in registry():
        register("toy-letters-v0", entry_point=LettersEnv)
    torch.manual_seed(0)
    engine = {"env_id": "toy-letters-v0", "draw_tasks": True, "sampling": {"max_new_tokens": 2}}
    model = byte_model(tmp_path / "model")
    made = bench("v1", None, loop={"envkit": engine}, model=model)
    trainer = training_worker(model, meeting=tmp_path / "meeting", lr=2e-2)
    server = SamplingServer(trainer.engine.module, made.worker.tokenizer.eos_token_id)
    replaced: Any = made.server
    replaced.generate = server.generate
    curve: list[float] = []
    for step in range(STEPS):
        made.queue.puts.clear()
        samples = [Sample(uid=f"{step}-{n}", index=n) for n in range(PROMPTS)]
        rows = (await made.run(samples, n=GROUP)).rows
        assert len(rows) == PROMPTS * GROUP
        curve.append(fmean(row["reward_score"] for row in rows))
        trainer.train_mini_batch(training_batch(with_advantages(rows), episodes=len(rows)))
    assert fmean(curve[-2:]) > fmean(curve[:2]) + 0.3, curve
