"""What becomes of a failed episode in verl's own advantages, for docs/recovery.md."""

import pytest
from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes.gradients import LossCase, Reduction
from fakes.gradients.of_verl import TrainingRow, advantages_of, deliver


def effect(name: str, *, is_v1: bool) -> Effect:
    group = failure_group(name)
    failed: list[TrainingRow] = []
    found: list[tuple[float, ...]] = []
    for is_scaled in (False, True):
        case = LossCase(reduction=Reduction.TOKEN_MEAN, is_scaled=is_scaled)
        filler_id = group[0].segments[0].train_ids[0]
        lines = deliver(group, case, is_v1=is_v1, filler_id=filler_id)
        failed = [line for line in lines if line.key.startswith("g_3_")]
        values = advantages_of(lines, case, is_v1=is_v1)
        found.append(tuple(float(row[0]) for row in values[:3]))
    return Effect(
        rows=len(failed),
        trained_tokens=sum(int(line.mask.sum()) for line in failed),
        centred=found[0],
        scaled=found[1],
    )


@pytest.mark.parametrize("is_v1", [False, True], ids=["v0", "v1"])
def test_verl_failures_have_the_documented_effects(is_v1: bool) -> None:
    effects = {name: effect(name, is_v1=is_v1) for name in FAILURES}
    check_effects(f"verl-{'v1' if is_v1 else 'v0'}", effects)
