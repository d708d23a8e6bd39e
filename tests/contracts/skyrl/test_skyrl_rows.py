"""What SkyRL's trainer does with rows, which is why some of its settings are refused."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fakes.gradients import LossCase, Policy, Reduction, of_skyrl
from fakes.gradients.episodes import episode_sets
from fakes.gradients.of_skyrl import training_batch
from fakes.skyrl_run import Run, real_trainer

from envkit_conformance import Shape

MakeRun = Callable[..., Run]


async def test_dynamic_sampling_cuts_step_wise_rows(run: MakeRun) -> None:
    made = run(policy=lambda ask: "good" if ask.member else "end", samples=2, step_wise=True)
    made.cfg.trainer.algorithm.dynamic_sampling.type = "filter"
    output = await made.generate()
    ids = [identity.instance_id for identity in output["trajectory_ids"]]
    assert len(ids) > 2
    kept, uids, goes_on = real_trainer(made.cfg, dp=1).handle_dynamic_sampling(output, ids)
    assert not goes_on
    assert len(uids) == len(kept["response_ids"]) == 2  # one prompt of two samples, as rows


@pytest.mark.parametrize("is_set", [False, True])
def test_normalising_a_batch_depends_on_its_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, is_set: bool
) -> None:
    (fault,) = (one for one in episode_sets() if one.name == "fault")
    case = LossCase(reduction=Reduction.TOKEN_MEAN)
    original = of_skyrl.make_config

    def normalising(shape: Shape, case: LossCase, episodes: int) -> Any:
        cfg = original(shape, case, episodes)
        cfg.trainer.algorithm.advantage_batch_normalize = is_set
        return cfg

    monkeypatch.setattr(of_skyrl, "make_config", normalising)
    found: list[Sequence[float]] = []
    for shape in (Shape.WHOLE, Shape.STEPS):
        batch = training_batch(Policy(), fault.trajectories, shape, case)
        trained = batch["advantages"][batch["loss_mask"].bool()]
        found.append([round(one, 7) for one in trained.tolist()])
    assert (found[0] == found[1]) is not is_set
