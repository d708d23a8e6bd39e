"""`make_rollout_func` under TRL's real GRPOTrainer: text episodes, real optimizer steps."""

import itertools
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from datasets import Dataset
from fakes.trl_run import byte_tokenizer, changed_tensors, grpo_trainer, parameters, spy_on_loss

from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, EngineFault, RunFailedError
from envkit.rollout import EpisodeRequest, ScriptedEngine
from envkit.tokens import ChatCodec
from envkit.trajectory import StopReason
from envkit_trl import (
    DiskWeightTransfer,
    EnvRollout,
    env_reward,
    make_rollout_func,
    request_dataset,
    task_dataset,
)
from envkit_trl.batch import BatchPlayer
from envkit_trl.contract import CONTRACT

SHORT = {"sampling": {"max_new_tokens": 6}}


class Bench:
    """A trainer with a rollout function, and what passed between them."""

    def __init__(self, folder: Path, dataset: Any, rollout: EnvRollout, **options: Any) -> None:
        self.rollout = rollout
        self.calls: list[tuple[list[Any], dict[str, list[Any]]]] = []
        self.trainer = grpo_trainer(
            folder,
            dataset,
            reward_funcs=options.pop("reward_funcs", env_reward),
            rollout_func=self._recorded,
            **options,
        )
        self.losses = spy_on_loss(self.trainer)

    def _recorded(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        columns = self.rollout(prompts, trainer)
        self.calls.append((prompts, columns))
        return columns

    def train(self) -> dict[str, list[Any]]:
        """Train and return the first call's columns."""
        self.trainer.train()
        return self.calls[0][1]


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[MakeBench]:
    """Make benches; they are closed after the test."""
    made: list[Bench] = []

    def make(
        env_id: str = "toy-letters-v0",
        *,
        dataset: Any = None,
        config: dict[str, Any] | None = None,
        rollout: EnvRollout | None = None,
        **options: Any,
    ) -> Bench:
        function = rollout or make_rollout_func({**SHORT, **(config or {})})
        rows = task_dataset(env_id) if dataset is None else dataset
        made.append(Bench(tmp_path, rows, function, **options))
        return made[-1]

    yield make
    for one in made:
        one.rollout.close()


def _scripted(policy: Callable[[PolicyContext], str]) -> ScriptedEngine:
    return ScriptedEngine(ChatCodec(byte_tokenizer()), policy)


async def _no_weights(model: Any, version: str) -> None:
    del model, version


def test_trl_must_hold_11_version_is_the_one_that_was_read() -> None:
    assert version("trl") == CONTRACT.tested
    assert not CONTRACT.moved()


def test_trl_must_hold_1_one_row_for_each_prompt_in_the_order_given(bench: MakeBench) -> None:
    """Members of a group share the seed and sample for themselves."""
    made = bench()
    columns = made.train()
    prompts = made.calls[0][0]
    names = [trajectory.task["name"] for trajectory in made.rollout.trajectories]
    asked = [EpisodeRequest.from_column(prompt[-1]["content"]).task for prompt in prompts]
    assert [task and task["name"] for task in asked] == names == ["ann", "ann", "bob", "bob"]
    assert {len(column) for column in columns.values()} == {4}
    seeds = [trajectory.seed for trajectory in made.rollout.trajectories]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert columns["completion_ids"][0] != columns["completion_ids"][1]


def test_trl_must_hold_2_and_3_columns_have_one_length_and_end_with_a_sampled_token(
    bench: MakeBench,
) -> None:
    made = bench()
    columns = made.train()
    for ids, mask, logprobs in zip(
        columns["completion_ids"], columns["env_mask"], columns["logprobs"], strict=True
    ):
        assert len(ids) == len(mask) == len(logprobs)
        assert set(mask) == {0, 1}
        assert all(logprob == 0.0 for logprob, bit in zip(logprobs, mask, strict=True) if not bit)
    trained = (made.losses[0]["completion_mask"] * made.losses[0]["tool_mask"]).sum(1)
    assert sorted(trained.tolist()) == sorted(sum(mask) for mask in columns["env_mask"])
    assert all(columns["completion_ids"])
    assert [mask[-1] for mask in columns["env_mask"]] == [1, 1, 1, 1]


def test_trl_must_hold_4_completions_are_capped_at_the_trainers_length(bench: MakeBench) -> None:
    made = bench(
        dataset=request_dataset(
            [EpisodeRequest(env_id="toy-letters-v0", env_kwargs={"max_turns": 50}, seed=n)
             for n in range(4)]
        ),
        arguments={"max_completion_length": 100},
    )  # fmt: skip
    columns = made.train()
    assert max(len(ids) for ids in columns["completion_ids"]) <= 100
    reasons = {trajectory.stop_reason for trajectory in made.rollout.trajectories}
    assert reasons == {StopReason.RESPONSE_TOKENS}


def test_trl_must_hold_5_a_failed_rollout_is_an_unscored_end_token(bench: MakeBench) -> None:
    numbers = itertools.count()  # every reply has another reward, and none is cut
    rollout = make_rollout_func(
        {"seed": 1, "sampling": {"max_new_tokens": 32}},
        engine=_scripted(lambda _: "a" + "1" * next(numbers)),
        send_weights=_no_weights,
    )
    made = bench("toy-flaky-letters-v0", rollout=rollout)
    columns = made.train()
    end = made.trainer.eos_token_ids[0]
    assert columns["completion_ids"][2:] == [[end], [end]]
    assert columns["env_mask"][2:] == [[0], [0]]
    assert columns["logprobs"][2:] == [[0.0], [0.0]]
    assert columns["env_reward"][2:] == [None, None]
    assert columns["env_stop"][2:] == ["env_fault", "env_fault"]
    assert sorted((made.losses[0]["advantages"] == 0).tolist()) == [False, False, True, True]
    logged = [entry["envkit/faults"] for entry in made.trainer.state.log_history
              if "envkit/faults" in entry]  # fmt: skip
    assert logged == [2.0]


def test_trl_must_hold_5_a_fault_is_left_out_of_its_groups_baseline(bench: MakeBench) -> None:
    made = bench(
        "toy-unlucky-letters-v0",
        dataset=request_dataset([EpisodeRequest(env_id="toy-unlucky-letters-v0", seed=3)] * 4),
        arguments={
            "per_device_train_batch_size": 8,
            "num_generations": 8,
            "scale_rewards": "none",
        },
    )
    columns = made.train()
    rewards = columns["env_reward"]
    scored = [reward for reward in rewards if reward is not None]
    assert 0 < len(scored) < 8
    mean = sum(scored) / len(scored)
    expected = [0.0 if reward is None else reward - mean for reward in rewards]
    found = made.losses[0]["advantages"].flatten().tolist()
    assert sorted(found) == pytest.approx(sorted(expected), abs=1e-5)


def test_trl_must_hold_6_every_extra_column_has_one_entry_for_each_prompt(
    bench: MakeBench,
) -> None:
    seen: dict[str, Any] = {}

    def reward(env_reward: list[float], **others: Any) -> list[float]:
        seen.update(others)
        return env_reward

    # Random replies are cut, and the observation that says so is long.
    made = bench(reward_funcs=reward, arguments={"max_completion_length": 1024})
    columns = made.train()
    assert all(isinstance(column, list) and len(column) == 4 for column in columns.values())
    assert seen["env_stop"] == columns["env_stop"]
    assert seen["env_turns"] == [3, 3, 3, 3]


def test_trl_must_hold_7_images_are_refused_instead_of_lost(bench: MakeBench) -> None:
    """Images go through the trainer subclass; TRL would drop them here without a word."""
    request = EpisodeRequest(env_id="toy-dots-v0", seed=1)
    codec = ChatCodec(byte_tokenizer())
    made = bench(
        dataset=request_dataset([request] * 4),
        rollout=make_rollout_func(
            SHORT, engine=_scripted(lambda _: "1"), send_weights=_no_weights, codec=codec
        ),
    )
    with pytest.raises(Exception, match=r"image|picture"):
        made.train()


def test_trl_steps_train_and_sample_with_the_weights_of_each_step(bench: MakeBench) -> None:
    made = bench(arguments={"max_steps": 3})
    before = parameters(made.trainer.model)
    differences: list[float] = []
    trainer: Any = made.trainer
    compute = trainer._compute_loss

    def compare(model: Any, inputs: dict[str, Any]) -> Any:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].shape[1]
        model.eval()
        with torch.no_grad():
            own = trainer._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
        model.train()
        trained = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        columns = made.calls[-1][1]
        ids_of_rows = map(tuple, columns["completion_ids"])
        sampled = dict(zip(ids_of_rows, columns["logprobs"], strict=True))  # TRL shuffles the rows
        for row, present in enumerate(inputs["completion_mask"].bool()):
            key = tuple(inputs["completion_ids"][row][present].tolist())
            theirs, bits = own[row][present], trained[row][present]
            differences.append(float((theirs - torch.tensor(sampled[key])).abs()[bits].max()))
        return compute(model, inputs)

    trainer._compute_loss = compare
    made.train()
    assert trainer.state.global_step == 3
    assert changed_tensors(before, trainer.model) == len(before)
    assert len(differences) == 12
    assert max(differences) < 1e-4
    versions = {
        segment.weight_version
        for trajectory in made.rollout.trajectories
        for segment in trajectory.segments
        if segment.logprobs and any(segment.loss_mask)
    }
    assert versions == {"2"}


def test_trl_model_is_in_training_mode_after_a_rollout(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = bench()
    modes: list[bool] = []
    play = BatchPlayer._play

    async def spy(*arguments: Any) -> Any:
        modes.append(made.trainer.model.training)
        return await play(*arguments)

    monkeypatch.setattr(BatchPlayer, "_play", spy)
    made.train()
    assert modes == [False]
    assert made.trainer.model.training


def test_trl_request_is_found_by_the_opening_as_well(bench: MakeBench) -> None:
    made = bench(dataset=task_dataset("toy-letters-v0", style="opening"))
    made.train()
    prompts = [prompt[-1]["content"] for prompt in made.calls[0][0]]
    names = [trajectory.task["name"] for trajectory in made.rollout.trajectories]
    assert prompts == [f"Hello {name}." for name in names]


def test_trl_configured_environment_needs_no_column(bench: MakeBench) -> None:
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": "go"}]] * 4})
    made = bench(dataset=dataset, config={"env_id": "toy-letters-v0"})
    made.train()
    groups = [trajectory.seed for trajectory in made.rollout.trajectories]
    assert groups[0] == groups[1] != groups[2]


def test_trl_one_prompt_for_two_requests_is_an_error(bench: MakeBench) -> None:
    rows = [
        {
            "prompt": [{"role": "user", "content": "go"}],
            "envkit": EpisodeRequest(env_id="toy-letters-v0", seed=seed).to_column(),
        }
        for seed in range(4)
    ]
    with pytest.raises(ConfigurationError, match="the same prompt but different requests"):
        bench(dataset=Dataset.from_list(rows)).train()


def test_trl_streamed_dataset_needs_its_rows_named(bench: MakeBench) -> None:
    dataset = task_dataset("toy-letters-v0")
    with pytest.raises(ConfigurationError, match="streamed"):
        bench(dataset=dataset.to_iterable_dataset()).train()
    rollout = make_rollout_func(SHORT, rows=list(dataset))
    limits = {"max_completion_length": 1024}
    made = bench(dataset=dataset.to_iterable_dataset(), rollout=rollout, arguments=limits)
    assert made.train()["env_turns"] == [3, 3, 3, 3]


def test_trl_broken_contract_of_every_episode_ends_the_training(bench: MakeBench) -> None:
    with pytest.raises(RunFailedError, match=r"first 8 episodes .* must return envkit\.Turn"):
        bench("toy-broken-letters-v0", arguments={"max_steps": 2}).train()


def test_trl_engine_that_would_keep_its_first_weights_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="update_weights"):
        make_rollout_func(SHORT, engine=_scripted(lambda _: "abc"))


def test_trl_other_engines_get_the_weights_of_every_step(bench: MakeBench) -> None:
    versions: list[str] = []

    async def send_weights(model: Any, version: str) -> None:
        assert model.config.hidden_size == 32
        versions.append(version)

    rollout = make_rollout_func(
        SHORT,
        engine=_scripted(lambda context: "ab" if context.turn else "a1"),
        send_weights=send_weights,
    )
    made = bench(rollout=rollout, arguments={"max_steps": 2})
    columns = made.train()
    assert versions == ["0", "1"]
    assert columns["env_reward"] == [2.5, 2.5, 2.5, 2.5]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"repetition_penalty": 1.2}, "repetition_penalty"), ({"min_p": 0.1}, "min_p"),
     ({"mask_truncated_completions": True}, "mask_truncated_completions")],
)  # fmt: skip
def test_trl_arguments_that_rollouts_cannot_honour_are_refused(
    bench: MakeBench, arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigurationError, match=name):
        bench(arguments=arguments).train()


def test_trl_sharded_model_is_refused_by_the_embedded_engine(bench: MakeBench) -> None:
    made = bench()
    made.trainer.is_fsdp_enabled = True
    with pytest.raises(ConfigurationError, match="FSDP"):
        made.rollout([], made.trainer)


def test_trl_rollout_function_belongs_to_one_trainer(bench: MakeBench) -> None:
    first = bench()
    first.train()
    second = bench(rollout=first.rollout)
    with pytest.raises(ConfigurationError, match="belongs to the trainer"):
        second.train()


def test_trl_close_gives_the_models_attention_back_and_may_be_repeated(bench: MakeBench) -> None:
    made = bench()
    before = made.trainer.model.config._attn_implementation
    made.train()
    made.rollout.close()
    made.rollout.close()
    assert made.trainer.model.config._attn_implementation == before


async def test_trl_disk_send_weights_saves_and_notifies_the_server(tmp_path: Path) -> None:
    bodies: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"success": len(bodies) == 1, "message": "no such file"})

    application = web.Application()
    application.router.add_post("/update_weights_from_disk", take)
    from fakes.trl_run import text_model

    model = text_model(byte_tokenizer())
    async with TestServer(application) as server:
        send_weights = DiskWeightTransfer(str(server.make_url("/")), tmp_path / "weights")
        await send_weights(model, "7")
        assert (tmp_path / "weights" / "model.safetensors").is_file()
        assert bodies[0]["weight_version"] == "7"
        assert bodies[0]["model_path"] == str(tmp_path / "weights")
        with pytest.raises(EngineFault, match="no such file"):
            await send_weights(model, "8")
    with pytest.raises(EngineFault, match="failed to load"):
        await send_weights(model, "9")
