"""What SkyRL's trainer does with rows, which is why some of its settings are refused."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fakes.skyrl_run import Run, real_trainer

from envkit_conformance import Shape
from envkit_conformance.gradient import LossCase, Policy, Reduction
from envkit_conformance.gradient.episodes import episode_sets
from envkit_skyrl.gradient import training_batch

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
    from envkit_skyrl import gradient

    (fault,) = (one for one in episode_sets() if one.name == "fault")
    case = LossCase(reduction=Reduction.TOKEN_MEAN)
    original = gradient.make_config

    def normalising(shape: Shape, case: LossCase, episodes: int) -> Any:
        cfg = original(shape, case, episodes)
        cfg.trainer.algorithm.advantage_batch_normalize = is_set
        return cfg

    monkeypatch.setattr(gradient, "make_config", normalising)
    found: list[Sequence[float]] = []
    for shape in (Shape.WHOLE, Shape.STEPS):
        batch = training_batch(Policy(), fault.trajectories, shape, case)
        trained = batch["advantages"][batch["loss_mask"].bool()]
        found.append([round(one, 7) for one in trained.tolist()])
    assert (found[0] == found[1]) is not is_set
