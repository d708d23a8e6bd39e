"""Rows of rewritten and forked episodes in adapters, as far as that needs no trainer."""

from dataclasses import replace

import pytest
from fakes.branching import SUMMARY, Summarised, rewritten, tree

from envkit.errors import ConfigurationError
from envkit.trajectory import StopReason
from envkit_trl.rows import episode_row

END = 9


async def test_trl_row_of_a_fork_trains_its_own_tokens_after_a_longer_prompt() -> None:
    leaves = await tree()
    for leaf in leaves:
        row = episode_row(leaf, end_id=END)
        assert sum(row.loss_mask) == leaf.sampled_token_count
        assert row.loss_mask[0] == 1
        assert row.prompt_ids + row.response_ids == leaf.train_ids()
        assert row.reward == leaf.reward
    shared = [0 if leaf.origin is None else leaf.origin.segments for leaf in leaves]
    lengths = [len(episode_row(leaf, end_id=END).prompt_ids) for leaf in leaves]
    assert sorted(lengths) == sorted(
        sum(one.token_count for one in leaf.segments[: count or 1])
        for leaf, count in zip(leaves, shared, strict=True)
    )


@pytest.mark.parametrize("is_own", [True, False])
async def test_trl_refuses_a_rewritten_history_and_names_the_setting(is_own: bool) -> None:
    trajectory = await (rewritten(None, env=Summarised()) if is_own else rewritten(SUMMARY))
    assert len(trajectory.sequences()) > 1
    with pytest.raises(ConfigurationError, match=r"summarise.*envkit\.history"):
        episode_row(trajectory, end_id=END)


async def test_trl_row_of_a_fault_is_one_masked_token_for_any_history() -> None:
    trajectory = await rewritten(SUMMARY)
    faulted = replace(trajectory, stop_reason=StopReason.ENV_FAULT, reward=None)
    row = episode_row(faulted, end_id=END)
    assert (row.response_ids, row.loss_mask, row.reward) == ((END,), (0,), None)
