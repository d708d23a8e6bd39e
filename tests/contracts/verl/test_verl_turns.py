"""Advantages by turn in verl's V1 trainer, and a policy that learns through its real worker."""

import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from fakes.processes import run_python
from fakes.verl_checks import model_runs
from fakes.verl_engine import training_batch, training_worker
from fakes.verl_worker import Bench, Sample, composed
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.workers.rollout.replica import TokenOutput

from envkit.env import Capabilities, Env, Turn
from envkit.errors import ConfigurationError
from envkit.registration import register, registry
from envkit.rollout import EpisodeRequest
from envkit.tasks import ListSource, Task
from envkit_verl import advantages
from envkit_verl.settings import TURNS

Make = Callable[..., Bench]

ROOT = Path(__file__).resolve().parents[3]


def steps(**kwargs: Any) -> str:
    return EpisodeRequest(env_id="verl-steps-v0", env_kwargs=kwargs).to_column()


def by_turn(rows: list[dict[str, Any]], *, gamma: float, is_scaled: bool) -> list[list[float]]:
    """Return one advantage for each reply, from verl's own call of the estimator."""
    config = composed("unused", algorithm__gamma=gamma, algorithm__adv_estimator=TURNS).algorithm
    config.norm_adv_by_std_in_grpo = is_scaled
    pad = torch.nn.utils.rnn.pad_sequence
    data = DataProto.from_single_dict({
        "response_mask": pad([row["response_mask"] for row in rows], batch_first=True),
        "token_level_rewards": pad([row["rm_scores"] for row in rows], batch_first=True),
        "uid": np.array([row["uid"] for row in rows], dtype=object),
    })  # fmt: skip
    out = compute_advantage_for_multi_trajectories(
        data, [row["key"] for row in rows], TURNS, config=config
    )
    found: list[list[float]] = []
    for row, values in zip(rows, out.batch["advantages"], strict=True):
        assert not values[: len(row["responses"])][row["response_mask"] == 0].any()
        runs = [values[start:end] for start, end in model_runs(row["response_mask"].tolist())]
        assert all((run == run[0]).all() for run in runs)
        found.append([float(run[0]) for run in runs])
    return found


async def test_verl_turns_are_compared_with_the_same_turn_of_the_group(bench: Make) -> None:
    """Two of three turns are right in different places: an episode's own sum would be a tie."""
    replies = iter(["up", "no", "no", "up", "up", "up"])  # the two members take turns
    run = await bench("v1", lambda *_: next(replies)).run([Sample(envkit=steps())], n=2)
    rows = sorted(run.rows, key=lambda row: row["key"])
    assert [row["turn_scores"] for row in rows] == [[0.25, 0.0, 0.25], [0.0, 0.25, 0.25]]
    assert advantages.turn_estimator  # registered with verl by its import
    own = by_turn(rows, gamma=0.0, is_scaled=False)
    assert own == [[0.125, -0.125, 0.0], [-0.125, 0.125, 0.0]]
    summed = by_turn(rows, gamma=1.0, is_scaled=False)
    assert summed == [[0.0, -0.125, 0.0], [0.0, 0.125, 0.0]]
    scaled = by_turn(rows, gamma=0.0, is_scaled=True)
    assert scaled[0] == pytest.approx([0.5**0.5, -(0.5**0.5), 0.0], abs=1e-4)


async def test_verl_turns_of_padding_rows_count_nowhere(bench: Make) -> None:
    replies = iter(["up", "no"])
    made = bench("v1", lambda *_: next(replies))
    rows = (await made.run([Sample(envkit=steps(rounds=1))], n=2)).rows
    masked = dict(rows[0], response_mask=torch.zeros_like(rows[0]["response_mask"]), key="u0_9_0")
    found = by_turn([*rows, masked], gamma=1.0, is_scaled=False)
    assert sorted(found[:2]) == [[-0.125], [0.125]]


@pytest.mark.parametrize(
    ("version", "loop"), [("v0", {}), ("v1", {"rewards": "last"})], ids=["v0", "last"]
)
async def test_verl_turns_need_the_reward_of_each_turn(
    bench: Make, version: str, loop: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = bench(version, lambda *_: "up", loop=loop, algorithm__adv_estimator=TURNS)
    if version == "v0":
        with pytest.raises(ConfigurationError, match="use_v1=true"):
            await made.run([Sample(envkit=steps())])
    else:
        assert (await made.run([Sample(envkit=steps())])).rows == []
        assert "rewards: turns" in caplog.text


def test_verl_finds_the_estimator_by_its_plugin(tmp_path: Path) -> None:
    """verl loads the entry points `verl.plugins` of installed distributions when it is imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "envkit_rl-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: envkit-rl\nVersion: 0\n")
    (entry,) = project["entry-points"]["verl.plugins"].items()
    (folder / "entry_points.txt").write_text("[verl.plugins]\n{} = {}\n".format(*entry))
    code = (
        "import verl; from verl.trainer.ppo.core_algos import get_adv_estimator_fn; "
        f"print(get_adv_estimator_fn('{TURNS}').__module__)"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    printed = run_python("-W", "ignore", "-c", code, env={**os.environ, "PYTHONPATH": paths})
    assert printed.strip().endswith("envkit_verl.advantages")


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
