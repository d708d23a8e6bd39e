"""Random histories as rows of TRL's two trainers."""

from typing import Any

import pytest
from fakes.random_groups import (
    FILLER,
    all_groups,
    check_advantages,
    check_owners,
    own_tokens,
    random_group,
    with_silent_leaves,
)
from fakes.trajectories import IMAGE_TOKEN

from envkit.errors import ConfigurationError
from envkit.trajectory import Trajectory, step_rows
from envkit_trl.rows import episode_row
from envkit_trl.samples import RowSettings, group_samples


def is_one_row(trajectory: Trajectory) -> bool:
    return len(step_rows(trajectory, filler_id=FILLER, merge=True)) == 1


def samples_of(group: tuple[Trajectory, ...], *, is_scaled: bool = False) -> list[tuple[int, Any]]:
    """Return the number of the episode and the sample of each row."""
    settings = RowSettings(
        end_id=FILLER, media_ids=(IMAGE_TOKEN,), takes_images=True, is_scaled=is_scaled
    )
    samples, _ = group_samples(group, group_id=0, version=0, settings=settings)
    owner = {token: number for number, one in enumerate(group) for token in own_tokens(one)}
    return [(owner[int(one.input_ids[one.completion_mask == 1][0])], one) for one in samples]


@pytest.mark.parametrize("is_scaled", [False, True])
def test_trl_async_random_histories_are_trained_once(is_scaled: bool) -> None:
    for _, group in all_groups():
        found = samples_of(group, is_scaled=is_scaled)
        check_owners(
            group, [(n, one.input_ids.tolist(), one.completion_mask.tolist()) for n, one in found]
        )
        advantages = [(number, float(one.advantage)) for number, one in found]
        check_advantages(group, advantages, is_scaled=is_scaled)


def test_trl_async_leaves_without_own_tokens_have_no_row() -> None:
    group = with_silent_leaves(random_group(1))
    assert {number for number, _ in samples_of(group)} <= set(range(len(group) - 2))


def test_trl_takes_one_row_and_refuses_rewritten_histories() -> None:
    for _, group in all_groups():
        single = tuple(one for one in group if one.is_faulted or is_one_row(one))
        rows = [episode_row(one, end_id=FILLER) for one in single]
        check_owners(single, [(n, row.response_ids, row.loss_mask) for n, row in enumerate(rows)])
        for one in group:
            if not any(one is other for other in single):
                with pytest.raises(ConfigurationError, match=r"envkit\.history"):
                    episode_row(one, end_id=FILLER)
