"""The gradient suite by itself: what it calls equal, what it finds, what it keeps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.gradients import (
    GROUP_SIZE,
    Comparison,
    Difference,
    GradientPath,
    LossCase,
    Policy,
    Reduction,
    Verdict,
    compare_paths,
    load_gradients,
    pairs,
    save_gradients,
)
from fakes.gradients.cases import CASES
from fakes.gradients.episodes import CONTROLS, episode_sets
from fakes.gradients.formula import plain_advantages, plain_backward
from fakes.gradients.suite import check_controls, compare, measure
from fakes.gradients.table import show, show_across

from envkit.errors import ConfigurationError, MissingDependencyError, StorageError
from envkit.trajectory import Trajectory, check_trajectory
from envkit_conformance import Shape


def _plain(policy: Policy, episodes: Sequence[Trajectory], shape: Shape, case: LossCase) -> None:
    del shape
    plain_backward(policy, episodes, case)


def _unexplained(*_: object) -> None:
    return None


def _saying(known: Difference) -> Callable[..., Difference]:
    def explain(*_: object) -> Difference:
        return known

    return explain


def path(**changes: Any) -> GradientPath:
    """Return a path that is the plain formula, with changes."""
    given: dict[str, Any] = {
        "name": "plain",
        "shapes": (Shape.MERGED,),
        "reductions": frozenset({Reduction.TOKEN_MEAN, Reduction.EPISODE_MEAN}),
        "takes_images": False,
        "backward": _plain,
        "explain": _unexplained,
    }
    return GradientPath(**{**given, **changes})


MISTAKES = {control.name for control in CONTROLS}


def verdicts(found: Sequence[Comparison]) -> set[str]:
    return {one.verdict for one in found if one.episodes not in MISTAKES}


def test_sets_of_episodes_are_whole_groups_of_sound_trajectories() -> None:
    for one in episode_sets():
        assert len(one.trajectories) % GROUP_SIZE == 0
        groups = [trajectory.group_id for trajectory in one.trajectories]
        assert all(groups.count(group) == GROUP_SIZE for group in groups)
        for trajectory in one.trajectories:
            assert not list(check_trajectory(trajectory))


def test_advantages_of_the_formula_leave_the_fault_out() -> None:
    (chosen,) = (one for one in episode_sets() if one.name == "fault")
    found = plain_advantages(chosen.trajectories, is_scaled=False)
    assert found[3] == 0.0
    assert found[:3] == pytest.approx([0.375, 0.25, -0.625])


def test_old_policy_leaves_the_clip_on_both_sides() -> None:
    policy = Policy()
    ratios: list[float] = []
    for trajectory in episode_sets()[0].trajectories:
        for row in trajectory.steps(merge=True):
            ids = policy.small((*row.prompt_ids, *row.response_ids))
            ratio = (policy.logprobs(ids).detach() - policy.old_logprobs(ids)).exp()
            mask = np.asarray(row.loss_mask, bool)
            ratios += ratio.numpy()[len(row.prompt_ids) - 1 :][mask].tolist()
    assert sum(one > 1.2 for one in ratios) > 10
    assert sum(one < 0.8 for one in ratios) > 10
    assert sum(0.8 < one < 1.2 for one in ratios) > 10
    assert max(ratios) < 3  # where dual clipping would begin


@pytest.mark.slow  # the next one tests the controls alone
def test_suite_calls_the_formula_itself_equal_and_finds_every_mistake() -> None:
    found = list(compare_paths([path()]))
    assert verdicts(found) == {Verdict.EQUAL}
    sets = {one.name for one in episode_sets() if not one.has_images}
    assert {one.episodes for one in found} == sets | MISTAKES
    mistakes = [one for one in found if one.episodes in MISTAKES]
    assert [one.verdict for one in mistakes] == [Verdict.FOUND] * len(CONTROLS)


def test_suite_fails_a_path_on_which_a_mistake_makes_no_difference() -> None:
    """Even where the norm is known to differ: that difference must not hide the mistake."""
    known = Difference(reason="it is doubled", setting="none", norm_ratio=2.0)
    sound = {one.name: one.trajectories for one in episode_sets()}
    repaired = [
        (tuple(map(control.mistake, sound[control.episodes])), sound[control.episodes])
        for control in CONTROLS
    ]

    def blind(policy: Policy, episodes: Sequence[Trajectory], shape: Shape, case: LossCase) -> None:
        (right,) = {id(good): good for bad, good in repaired if bad == tuple(episodes)}.values()
        _plain(policy, right, shape, case)
        for parameter in policy.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 2

    found = list(check_controls(path(backward=blind, explain=_saying(known))))
    assert {one.episodes for one in found} == MISTAKES
    assert {one.verdict for one in found} == {Verdict.FAIL}


@pytest.mark.slow
def test_suite_finds_rows_that_count_as_episodes() -> None:
    def by_rows(
        policy: Policy, episodes: Sequence[Trajectory], shape: Shape, case: LossCase
    ) -> None:
        """Divide by rows, as a trainer does that does not know what belongs together."""
        plain_backward(policy, episodes, case)
        rows = sum(len(one.steps(merge=True)) for one in episodes)
        for parameter in policy.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= len(episodes) / rows

    found = list(compare_paths([path(backward=by_rows)]))
    failed = {one.episodes for one in found if one.verdict is Verdict.FAIL}
    assert failed == {"rewritten", "compaction", "sub-agent"}  # only the norm shows it


@pytest.mark.slow
def test_suite_requires_a_known_difference() -> None:
    claim = Difference(reason="it is tilted", setting="another one", norm_ratio=2.0)

    def doubled(
        policy: Policy, episodes: Sequence[Trajectory], shape: Shape, case: LossCase
    ) -> None:
        plain_backward(policy, episodes, case)
        for parameter in policy.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 2

    kept = list(compare_paths([path(backward=doubled, explain=_saying(claim))]))
    assert verdicts(kept) == {Verdict.EXPLAINED}
    assert "it is tilted; equal with: another one" in kept[0].message
    gone = list(compare_paths([path(explain=_saying(claim))]))
    assert verdicts(gone) == {Verdict.FAIL}
    tilted = replace(claim, norm_ratio=None)
    assert verdicts(list(compare_paths([path(explain=_saying(tilted))]))) == {Verdict.FAIL}


def test_suite_keeps_the_words_of_a_refusal() -> None:
    def refuse(*_: object) -> None:
        raise ConfigurationError("rows weigh too much;\n set token-mean")

    def absent(*_: object) -> None:
        raise MissingDependencyError.for_extra("training", "trainer", "trainer")

    found = next(iter(compare_paths([path(backward=refuse)])))
    assert (found.verdict, found.message) == (
        Verdict.REFUSED,
        "rows weigh too much; set token-mean",
    )
    assert next(iter(compare_paths([path(backward=absent)]))).verdict is Verdict.NOT_INSTALLED


@pytest.mark.slow
def test_stored_gradients_are_compared_across_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        save_gradients(compare_paths([path(name=name)]), tmp_path, name)
    stored = load_gradients(tmp_path)
    assert {one.path for one in stored} == {"one", "other"}
    found = pairs(stored)[("one", "other")]
    assert found.cases == 7 * sum(one.reduction is not Reduction.CONSTANT for one in CASES)
    assert found.cosine == pytest.approx(1.0)
    assert found.norm_error == pytest.approx(0.0)


def test_stored_gradients_name_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="got none"):
        load_gradients(tmp_path)
    (tmp_path / "x.gradients.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(StorageError, match=r"x\.gradients\.npz"):
        load_gradients(tmp_path)


def test_measure_of_nothing_is_equal_to_nothing_alone() -> None:
    assert measure([0.0, 0.0], [0.0, 0.0]) == (1.0, 1.0)
    assert measure([0.0, 0.0], [1.0, 0.0]) == (0.0, 0.0)


# ---- the tables


def _half(policy: Policy, episodes: Sequence[Trajectory], shape: Shape, case: LossCase) -> None:
    plain_backward(policy, episodes, case)
    for parameter in policy.model.parameters():
        if parameter.grad is not None:
            parameter.grad *= 0.5


@pytest.mark.slow
def test_tables_show_gradients_and_compare_stored_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("good", "other"):
        found = list(compare_paths([path(name=name)]))
        save_gradients(found, tmp_path, name)
    show(found)
    assert "35 gradients: 28 equal, 7 found" in capsys.readouterr().out
    show_across(load_gradients(tmp_path))
    header, good, other = capsys.readouterr().out.splitlines()
    assert header.split() == ["1", "-", "cosine,", "norm", "error", "good", "other"]
    assert good.split()[:2] == ["good", "-"]
    assert good.endswith("(28)")
    assert other.split()[-1] == "-"


def test_table_names_gradients_that_differ_or_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigurationError("set token-mean")

    case = LossCase(reduction=Reduction.TOKEN_MEAN)
    first = episode_sets()[0]
    wrong = compare(path(name="bad", backward=_half), first, Shape.MERGED, case)
    refused = compare(path(name="strict", backward=refuse), first, Shape.MERGED, case)
    show([wrong, refused])
    out = capsys.readouterr().out
    assert "FAIL 0.5000" in out
    assert "no reason is known" in out
    assert "strict, 1 of its gradients: set token-mean" in out
    assert "2 gradients: 1 fail, 1 refused" in out
