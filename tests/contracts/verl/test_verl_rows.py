"""Rewards by turn, split histories, groups, seeds, requests: what reaches the trainer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes.verl_checks import check_images, check_row, model_runs
from fakes.verl_envs import colour_of
from fakes.verl_worker import Bench, Sample
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest
from envkit_verl import EnvAgentLoop, EpisodeOutput

Make = Callable[..., Bench]

THINKING = (
    "{%- for m in messages %}{%- set c = m.content %}"
    "{%- if m.role == 'assistant' and '</think>' in c %}{%- set c = c.split('</think>')[-1] %}"
    "{%- endif %}{{- '<|im_start|>' + m.role + '\\n' + c + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""A template that drops earlier thoughts, as Qwen3's does."""


def steps(**kwargs: Any) -> str:
    return EpisodeRequest(env_id="verl-steps-v0", env_kwargs=kwargs).to_column()


def see(text: str, images: list[Any]) -> str:
    del text
    return colour_of(images[-1]) if images else "up"


async def test_verl_v1_gets_each_turns_reward_on_its_last_token(bench: Make) -> None:
    replies = iter(["up", "no", "up up"])
    run = await bench("v1", lambda *_: next(replies)).run([Sample(envkit=steps())])
    (row,) = run.rows
    ends = [end - 1 for _, end in model_runs(row["response_mask"])]
    assert [float(row["rm_scores"][end]) for end in ends] == [0.25, 0.0, 0.25]
    assert float(row["rm_scores"].sum()) == 0.5
    assert row["turn_scores"] == [0.25, 0.0, 0.25]


async def test_verl_v1_puts_the_whole_reward_last_on_request(bench: Make) -> None:
    made = bench("v1", see, loop={"rewards": "last"})
    (row,) = (await made.run([Sample(envkit=steps())])).rows
    assert row["rm_scores"].nonzero().flatten().tolist() == [len(row["responses"]) - 1]
    assert row["reward_score"] == 0.75


async def test_verl_v0_gets_the_sum_on_the_last_token(bench: Make) -> None:
    (row,) = (await bench("v0", see).run([Sample(envkit=steps())])).rows
    assert row["rm_scores"].nonzero().flatten().tolist() == [len(row["responses"]) - 1]
    assert row["reward_score"] == 0.75


ACTOR = "actor_rollout_ref__actor"
LOSS, ESTIMATOR = f"{ACTOR}__loss_agg_mode", "algorithm__adv_estimator"


async def test_verl_v1_takes_a_rewritten_history_as_several_rows(bench: Make) -> None:
    """Thoughts of earlier turns vanish from later prompts, so each turn is its own row."""
    made = bench(
        "v1",
        lambda *_: "<think> hm </think>up",
        loop={"envkit": {"history": "rerender"}},
        actor_rollout_ref__model__custom_chat_template=THINKING,
    )
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
    made = bench(
        "v0",
        see,
        loop={"envkit": {"history": "rerender"}},
        actor_rollout_ref__model__custom_chat_template=THINKING,
    )
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
    made = bench(
        "v1",
        lambda *_: "<think> hm </think>up",
        loop={"envkit": {"history": "rerender"}},
        actor_rollout_ref__model__custom_chat_template=THINKING,
        **settings,
    )
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
    made = bench(
        "v1",
        lambda *_: "<think> hm </think>up",
        loop={"envkit": {"history": "rerender"}},
        actor_rollout_ref__model__custom_chat_template=THINKING,
        **settings,
    )
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


async def test_verl_grey_images_are_sent_as_rgb(bench: Make, version: str) -> None:
    made = bench(version, lambda *_: "red", model="qwen2_5_vl")
    request = EpisodeRequest(env_id="verl-colours-v0", env_kwargs={"grey": True})
    (row,) = (await made.run([Sample(envkit=request.to_column())])).rows
    check_images(row, made.worker.processor)
    assert row["envkit_failed"] == 0


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
