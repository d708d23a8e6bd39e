"""Random histories through verl's output class and its trainers' own advantages."""

import pytest
from fakes.gradients import LossCase, Reduction
from fakes.gradients.of_verl import TrainingRow, advantages_of, deliver
from fakes.random_groups import (
    FILLER,
    all_groups,
    check_advantages,
    check_owners,
    random_group,
    rewritten_often,
    with_silent_leaves,
)

from envkit.errors import ConfigurationError

CASE = LossCase(reduction=Reduction.TOKEN_MEAN)


def episode_of(line: TrainingRow) -> int:
    """Return the number of a line's episode in its group."""
    return int(line.key.rsplit("_", 2)[1])


@pytest.mark.parametrize("is_scaled", [False, True])
def test_verl_random_histories_are_trained_once(is_scaled: bool) -> None:
    case = LossCase(reduction=Reduction.TOKEN_MEAN, is_scaled=is_scaled)
    for _, group in all_groups():
        lines = deliver(group, case, is_v1=True, filler_id=FILLER)
        columns = [(one.output.response_ids, one.output.response_mask) for one in lines]
        check_owners(group, [(episode_of(one), *c) for one, c in zip(lines, columns, strict=True)])
        found = advantages_of(lines, case, is_v1=True)
        check_advantages(
            group,
            [
                (episode_of(line), float(value))
                for line, row in zip(lines, found, strict=True)
                for value in row[line.mask.bool()]
            ],
            is_scaled=is_scaled,
        )


def test_verl_leaves_without_own_tokens_train_nothing() -> None:
    group = with_silent_leaves(random_group(1))
    lines = deliver(group, CASE, is_v1=True, filler_id=FILLER)
    rows = [(episode_of(one), one.output.response_ids, one.output.response_mask) for one in lines]
    check_owners(group, rows)


def test_verl_v0_refuses_an_episode_of_many_rows() -> None:
    with pytest.raises(ConfigurationError, match="use_v1=true"):
        deliver(rewritten_often(4), CASE, is_v1=False, filler_id=FILLER)
