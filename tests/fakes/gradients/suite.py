"""Send every set of episodes through every path and compare with the reference formula.

A gradient wrong by a factor has cosine 1, so norms are compared too. Known differences must appear
as the path predicts: one that has vanished also fails, since the table in the documentation would
be wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

import numpy as np
from fakes.gradients.cases import (
    CASES,
    COSINE_TOLERANCE,
    Difference,
    GradientPath,
    LossCase,
    Reduction,
)
from fakes.gradients.episodes import CONTROLS, EpisodeSet, episode_sets
from fakes.gradients.formula import plain_backward
from fakes.gradients.policy import Policy
from numpy.typing import NDArray

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit_conformance.delivered import Shape

Vector = NDArray[np.float64]


class Verdict(StrEnum):
    """What a comparison found."""

    EQUAL = "equal"
    EXPLAINED = "explained"
    """It differs as the path predicts; the text gives the reason and the setting."""
    REFUSED = "refused"
    """The adapter refuses to start such a run."""
    FOUND = "found"
    """A deliberate mistake changed the gradient."""
    FAIL = "fail"
    NOT_INSTALLED = "not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One gradient compared with the reference."""

    path: str
    episodes: str
    """Name of the episode set or control."""
    shape: Shape
    case: LossCase
    verdict: Verdict
    cosine: float | None = None
    """Cosine of the angle between the two; None if there is no gradient."""
    norm_ratio: float | None = None
    """The trainer's norm over the reference norm; None if there is no gradient."""
    message: str = ""
    vector: Vector | None = None
    """The trainer's gradient, if there is one."""

    @property
    def key(self) -> str:
        """Key shared by gradients that should be equal across trainers."""
        return f"{self.episodes} | {self.case.name}"

    def __str__(self) -> str:
        numbers = (
            "" if self.cosine is None else f" cosine {self.cosine:.7f} norm {self.norm_ratio:.5f}"
        )
        text = f"{self.path} {self.shape.value}, {self.key}: {self.verdict.value}{numbers}"
        return f"{text}: {self.message}" if self.message else text


Compared = Callable[[Iterable[GradientPath]], list[Comparison]]
"""The contract runs' fixture `compared`: `compare_paths`, whose result the run shows."""


def compare_paths(paths: Iterable[GradientPath]) -> Iterator[Comparison]:
    """Compare every path in every case, then check that deliberate mistakes are detected."""
    for path in paths:
        for episodes in episode_sets():
            for shape in path.shapes:
                if not episodes.suits(shape) or (episodes.has_images and not path.takes_images):
                    continue
                for case in CASES:
                    if case.reduction in path.reductions:
                        yield compare(path, episodes, shape, case)
        yield from check_controls(path)


def compare(path: GradientPath, episodes: EpisodeSet, shape: Shape, case: LossCase) -> Comparison:
    """Compare one gradient."""
    known = path.explain(shape, case, episodes.trajectories)
    start = Comparison(
        path=path.name, episodes=episodes.name, shape=shape, case=case, verdict=Verdict.FAIL
    )
    try:
        vector = _gradient(path, episodes, shape, case)
    except MissingDependencyError as error:
        return replace(start, verdict=Verdict.NOT_INSTALLED, message=str(error))
    except ConfigurationError as error:
        return replace(start, verdict=Verdict.REFUSED, message=" ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001  # a foreign trainer may raise anything
        return replace(start, message=f"raised {type(error).__name__}: {error}")
    cosine, ratio = measure(vector, plain_gradient(episodes.name, case))
    verdict, message = _judge(cosine, ratio, known, path.tolerance)
    return replace(
        start, verdict=verdict, message=message, cosine=cosine, norm_ratio=ratio, vector=vector
    )


def check_controls(path: GradientPath) -> Iterator[Comparison]:
    """Make each mistake in `CONTROLS` and expect a different gradient."""
    reduction = Reduction.TOKEN_MEAN
    if reduction not in path.reductions:
        (reduction, *_) = sorted(path.reductions)
    case = LossCase(reduction=reduction)
    sets = {one.name: one for one in episode_sets()}
    for control in CONTROLS:
        sound = sets[control.episodes]
        shape = next(filter(sound.suits, path.shapes), None)
        if shape is None:
            continue
        trajectories = tuple(map(control.mistake, sound.trajectories))
        broken = replace(sound, name=control.name, trajectories=trajectories)
        vector = _gradient(path, broken, shape, case)
        cosine, ratio = measure(vector, plain_gradient(sound.name, case))
        known = path.explain(shape, case, sound.trajectories)
        expected = 1.0 if known is None or known.norm_ratio is None else known.norm_ratio
        is_found = not _is_equal(cosine, ratio, expected, 10 * path.tolerance)
        yield Comparison(
            path=path.name,
            episodes=control.name,
            shape=shape,
            case=case,
            verdict=Verdict.FOUND if is_found else Verdict.FAIL,
            cosine=cosine,
            norm_ratio=ratio,
            message="" if is_found else "the comparison does not notice this mistake",
            vector=vector,
        )


@cache
def plain_gradient(episodes: str, case: LossCase) -> Vector:
    """Return the reference formula's gradient for a set."""
    (chosen,) = (one for one in episode_sets() if one.name == episodes)
    policy = policy_for(chosen)
    plain_backward(policy, chosen.trajectories, case)
    return policy.take_gradient()


def policy_for(episodes: EpisodeSet) -> Policy:
    """Return the cached policy that can read a set."""
    return _policy(episodes.has_images)


@cache
def _policy(has_images: bool) -> Policy:
    return Policy(has_images=has_images)


def _gradient(path: GradientPath, episodes: EpisodeSet, shape: Shape, case: LossCase) -> Vector:
    policy = policy_for(episodes)
    policy.model.zero_grad(set_to_none=True)
    path.backward(policy, episodes.trajectories, shape, case)
    return policy.take_gradient()


def measure(one: Sequence[float] | Vector, other: Sequence[float] | Vector) -> tuple[float, float]:
    """Return two vectors' cosine and the ratio of their norms."""
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    norms = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    if not all(norms):
        return (1.0, 1.0) if norms[0] == norms[1] else (0.0, 0.0)
    return float(first @ second) / (norms[0] * norms[1]), norms[0] / norms[1]


def _is_equal(cosine: float, ratio: float, expected: float, tolerance: float) -> bool:
    return cosine >= 1 - COSINE_TOLERANCE and abs(ratio / expected - 1) <= tolerance


def _judge(
    cosine: float, ratio: float, known: Difference | None, tolerance: float
) -> tuple[Verdict, str]:
    if known is None:
        if _is_equal(cosine, ratio, 1.0, tolerance):
            return Verdict.EQUAL, ""
        return Verdict.FAIL, "the gradient differs from the plain formula, and no reason is known"
    text = f"{known.reason}; equal with: {known.setting}"
    if known.norm_ratio is None:
        differs = not _is_equal(cosine, ratio, 1.0, tolerance)
    else:
        differs = _is_equal(cosine, ratio, known.norm_ratio, tolerance)
    if differs:
        return Verdict.EXPLAINED, text
    return Verdict.FAIL, f"it does not differ as predicted ({known.norm_ratio}): {text}"
