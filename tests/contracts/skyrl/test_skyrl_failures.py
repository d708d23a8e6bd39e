"""What a failed episode becomes in SkyRL's real trainer."""

from collections.abc import Callable

import pytest
from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes.lost_backend import LOST, PATIENT, QUICK, check_ends, check_waits, register_lost
from fakes.skyrl_run import Run

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest
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


async def test_skyrl_ends_after_its_backend_was_killed(run: MakeRun) -> None:
    register_lost()
    made = run("hello", env=LOST, envkit=QUICK, samples=4)
    assert [sum(row) for row in (await made.generate())["rewards"]] == [1.0] * 4
    await check_ends(made.generate)


async def test_skyrl_goes_on_when_its_backend_is_back(run: MakeRun) -> None:
    register_lost()
    made = run("hello", env=LOST, envkit=PATIENT, samples=4)
    for output in await check_waits(made.generate):
        assert not any(map(sum, output["loss_masks"]))
    assert [sum(row) for row in (await made.generate())["rewards"]] == [1.0] * 4


async def test_skyrl_dataset_that_no_episode_reads_is_refused(run: MakeRun) -> None:
    """The environment would draw its own tasks, and the curve would look healthy."""
    made = run("good", envkit={"draw_tasks": False})
    with pytest.raises(ConfigurationError, match="no episode of obey-v0 reads it"):
        await made.generate()
    await made.generate([EpisodeRequest(env_id="obey-v0", seed=3)])
