"""Rows for verl without verl: what is trained, where rewards stand, and what a fault leaves."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.boundaries import at_limit
from fakes.trajectories import SEEN, Context, Reply, build, example, picture, turns
from hypothesis import given

from envkit.errors import ConfigurationError, FaultKind
from envkit.trajectory import Origin, RewardPlacement, StopReason, Trajectory
from envkit_verl.groups import Group
from envkit_verl.rows import Delivery, rows_of
from envkit_verl.settings import VerlSettings

FILLER = 3
FAULT = StopReason.ENV_FAULT
FAULTS = [one for one in StopReason if one.is_fault]


def settings(*, prompt_length: int = 100, response_length: int = 100, **values: Any) -> Any:
    return VerlSettings(
        prompt_length=prompt_length,
        response_length=response_length,
        max_model_len=None,
        max_turns=None,
        backend="vllm",
        **values,
    )


def delivery(*, is_v1: bool = True, **changes: Any) -> Delivery:
    values: dict[str, Any] = {"settings": settings(), "filler_id": FILLER, **changes}
    return Delivery(is_v1=is_v1, **values)


async def rows(
    *played: Trajectory, others: Sequence[float | None] = (), **changes: Any
) -> list[dict[str, Any]]:
    """Return the rows of an episode in a group with others that have ended."""
    group = Group()
    member = group.join()
    for reward in others:
        group.join().leave(reward)
    return await rows_of(played, member, delivery(**changes))


def rewritten(*rewards: float, **changes: Any) -> Trajectory:
    """Return an episode with one sequence for each reply of three tokens."""
    replies = [Reply(reward=one, observation=SEEN, starts_sequence=True) for one in rewards[:-1]]
    return build([*replies, Reply(reward=rewards[-1])], **changes)


def with_extras(trajectory: Trajectory, *extras: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory with what the server reported with each reply."""
    left = iter(extras)
    segments = [
        replace(one, extras=next(left)) if one.finish_reason else one for one in trajectory.segments
    ]
    return replace(trajectory, segments=tuple(segments))


async def test_verl_row_trains_each_sampled_token_once_and_rewards_each_turn() -> None:
    (row,) = await rows(turns(0.25, 0.5))
    assert row["prompt_ids"] == [11, 12, 13, 14]
    assert row["response_ids"] == [100, 21, 22, 200, 201]
    assert row["response_mask"] == [1, 0, 0, 1, 1]
    assert row["response_logprobs"] == [-1.0, 0.0, 0.0, -2.0, -2.0]
    assert row["token_rewards"] == [0.25, 0.0, 0.0, 0.0, 0.5]
    assert (row["reward_score"], row["num_turns"]) == (0.75, 4)
    assert row["multi_modal_data"] is None
    assert not {"mm_processor_kwargs", "routed_experts"} & row.keys()


async def test_verl_reward_of_the_episode_is_last_on_request() -> None:
    (row,) = await rows(turns(0.25, 0.5), placement=RewardPlacement.LAST)
    assert row["token_rewards"] == [0.0, 0.0, 0.0, 0.0, 0.75]


async def test_verl_fork_has_its_whole_reward_last() -> None:
    """Its reward includes that of its parent's turns, which are not in its row."""
    whole = turns(0.25, 0.5)
    origin = Origin(episode_id="parent", segments=1, turns=0, root="parent")
    (row,) = await rows(replace(whole, origin=origin))
    assert row["token_rewards"] == [0.0, 0.0, 0.0, 0.0, 0.75]


async def test_verl_each_row_of_an_episode_ends_with_its_reward() -> None:
    found = await rows(rewritten(0.25, 0.0, 0.5))
    assert [row["token_rewards"] for row in found] == [[0.0, 0.0, 0.75]] * 3
    assert {row["reward_score"] for row in found} == {0.75}
    assert [row["response_mask"] for row in found] == [[1, 1, 1]] * 3


@pytest.mark.parametrize("is_v1", [False, True])
async def test_verl_several_rows_are_refused_where_one_is_the_rule(is_v1: bool) -> None:
    mode = settings(loss_agg_mode="seq-mean-token-mean" if is_v1 else "token-mean")
    assert len(await rows(turns(0.5, 0.5), settings=mode, is_v1=is_v1)) == 1
    with pytest.raises(ConfigurationError, match=r"makes 2 rows: .*envkit\.history=keep"):
        await rows(rewritten(0.5, 0.5), settings=mode, is_v1=is_v1)
    lost = rewritten(0.5, 0.5, stop_reason=FAULT)
    assert len(await rows(lost, settings=mode, is_v1=is_v1)) == 1


async def test_verl_siblings_have_exactly_one_reward_on_their_last_tokens() -> None:
    group = Group()
    member = group.join()
    nearly = 0.75 + 1e-10
    found = await rows_of([turns(0.25, 0.5), turns(nearly)], member, delivery())
    assert [row["token_rewards"] for row in found] == [[0.0, 0.0, 0.0, 0.0, 0.75], [0.75]]
    assert (member.reward, member.is_running) == (0.75, False)
    with pytest.raises(ConfigurationError, match="verl compares episodes"):
        await rows(turns(0.5), turns(0.25))


async def test_verl_untrained_sibling_is_masked_and_before_the_trained_ones() -> None:
    """V1 gives all rows the advantage of the last one."""
    silent = replace(build([]), reward=0.5)
    found = await rows(turns(0.5), silent, turns(0.25, 0.25))
    assert [row["response_mask"] for row in found] == [[0], [1], [1, 0, 0, 1, 1]]
    assert [row["reward_score"] for row in found] == [0.5] * 3
    assert [row["token_rewards"][-1] for row in found] == [0.5] * 3
    assert [row["extra_fields"]["envkit_failed"] for row in found] == [1, 0, 0]


async def test_verl_reward_of_zero_is_a_reward() -> None:
    group = Group()
    member = group.join()
    (row,) = await rows_of([turns(0.0)], member, delivery())
    assert (row["reward_score"], row["token_rewards"], row["response_mask"]) == (0.0, [0.0], [1])
    assert member.reward == 0.0


@pytest.mark.parametrize("is_v1", [False, True])
@pytest.mark.parametrize("stop_reason", [*FAULTS, StopReason.ABORTED])
async def test_verl_episode_without_a_reward_is_one_masked_token_with_the_others_mean(
    stop_reason: StopReason, is_v1: bool
) -> None:
    lost = turns(1.0, 1.0, stop_reason=stop_reason)
    (row,) = await rows(lost, others=[0.5], is_v1=is_v1)
    assert (row["prompt_ids"], row["response_ids"]) == ([FILLER], [FILLER])
    assert (row["response_mask"], row["response_logprobs"]) == ([0], [0.0])
    assert (row["reward_score"], row["token_rewards"]) == (0.5, [0.5])
    (alone,) = await rows(lost, others=[None], is_v1=is_v1)
    assert (alone["reward_score"], alone["token_rewards"]) == (0.0, [0.0])


@given(at_limit(2))
def test_verl_v1_has_no_row_of_a_fault_if_two_others_are_rewarded(count: int) -> None:
    others = [*(0.5 for _ in range(count)), None]
    lost = turns(1.0, stop_reason=FAULT)
    assert len(asyncio.run(rows(lost, others=others))) == (count < 2)
    assert len(asyncio.run(rows(lost, others=others, is_v1=False))) == 1


async def test_verl_fault_waits_for_its_group_and_is_not_counted_there() -> None:
    group = Group()
    member, other = group.join(), group.join()
    lost = turns(1.0, stop_reason=FAULT)
    waiting = asyncio.create_task(rows_of([lost], member, delivery(is_v1=False)))
    await asyncio.sleep(0)
    assert (waiting.done(), member.is_running, member.reward) == (False, False, None)
    other.leave(0.25)
    (row,) = await waiting
    assert row["reward_score"] == 0.25


async def test_verl_only_the_first_of_faulted_siblings_is_returned_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    siblings = [
        turns(1.0, stop_reason=FAULT, episode_id=name, metadata={"role": name})
        for name in ("one", "two")
    ]
    (row,) = await rows(*siblings, is_v1=False)
    assert row["extra_fields"]["envkit_episode_id"] == "one"
    assert "episode one of" in caplog.text


@given(at_limit(4), at_limit(5))
def test_verl_row_beyond_verls_lengths_is_not_trained(prompt: int, response: int) -> None:
    bounds = settings(prompt_length=prompt, response_length=response)
    (row,) = asyncio.run(rows(turns(0.25, 0.5), settings=bounds))
    fits = prompt >= 4 and response >= 5
    assert row["response_mask"] == ([1, 0, 0, 1, 1] if fits else [0])
    assert row["extra_fields"]["envkit_failed"] == (not fits)
    assert ("longer than prompt_length" in row["extra_fields"]["envkit_problem"]) == (not fits)


async def test_verl_one_row_beyond_the_lengths_costs_its_whole_episode() -> None:
    replies = [Reply(observation=SEEN, starts_sequence=True), Reply(ids=(1,), logprobs=(-1.0,))]
    for order in (replies, [replace(replies[0], ids=(1,), logprobs=(-1.0,)), Reply()]):
        bounds = settings(response_length=2)
        (row,) = await rows(build(order), settings=bounds)
        assert row["response_mask"] == [0]


@pytest.mark.parametrize(
    ("trajectory", "problem"),
    [
        (turns(1.0), ""),
        (turns(1.0, stop_reason=FAULT), "timeout fault at step"),
        (turns(1.0, stop_reason=StopReason.ABORTED), "no reward: aborted"),
        (
            replace(build([], stop_reason=StopReason.CONTEXT_TOKENS), reward=0.0),
            "no reply: context_tokens",
        ),
    ],
)
async def test_verl_problem_of_an_untrained_row_is_named(
    trajectory: Trajectory, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    (row,) = await rows(trajectory)
    extra = row["extra_fields"]
    assert (extra["envkit_problem"], extra["envkit_failed"]) == (problem, int(bool(problem)))
    assert extra["reward_extra_info"]["envkit/unscored"] == bool(problem)
    assert len(caplog.records) == bool(problem)
    assert problem in caplog.text
    assert ("no answer in 5 s" in caplog.text) == (trajectory.fault is not None)


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("is_v1", [False, True])
async def test_verl_v0_warns_of_a_deviation_that_counts_the_fault(
    is_v1: bool, is_scaled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bounds = settings(is_scaled=is_scaled)
    await rows(turns(1.0, stop_reason=FAULT), settings=bounds, is_v1=is_v1)
    assert ("inflates" in caplog.text) == (is_scaled and not is_v1)


async def test_verl_optional_columns_are_those_of_the_run() -> None:
    for one in (turns(1.0), turns(1.0, stop_reason=FAULT)):
        (row,) = await rows(one, with_logprobs=False, mm_processor_kwargs={"fps": 2})
        assert row["response_logprobs"] is None
        assert row["mm_processor_kwargs"] == {"fps": 2}


async def test_verl_images_of_a_row_are_pil_images() -> None:
    (row,) = await rows(build([Reply()], prompt=Context(images=(picture(0), picture(1)))))
    sizes = [image.size for image in row["multi_modal_data"]["images"]]
    assert sizes == [picture(0).pil().size, picture(1).pil().size]


async def test_verl_routed_experts_are_those_of_the_last_reply_of_each_row() -> None:
    """A reply that was cut and resumed is several segments; the last one has all tokens."""
    replay = settings(keeps_routing=True)
    reported = [{"routed_experts": np.full((2, 2, 3), n)} for n in range(3)]
    found = await rows(with_extras(rewritten(1.0, 0.0, 0.0), *reported), settings=replay)
    assert [row["routed_experts"][0, 0, 0] for row in found] == [0, 1, 2]
    whole = with_extras(turns(1.0, 0.0, 0.0), {}, {}, reported[2])
    (row,) = await rows(whole, settings=replay)
    assert row["routed_experts"] is reported[2]["routed_experts"]
    parts = with_extras(turns(1.0, 0.0), {}, reported[2])
    *before, last = parts.segments
    cut = replace(parts, segments=(*before, replace(last, extras=reported[1]), last))
    (row,) = await rows(cut, settings=replay)
    assert row["routed_experts"] is reported[2]["routed_experts"]


async def test_verl_row_without_a_reply_has_experts_of_zero_in_the_known_shape() -> None:
    replay = settings(keeps_routing=True)
    lost = turns(1.0, stop_reason=FAULT)
    (row,) = await rows(lost, settings=replay, routing_shape=(2, 3))
    experts = row["routed_experts"]
    assert (experts.shape, experts.dtype, experts.any()) == ((1, 2, 3), np.int16, False)
    with pytest.raises(ConfigurationError, match="num_experts_per_tok"):
        await rows(lost, settings=replay)


async def test_verl_weight_versions_and_preemptions_are_those_of_the_servers() -> None:
    (row,) = await rows(turns(0.5, None), global_steps=6)
    extra = row["extra_fields"]
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (6, 6)
    assert row["metrics"]["num_preempted"] == -1
    assert (extra["turn_scores"], extra["tool_rewards"]) == ([0.5, 0.0], [])
    (default,) = await rows(turns(0.5))
    assert default["extra_fields"]["max_global_steps"] == 0
    reported = with_extras(
        turns(0.5, 0.5, 0.5),
        {"min_global_steps": 4, "max_global_steps": 8, "num_preempted": 0, "spec_hits": 1},
        {"min_global_steps": 2, "max_global_steps": 5, "num_preempted": 3, "spec_hits": 4},
        {"spec_hits": 2, "spec_drafts": 7, "other": 1},
    )
    (row,) = await rows(reported, global_steps=6)
    extra = row["extra_fields"]
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (2, 8)
    assert (extra["spec_hits"], extra["spec_drafts"], "other" in extra) == (7, 7, False)
    assert row["metrics"]["num_preempted"] == 3
    (none,) = await rows(with_extras(turns(0.5), {"num_preempted": 0}))
    assert none["metrics"]["num_preempted"] == 0


async def test_verl_timers_are_the_sums_over_the_turns() -> None:
    (row,) = await rows(turns(0.5, 0.5))
    assert row["metrics"] == {
        "generate_sequences": pytest.approx(0.2 + 0.3),
        "tool_calls": pytest.approx(0.05 + 0.05),
        "compute_score": 0.0,
        "num_preempted": -1,
    }


async def test_verl_columns_name_the_episode_and_its_role() -> None:
    for metadata, role in (({}, ""), ({"role": "judge"}, "judge")):
        (row,) = await rows(turns(0.5, metadata=metadata))
        own = {key: one for key, one in row["extra_fields"].items() if key.startswith("envkit_")}
        assert own == {
            "envkit_failed": 0,
            "envkit_problem": "",
            "envkit_stop_reason": "terminated",
            "envkit_env_id": "fake-v0",
            "envkit_episode_id": "episode-0",
            "envkit_role": role,
        }


async def test_verl_numbers_are_those_of_the_episode() -> None:
    episode = example(env_restarts=3)
    first, *later = episode.turns
    first = replace(first, engine_retries=4, env_retries={FaultKind.CRASHED.value: 1})
    (row,) = await rows(replace(episode, turns=(first, *later)))
    numbers = row["extra_fields"]["reward_extra_info"]
    assert {type(one) for one in numbers.values()} == {float}
    assert numbers == {
        "envkit/reward": 1.0,
        "envkit/faults": 0.0,
        "envkit/unscored": 0.0,
        "envkit/terminated": 1.0,
        "envkit/truncated": 0.0,
        "envkit/aborted": 0.0,
        "envkit/turns": 3.0,
        "envkit/images": 3.0,
        "envkit/response_tokens": 9.0,
        "envkit/observation_tokens": 16.0,
        "envkit/tool_calls": 1.0,
        "envkit/parse_errors": 1.0,
        "envkit/env_retries": 3.0,
        "envkit/engine_retries": 4.0,
        "envkit/env_restarts": 3.0,
        "envkit/weight_versions": 2.0,
    }
    assert list(numbers) == list((await rows(turns(0.5)))[0]["extra_fields"]["reward_extra_info"])
    (plain,) = await rows(turns(0.5, stop_reason=StopReason.MAX_TURNS))
    quiet = plain["extra_fields"]["reward_extra_info"]
    assert [quiet[f"envkit/{name}"] for name in ("terminated", "truncated")] == [0.0, 1.0]
    retries = ("env_retries", "engine_retries", "env_restarts")
    assert [quiet[f"envkit/{name}"] for name in retries] == [0.0, 0.0, 0.0]
    (lost,) = await rows(turns(0.5, stop_reason=FAULT), others=[0.5])
    assert lost["extra_fields"]["reward_extra_info"]["envkit/faults"] == 1.0
    assert lost["extra_fields"]["reward_extra_info"]["envkit/reward"] == 0.5
