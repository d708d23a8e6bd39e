"""What a failed episode becomes in SkyRL's real trainer."""

from collections.abc import Callable

import pytest
from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes.skyrl_run import Run

from envkit_conformance import Shape
from envkit_skyrl.conformance import rows_of_groups

MakeRun = Callable[..., Run]


async def advantages_of(made: Run, name: str, shape: Shape) -> Effect:
    """Send a group through the trainer, without the deviation and with it."""
    found: dict[bool, tuple[float, ...]] = {}
    rows = tokens = 0
    for is_scaled in (False, True):
        made.cfg.trainer.algorithm.grpo_norm_by_std = is_scaled
        output = rows_of_groups(failure_group(name), shape, filler_id=made.codec.stop_ids[0])
        failed = [n for n, one in enumerate(output["trajectory_ids"]) if one.repetition_id == 3]
        rows, tokens = len(failed), sum(sum(output["loss_masks"][row]) for row in failed)
        members = [one.repetition_id for one in output["trajectory_ids"]]
        batch = await made.train(output)
        firsts = [members.index(member) for member in range(3)]
        spans = [batch["response_mask"][row].bool() for row in firsts]
        pairs = zip(firsts, spans, strict=True)
        found[is_scaled] = tuple(float(batch["advantages"][row][span][0]) for row, span in pairs)
    return Effect(rows=rows, trained_tokens=tokens, centred=found[False], scaled=found[True])


@pytest.mark.parametrize("shape", [Shape.WHOLE, Shape.MERGED])
async def test_failed_episodes_have_the_documented_effect(run: MakeRun, shape: Shape) -> None:
    made = run(samples=4, step_wise=shape is not Shape.WHOLE)
    check_effects("skyrl", {name: await advantages_of(made, name, shape) for name in FAILURES})
