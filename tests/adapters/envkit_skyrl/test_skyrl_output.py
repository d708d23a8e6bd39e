"""Rows for SkyRL: what is trained, where rewards stand, and what of a failed sample is returned."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.trajectories import SEEN, Context, Reply, build, picture, turns

from envkit.errors import ConfigurationError
from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory import MergeTally, RewardPlacement, Row, StopReason, Trajectory
from envkit_skyrl.rows import ERROR, LENGTH, STOP, Played, RowPlan, to_output
from envkit_skyrl.validation import ImageSettings

FILLER = 3
CLEAN = (StopReason.TERMINATED, StopReason.ENV_TRUNCATED)
SCORED = [one for one in StopReason if not one.is_fault and one is not StopReason.ABORTED]


class Identity:
    """SkyRL's TrajectoryID."""

    def __init__(self, instance_id: str, repetition_id: int = 0) -> None:
        self.instance_id, self.repetition_id = instance_id, repetition_id

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


def sample(*trajectories: Trajectory, group: str = "a", **changes: Any) -> Played:
    values: dict[str, Any] = {"trajectory_id": Identity(group), **changes}
    return Played(group=group, trajectories=trajectories, **values)


def plan(*, step_wise: bool = False, **changes: Any) -> RowPlan:
    return RowPlan(step_wise=step_wise, filler_id=FILLER, **changes)


def output(played: Sequence[Played], **changes: Any) -> dict[str, Any]:
    return to_output(played, plan(**changes)).output


def test_skyrl_whole_episode_is_one_row_that_trains_each_sampled_token_once() -> None:
    one = sample(turns(0.25, 0.5), seconds=2.5)
    assert output([one]) == {
        "prompt_token_ids": [[11, 12, 13, 14]],
        "response_ids": [[100, 21, 22, 200, 201]],
        "loss_masks": [[1, 0, 0, 1, 1]],
        "rollout_logprobs": [[-1.0, 0.0, 0.0, -2.0, -2.0]],
        "rewards": [[0.0, 0.0, 0.0, 0.0, 0.75]],
        "stop_reasons": [STOP],
        "trajectory_ids": [one.trajectory_id],
        "trajectory_generation_times": [2.5],
    }


def test_skyrl_steps_train_each_reply_in_its_own_row_and_reward_the_last() -> None:
    found = to_output([sample(turns(0.25, 0.5, 1.0))], plan(step_wise=True))
    columns = found.output
    assert columns["response_ids"] == [[100], [200, 201], [300, 301, 302]]
    assert columns["loss_masks"] == [[1], [1, 1], [1, 1, 1]]
    assert columns["rewards"] == [[0.0], [0.0, 0.0], [0.0, 0.0, 1.75]]
    assert columns["is_last_step"] == [False, False, True]
    assert columns["prompt_token_ids"][2] == [11, 12, 13, 14, 100, 21, 22, 200, 201, 21, 22]
    assert found.tally == MergeTally()


def test_skyrl_merged_steps_are_counted_and_only_a_new_prompt_starts_a_row() -> None:
    replies = [
        Reply(observation=SEEN),
        Reply(observation=SEEN, starts_sequence=True),
        Reply(reward=1.0),
    ]
    whole, cut = turns(1.0, 1.0, 1.0), build(replies)
    found = to_output([sample(whole), sample(cut), sample(cut)], plan(step_wise=True, merge=True))
    assert [len(ids) for ids in found.output["response_ids"]] == [10, 8, 3, 8, 3]
    assert found.output["is_last_step"] == [True, False, True, False, True]
    assert (found.tally.merged, found.tally.forked) == (4, 2)
    apart = to_output([sample(whole), sample(cut), sample(cut)], plan(step_wise=True))
    assert len(apart.output["response_ids"]) == 9
    assert apart.tally == replace(found.tally, merged=0)
    assert apart.tally.drifted_tokens > 0


def test_skyrl_turns_have_their_reward_on_their_last_token() -> None:
    by_turn = RewardPlacement.TURNS
    merged = output([sample(turns(0.25, 0.5))], placement=by_turn)
    assert merged["rewards"] == [[0.25, 0.0, 0.0, 0.0, 0.5]]
    stepped = output([sample(turns(0.25, 0.5))], step_wise=True, placement=by_turn)
    assert stepped["rewards"] == [[0.25], [0.0, 0.5]]


def test_skyrl_turns_with_rewards_are_in_the_order_of_calls() -> None:
    episode = turns(0.25, 0.5)
    crossed = replace(episode, turns=tuple(replace(t, call=1 - t.turn) for t in episode.turns))
    for placement, widths in ((RewardPlacement.TURNS, [2, 1]), (RewardPlacement.LAST, [1, 2])):
        rows = output([sample(crossed)], step_wise=True, placement=placement)["response_ids"]
        assert [len(ids) for ids in rows] == widths


def test_skyrl_agents_of_an_episode_share_one_reward_on_its_last_row() -> None:
    agents = (turns(0.5, 0.0), turns(0.25, 0.25), turns(0.5))
    columns = output([sample(*agents), sample(turns(2.0))], step_wise=True)
    rewards = [[0.0], [0.0, 0.0], [0.0], [0.0, 0.0], [0.5], [2.0]]
    assert columns["rewards"] == rewards
    assert columns["is_last_step"] == [False, False, False, False, True, True]
    assert all(all(mask) for mask in columns["loss_masks"])
    scalars = output([sample(*agents)], step_wise=True, scalar_rewards=True)
    assert scalars["rewards"] == [0.0, 0.0, 0.0, 0.0, 0.5]


def test_skyrl_scalar_reward_is_the_episodes_even_if_it_is_zero() -> None:
    assert output([sample(turns(0.0)), sample(turns(0.5))], scalar_rewards=True)["rewards"] == [
        0.0,
        0.5,
    ]


@pytest.mark.parametrize("step_wise", [False, True])
@pytest.mark.parametrize("stop_reason", [*(one for one in StopReason if one.is_fault)])
def test_skyrl_faulted_episode_is_one_masked_row_with_the_mean_of_its_group(
    stop_reason: StopReason, step_wise: bool
) -> None:
    lost = turns(1.0, 1.0, stop_reason=stop_reason)
    scored = replace(lost, reward=9.0)  # a reward from before the fault does not count
    played = [sample(one) for one in (turns(0.5), lost, turns(1.0), scored)]
    found = to_output([*played, sample(turns(8.0), group="b")], plan(step_wise=step_wise))
    columns = found.output
    assert columns["prompt_token_ids"][1] == columns["response_ids"][1] == [FILLER]
    assert columns["loss_masks"] == [[1], [0], [1], [0], [1]]
    assert columns["rollout_logprobs"][1] == [0.0]
    assert columns["rewards"] == [[0.5], [0.75], [1.0], [0.75], [8.0]]
    assert columns["stop_reasons"] == [STOP, ERROR, STOP, ERROR, STOP]
    assert columns.get("is_last_step", [True] * 5) == [True] * 5
    assert found.masked == 2


def test_skyrl_row_of_a_group_without_rewards_has_reward_zero() -> None:
    lost = Played(group="a", trajectory_id=None, error=OSError("gone"))
    assert output([lost], scalar_rewards=True)["rewards"] == [0.0]
    assert to_output([sample(turns(1.0))], plan()).masked == 0


@pytest.mark.parametrize("placement", list(RewardPlacement))
def test_skyrl_given_placeholder_is_kept_with_its_reward_on_the_last_token(
    placement: RewardPlacement,
) -> None:
    given = Row(
        prompt_ids=(1, 2),
        response_ids=(4, 5, 6),
        loss_mask=(0, 0, 0),
        logprobs=(0.0, 0.0, 0.0),
        reward=None,
        turns=(),
        is_last=True,
    )
    lost = sample(turns(1.0, stop_reason=StopReason.ENV_FAULT))
    played = [sample(turns(0.5)), lost]
    columns = output(played, placeholder=given, step_wise=True, placement=placement)
    assert columns["prompt_token_ids"][1] == [1, 2]
    assert columns["response_ids"][1] == [4, 5, 6]
    assert columns["rewards"][1] == [0.0, 0.0, 0.5]


def test_skyrl_sample_without_a_reply_or_a_reward_has_no_score() -> None:
    silent = replace(build([], stop_reason=StopReason.CONTEXT_TOKENS), reward=1.0)
    assert sample(silent).score is None
    assert sample(silent).failure == "it ended with context_tokens before a reply was complete"
    assert sample(silent, turns(1.0)).score == 1.0  # one agent of two has replied
    assert sample(turns(1.0), replace(turns(1.0), reward=None)).score is None
    aborted = sample(turns(1.0, stop_reason=StopReason.ABORTED))
    assert aborted.score is None
    assert sample(turns(0.0)).score == 0.0
    assert sample(turns(0.25), turns(0.25), turns(0.5)).score == 0.5
    assert Played(group="a", trajectory_id=None).score is None


def test_skyrl_failure_names_the_error_or_the_fault() -> None:
    lost = turns(1.0, stop_reason=StopReason.ENV_FAULT)
    said = "env_fault in step: no answer in 5 s"
    assert sample(turns(1.0)).failure is None
    assert sample(lost).failure == said
    assert sample(lost, turns(1.0)).failure == said
    unscored = [replace(turns(1.0, stop_reason=stop), reward=None) for stop in SCORED[:3]]
    assert sample(*unscored).failure == "it ended with max_turns before a reply was complete"
    assert sample(error=OSError("gone")).failure == "OSError: gone"
    assert sample(turns(1.0), error=OSError("gone")).failure == "OSError: gone"
    assert (sample().resumes, sample().seconds) == (0, 0.0)


@pytest.mark.parametrize("stop_reason", SCORED)
def test_skyrl_only_the_environments_end_is_a_clean_stop(stop_reason: StopReason) -> None:
    one = turns(0.0, 1.0, stop_reason=stop_reason)
    expected = STOP if stop_reason in CLEAN else LENGTH
    assert sample(one).stop_reason == expected
    assert sample(turns(0.0), one).stop_reason == expected
    assert sample(one, turns(0.0)).stop_reason == expected


def test_skyrl_stop_is_not_clean_if_the_last_reply_was_cut() -> None:
    cut, ended = Reply(finish_reason="length"), Reply()
    first = replace(cut, observation=SEEN)
    second = replace(ended, observation=SEEN)
    for replies, expected in (
        ([first, ended], STOP),
        ([second, first, ended], STOP),
        ([second, cut], LENGTH),
        ([second, second, cut], LENGTH),
    ):
        assert sample(build(replies)).stop_reason == expected
    silent = replace(build([]), reward=1.0)
    assert sample(silent, turns(1.0)).stop_reason == STOP


@pytest.mark.parametrize("step_wise", [False, True])
def test_skyrl_options_for_unfinished_replies_change_only_these(step_wise: bool) -> None:
    done, cut = turns(1.0), turns(0.5, 0.5, stop_reason=StopReason.MAX_TURNS)
    played = [sample(done), sample(cut)]
    plain = output(played, step_wise=step_wise)
    assert all(any(mask) for mask in plain["loss_masks"])
    assert plain["rewards"][-1][-1] == 1.0
    masked = output(played, step_wise=step_wise, mask_unfinished=True)
    assert masked["loss_masks"][0] == [1]
    assert [set(mask) for mask in masked["loss_masks"][1:]] == [{0}] * (1 + step_wise)
    assert masked["rewards"] == plain["rewards"]
    for placement in RewardPlacement:
        bare = output(played, step_wise=step_wise, no_reward_unfinished=True, placement=placement)
        assert bare["rewards"][0] == [1.0]
        assert [set(rewards) for rewards in bare["rewards"][1:]] == [{0.0}] * (1 + step_wise)
        assert bare["loss_masks"] == plain["loss_masks"]


def test_skyrl_masked_rows_of_a_failed_sample_keep_their_reward() -> None:
    lost = sample(turns(1.0, stop_reason=StopReason.ENV_FAULT))
    found = output([sample(turns(0.5)), lost], no_reward_unfinished=True, mask_unfinished=True)
    assert found["rewards"] == [[0.5], [0.5]]


def test_skyrl_rewritten_history_needs_step_wise_rows() -> None:
    cut = build([Reply(observation=SEEN, starts_sequence=True), Reply()])
    with pytest.raises(ConfigurationError, match="makes 2 rows: set generator"):
        output([sample(cut)])
    assert len(output([sample(cut)], step_wise=True)["response_ids"]) == 2


def test_skyrl_optional_columns_are_there_for_all_rows_or_for_none() -> None:
    known, unknown = sample(turns(1.0)), sample(turns(1.0), trajectory_id=None)
    assert "trajectory_ids" not in output([known, unknown])
    assert "trajectory_ids" not in output([unknown, known])
    assert output([known, known])["trajectory_ids"] == [known.trajectory_id] * 2
    assert output([known], with_logprobs=False)["rollout_logprobs"] is None
    assert output([]) == {}


def test_skyrl_text_rows_of_an_image_model_have_empty_tensors() -> None:
    images = ImageSettings(token_id=9_000, patches_per_token=4, patch_size=5)
    tensors = {"pixel_values": np.ones((8, 5), np.float32), "image_grid_thw": [[1, 2, 4]]}
    features = ImageFeatures(
        tensors={key: np.asarray(value) for key, value in tensors.items()}, token_count=2
    )
    episode = build([Reply()], prompt=Context(images=(picture(0),), expansion=2))
    prompt = replace(episode.segments[0], features=(features,))
    shown = replace(episode, segments=(prompt, *episode.segments[1:]))
    columns = output([sample(shown), sample(turns(1.0))], image_settings=images)
    pixels, grids = columns["pixel_values"], columns["image_grid_thw"]
    assert [tuple(one.shape) for one in pixels] == [(8, 5), (0, 5)]
    assert [tuple(one.shape) for one in grids] == [(1, 3), (0, 3)]
    assert {one.dtype for one in grids} == {torch.long}
    assert grids[0].tolist() == [[1, 2, 4]]
