"""The list "Must hold" of the verl reference, line by line, and what else reaches the trainer."""

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes.verl_checks import check_batch, check_images, check_row, model_runs
from fakes.verl_envs import colour_of
from fakes.verl_worker import PROMPT, RESPONSE, Bench, Run, Sample
from verl.experimental.agent_loop import AgentLoopBase
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest
from envkit_verl import EnvAgentLoop, EpisodeOutput

Make = Callable[..., Bench]


def see(text: str, images: list[Any]) -> str:
    """Say "up" to text, and name the colour of the last image."""
    del text
    return colour_of(images[-1]) if images else "up"


def steps(**kwargs: Any) -> str:
    return EpisodeRequest(env_id="verl-steps-v0", env_kwargs=kwargs).to_column()


def colours(**kwargs: Any) -> str:
    return EpisodeRequest(env_id="verl-colours-v0", env_kwargs=kwargs).to_column()


_mixed: dict[str, Run] = {}


@pytest.fixture
async def mixed(bench: Make, version: str) -> Run:
    """A batch with text, images, a fault, a prompt that is too long and two truncations.

    Played once for each worker: the tests only read what it delivered.
    """
    if version not in _mixed:
        _mixed[version] = await _play_mixed(bench, version)
    return _mixed[version]


async def _play_mixed(bench: Make, version: str) -> Run:
    samples = [
        Sample(envkit=steps(), uid="text", index=0),
        Sample(envkit=colours(), uid="pictures", index=1),
        Sample(envkit=steps(fails_at=1), uid="fault", index=2),
        Sample(envkit=steps(prompt_padding=PROMPT), uid="long", index=3),
        Sample(envkit=steps(padding=RESPONSE), uid="observation", index=4),
        Sample(envkit=colours(rounds=9, max_turns=9, side=196), uid="many", index=5),
    ]
    return await bench(version, see, model="qwen2_5_vl").run(samples, n=2)


async def test_verl_must_hold_1_lengths_masks_and_logprobs(mixed: Run) -> None:
    """`len(response_ids) == len(response_mask) == len(response_logprobs)`; mask 0/1; 0.0 on env."""
    assert len(mixed.rows) == 12
    for row in mixed.rows:
        check_row(row)
    trained = [row for row in mixed.rows if not row["envkit_failed"]]
    assert len(trained) == 8
    for row in trained:
        assert (row["rollout_log_probs"][row["response_mask"] == 1] < 0).all()


async def test_verl_must_hold_2_response_starts_with_the_model(mixed: Run) -> None:
    """The first response token is model output; at least one model token."""
    for row in mixed.rows:
        if not row["envkit_failed"]:
            assert row["response_mask"][0] == 1
            replies = [row["responses"][a:b].tolist() for a, b in model_runs(row["response_mask"])]
            assert replies  # exactly what the server sampled, nothing else
            sampled = [call.reply for call in mixed.server.calls]
            assert all(reply in sampled for reply in replies)


async def test_verl_must_hold_3_lengths_cut_at_turn_boundaries(mixed: Run) -> None:
    """Prompt and response within their lengths; cut only at a turn, never inside an image."""
    for row in mixed.rows:
        assert len(row["prompts"]) <= PROMPT
        assert len(row["responses"]) <= RESPONSE
        if not row["envkit_failed"]:  # the last token is the end of a reply
            assert row["response_mask"][-1] == 1
    reasons = {row.get("uid"): row["envkit_stop_reason"] for row in mixed.rows}
    assert reasons["observation"] == "response_tokens"
    assert reasons["many"] == "response_tokens"


async def test_verl_must_hold_4_image_runs_equal_images_and_grids(mixed: Run) -> None:
    """Image-pad runs == images, and pads_i == grid_i / merge^2, in rows with several images."""
    for row in mixed.rows:
        check_images(row, mixed.worker.processor)
    counts = [
        len(row["multi_modal_inputs"]["image_grid_thw"])
        for row in mixed.rows
        if row["uid"] == "pictures"
    ]
    assert counts == [3, 3]


@pytest.mark.parametrize("kept", [True, False])
async def test_verl_must_hold_5_logprobs_in_all_samples_or_in_none(
    bench: Make, version: str, kept: bool
) -> None:
    """Log-probs in all samples of a run or in none, faulted ones included."""
    option = {"actor_rollout_ref__rollout__calculate_log_probs": kept}
    samples = [Sample(envkit=steps()), Sample(envkit=steps(fails_at=0), uid="u1")]
    run = await bench(version, see, **option).run(samples)
    assert [("rollout_log_probs" in row) for row in run.rows] == [kept, kept]
    assert {call.params["logprobs"] for call in run.server.calls} == {kept}


async def test_verl_must_hold_6_reward_is_a_float_and_metrics_have_the_same_keys(
    mixed: Run,
) -> None:
    """`reward_score` is always a float; `reward_extra_info` has the same numeric keys."""
    assert all("rm_scores" in row for row in mixed.rows)
    check_batch(mixed.rows)
    for row in mixed.rows:
        assert isinstance(row["reward_score"], float)
        assert row["reward_extra_info"]["envkit/reward"] == pytest.approx(row["reward_score"])


async def test_verl_must_hold_7_fields_are_set_explicitly(mixed: Run, version: str) -> None:
    """`num_turns`, `metrics`, `extra_fields` are set: V1 dumps only what is."""
    turns = {row["uid"]: row["num_turns"] for row in mixed.rows}
    assert turns["text"] == 6  # three replies
    if version == "v1":
        for row in mixed.rows:
            assert {"num_turns", "metrics", "extra_fields"} <= set(row)
            assert set(row["metrics"]) == {
                "generate_sequences",
                "tool_calls",
                "compute_score",
                "num_preempted",
            }
    else:
        assert len(mixed.raw.meta_info["metrics"]) == 12
        assert mixed.raw.meta_info["reward_extra_keys"]


async def test_verl_must_hold_8_weight_versions_are_ints(mixed: Run) -> None:
    """`min_global_steps` and `max_global_steps` are ints, even if no server was asked."""
    for row in mixed.rows:
        sampled = row["uid"] != "long"
        assert row["min_global_steps"] == row["max_global_steps"]
        assert type(row["max_global_steps"]) is int
        if sampled:
            assert row["max_global_steps"] == mixed.server.global_steps


async def test_verl_must_hold_9_both_trainers_workers_take_the_same_episode(
    bench: Make,
) -> None:
    """V0 and V1 deliver the same ids, masks, log-probabilities and reward."""
    rows = [
        (
            await bench(version, see, model="qwen2_5_vl").run(
                [Sample(envkit=EpisodeRequest(env_id="verl-colours-v0", seed=5).to_column())]
            )
        ).rows[0]
        for version in ("v0", "v1")
    ]
    for key in ("prompts", "responses", "response_mask", "rollout_log_probs", "position_ids"):
        assert rows[0][key].tolist() == rows[1][key].tolist(), key
    assert rows[0]["reward_score"] == pytest.approx(rows[1]["reward_score"]) == pytest.approx(1.0)


def test_verl_must_hold_10_only_the_stable_subset_is_used() -> None:
    """envkit owns tokenisation and masks: no method of the base class is called but its own init.

    What the loop reads is what 0.7.1 to 0.9.1 have in common.
    """
    stable = {
        "config", "rollout_config", "server_manager", "tokenizer", "processor", "dataset_cls",
        "data_config", "loop",
    }  # fmt: skip
    source = inspect.getsource(EnvAgentLoop)
    base = {name for name in vars(AgentLoopBase) if not name.startswith("__")} - {"run"}
    used = {name for name in base if f"self.{name}" in source or f"super().{name}" in source}
    assert not used
    attributes = {
        word.split("(")[0].split(")")[0].split(",")[0].split(".")[0].strip()
        for word in source.replace("\n", " ").split("self.")[1:]
        for word in [word.split(" ")[0]]
    }
    own = {name for name in attributes if name.startswith("_")}
    assert attributes - own <= stable


async def test_verl_must_hold_everything_in_random_episodes(bench: Make, version: str) -> None:
    """Episodes of random length, replies, paddings, limits and failures give valid rows."""
    rng = random.Random(11)

    def babble(text: str, images: list[Any]) -> str:
        del text, images
        return " ".join(["up"] * rng.choice([1, 2, 5, 40, 90, 300]))

    samples = [
        Sample(
            envkit=steps(
                rounds=rng.randint(1, 6),
                padding=rng.choice([0, 3, 60, 150, 185, 190, 400]),
                prompt_padding=rng.choice([0, 10, 250, 300, 310, 330]),
                fails_at=rng.choice([None, None, None, 0, 2]),
            ),
            uid=f"u{number}",
            index=number,
        )
        for number in range(30)
    ]
    run = await bench(version, babble, max_model_len=400).run(samples)
    assert len(run.rows) == 30
    for row in run.rows:
        check_row(row)
        assert len(row["prompts"]) + len(row["responses"]) <= 400
    check_batch(run.rows)
    assert {row["envkit_failed"] for row in run.rows} == {0, 1}
    for call in run.server.calls:
        assert 1 <= call.params["max_tokens"] <= min(RESPONSE, 400 - len(call.prompt_ids))


THINKING = (
    "{%- for m in messages %}{%- set c = m.content %}"
    "{%- if m.role == 'assistant' and '</think>' in c %}{%- set c = c.split('</think>')[-1] %}"
    "{%- endif %}{{- '<|im_start|>' + m.role + '\\n' + c + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

"""A template that drops earlier thoughts, as Qwen3's does."""


async def test_verl_v1_gets_each_turns_reward_on_its_last_token(bench: Make) -> None:
    replies = iter(["up", "no", "up up"])
    run = await bench("v1", lambda *_: next(replies)).run([Sample(envkit=steps())])
    (row,) = run.rows
    ends = [end - 1 for _, end in model_runs(row["response_mask"])]
    assert [float(row["rm_scores"][end]) for end in ends] == [0.25, 0.0, 0.25]
    assert float(row["rm_scores"].sum()) == 0.5
    assert row["turn_scores"] == [0.25, 0.0, 0.25]


@pytest.mark.parametrize(("version", "loop"), [("v0", {}), ("v1", {"rewards": "last"})])
async def test_verl_reward_is_last_in_v0_and_on_request_in_v1(
    bench: Make, version: str, loop: dict[str, str]
) -> None:
    made = bench(version, see, loop=loop)
    (row,) = (await made.run([Sample(envkit=steps())])).rows
    assert row["rm_scores"].nonzero().flatten().tolist() == [len(row["responses"]) - 1]
    assert row["reward_score"] == 0.75


ACTOR = "actor_rollout_ref__actor"

LOSS, ESTIMATOR = f"{ACTOR}__loss_agg_mode", "algorithm__adv_estimator"


def rewriting(bench: Make, version: str, **settings: Any) -> Bench:
    return bench(
        version,
        lambda *_: "<think> hm </think>up",
        loop={"envkit": {"history": "rerender"}},
        actor_rollout_ref__model__custom_chat_template=THINKING,
        **settings,
    )


async def test_verl_v1_takes_a_rewritten_history_as_several_rows(bench: Make) -> None:
    """Thoughts of earlier turns vanish from later prompts, so each turn is its own row."""
    made = rewriting(bench, "v1")
    run = await made.run([Sample(envkit=steps(), uid="a"), Sample(envkit=steps(), uid="b")])
    assert [row["key"] for row in run.rows[:3]] == ["a_0_0", "a_0_1", "a_0_2"]
    for row in run.rows:
        check_row(row)
        assert row["response_mask"].all()
        assert row["reward_score"] == pytest.approx(0.75)  # of the trajectory, as verl copies it
    prompts = [call.prompt_ids for call in made.server.calls if call.prompt_ids]
    sent = {tuple(row["prompts"].tolist()) for row in run.rows}
    assert {tuple(ids) for ids in prompts} == sent


async def test_verl_v0_refuses_a_rewritten_history(bench: Make) -> None:
    made = rewriting(bench, "v0")
    with pytest.raises(ConfigurationError, match="use_v1=true"):
        await made.run([Sample(envkit=steps())])


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({LOSS: "seq-mean-token-mean"}, "use token-mean"),
        ({LOSS: "seq-mean-token-sum-norm"}, "set actor.loss_scale_factor"),
        ({ESTIMATOR: "rloo"}, "'grpo'"),
        ({ESTIMATOR: "envkit_turns"}, "'grpo'"),
        ({ESTIMATOR: "gae", "algorithm__lam": 0.95}, "algorithm.lam=1"),
        ({"algorithm__use_kl_in_reward": True}, "use_kl_in_reward"),
        ({ESTIMATOR: "reinforce_plus_plus", "algorithm__gamma": 0.9}, "algorithm.gamma=1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
async def test_verl_v1_refuses_several_rows_where_rows_weigh_like_episodes(
    bench: Make, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], fix: str
) -> None:
    made = rewriting(bench, "v1", **settings)
    run = await made.run([Sample(envkit=steps())])
    assert run.rows == []
    assert not made.server.calls
    assert fix in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {LOSS: "seq-mean-token-sum-norm", f"{ACTOR}__loss_scale_factor": 512},
        {ESTIMATOR: "gae"},
        {ESTIMATOR: "reinforce_plus_plus", LOSS: "token-mean"},
    ],
)
async def test_verl_v1_takes_several_rows_where_they_weigh_like_one(
    bench: Make, settings: dict[str, Any]
) -> None:
    made = rewriting(bench, "v1", **settings)
    run = await made.run([Sample(envkit=steps())])
    assert len(run.rows) == 3


async def test_verl_images_reach_server_and_rope_index(bench: Make, version: str) -> None:
    """Three images of three sizes; the policy names the colour of the one it was sent last."""
    made = bench(version, see, model="qwen2_5_vl")
    column = EpisodeRequest(env_id="verl-colours-v0", seed=4).to_column()
    (row,) = (await made.run([Sample(envkit=column)])).rows
    check_row(row)
    check_images(row, made.worker.processor)
    assert row["reward_score"] == pytest.approx(1.0)
    assert [len(call.images) for call in made.server.calls] == [1, 2, 3]
    assert len({image.size for image in made.server.calls[-1].images}) == 3
    # get_rope_index ran: inside an image, height and width differ from the text's position.
    pad = made.worker.processor.image_token_id
    inside = row["position_ids"][:, row["input_ids"] == pad]
    assert not torch.equal(inside[1], inside[2])
    assert not torch.equal(inside[2], inside[3])


async def test_verl_images_follow_the_processors_options(bench: Make, version: str) -> None:
    """`data.mm_processor_kwargs` change the token count in codec, worker and server alike."""
    made = bench(
        version,
        see,
        model="qwen2_5_vl",
        data__mm_processor_kwargs={"size": {"shortest_edge": 784, "longest_edge": 1568}},
    )
    made.server.checks_images = False  # its check would use the plain options
    column = EpisodeRequest(env_id="verl-colours-v0", env_kwargs={"side": 112}).to_column()
    (row,) = (await made.run([Sample(envkit=column)])).rows
    check_row(row)
    check_images(row, made.worker.processor)
    plain = bench(version, see, model="qwen2_5_vl")
    (other,) = (await plain.run([Sample(envkit=column)])).rows
    assert len(row["input_ids"]) < len(other["input_ids"])


async def test_verl_turn_prompts_extend_each_other_and_keep_their_server(
    bench: Make, version: str
) -> None:
    made = bench(version, see)
    await made.run([Sample(envkit=steps())])
    prompts = [call.prompt_ids for call in made.server.calls]
    replies = [call.reply for call in made.server.calls]
    for earlier, reply, later in zip(prompts, replies, prompts[1:], strict=False):
        assert later[: len(earlier) + len(reply)] == earlier + reply
    balancer = made.client._load_balancer._target
    assert len(balancer._request_id_to_server) == 1  # one request id for the episode


async def test_verl_group_members_start_from_one_state_and_epochs_repeat_it(
    bench: Make, version: str
) -> None:
    """The same seed in a group, from the row's index; another row has another one."""
    loop = {"envkit": {"env_id": "toy-dots-v0", "draw_tasks": True, "limits": {"max_turns": 1}}}
    made = bench(version, lambda *_: "3", model="qwen2_5_vl", loop=loop)
    first = await made.run([Sample(uid="a", index=4), Sample(uid="b", index=5)], n=2)
    hashes = [tuple(image.tobytes() for image in call.images) for call in made.server.calls]
    assert len(first.rows) == 4
    assert sorted(hashes.count(entry) for entry in set(hashes)) == [2, 2]
    await made.run([Sample(uid="c", index=4)])
    assert tuple(i.tobytes() for i in made.server.calls[-1].images) in hashes


async def test_verl_requests_come_from_column_extra_info_or_yaml(bench: Make) -> None:
    loop = {"envkit": {"env_id": "verl-steps-v0", "draw_tasks": True, "env_kwargs": {"rounds": 2}}}
    samples = [
        Sample(uid="yaml"),
        Sample(uid="extra", extra_info={"env_kwargs": {"rounds": 1}}),
        Sample(uid="column", envkit=steps(rounds=4)),
    ]
    for sample, turns in zip(samples, (2, 1, 4), strict=True):
        (row,) = (await bench("v0", see, loop=loop).run([sample])).rows
        assert row["num_turns"] == 2 * turns, sample.uid


async def test_verl_loop_is_built_by_the_workers_own_loader(bench: Make, version: str) -> None:
    """The YAML list is read by verl, and hydra builds our class for every trajectory."""
    from verl.experimental.agent_loop import agent_loop as module

    made = bench(version, see)
    assert module._agent_loop_registry["envkit"]["_target_"] == "envkit_verl.EnvAgentLoop"
    (row,) = (await made.run([Sample(envkit=steps())])).rows
    assert row["envkit_env_id"] == "verl-steps-v0"
    assert issubclass(EnvAgentLoop, module.AgentLoopBase)
    assert issubclass(EpisodeOutput, AgentLoopOutput)


async def test_verl_parts_are_shared_by_all_trajectories(
    bench: Make, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from envkit_verl import shared

    made: list[object] = []
    real = shared.SharedRollout.__init__

    def counting(self: Any, *args: Any) -> None:
        made.append(self)
        real(self, *args)

    monkeypatch.setattr(shared.SharedRollout, "__init__", counting)
    worker = bench(version, see)
    await worker.run([Sample(envkit=steps(), uid=f"u{n}") for n in range(4)], n=2)
    await worker.run([Sample(envkit=steps(), uid="later")])
    assert len(made) == 1


async def test_verl_dataset_columns_are_not_overwritten(bench: Make, version: str) -> None:
    """Extra fields and metrics win over columns of the same name in V0: ours have a prefix."""
    (row,) = (await bench(version, see).run([Sample(envkit=steps())])).rows
    assert row["envkit"] == steps()
    assert row["uid"] == "u0"
    own = {"turn_scores", "tool_rewards", "min_global_steps", "max_global_steps"}
    if version == "v1":
        ours = set(row["extra_fields"]) - own - {"reward_extra_info"}
        assert all(name.startswith("envkit_") for name in ours)
    assert all(name.startswith("envkit/") for name in row["reward_extra_info"])
