"""Check every recording with every adapter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from envkit.errors import ConfigurationError, EnvkitError, MissingDependencyError
from envkit.trajectory import Row, Trajectory, call_rows, step_rows, whole_row
from envkit_conformance.compare import first_difference
from envkit_conformance.delivered import Content, DeliveredRow, Projection, Shape
from envkit_conformance.recordings import Recording


class ConformanceResult(StrEnum):
    """Result for one recording in one adapter."""

    PASS = "pass"
    """Every row arrived token for token."""
    REFUSED = "refused"
    """The adapter declares that it cannot carry this, and refused with a clear error."""
    FAIL = "fail"
    NOT_INSTALLED = "not installed"
    """The trainer is not installed, so nothing was checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceLine:
    """The verdict on one recording in one adapter."""

    projection: str
    recording: str
    verdict: ConformanceResult
    message: str = ""
    """The first difference, the refusal, or what is missing; empty for a pass."""

    def __str__(self) -> str:
        text = f"{self.projection}, recording {self.recording}: {self.verdict}"
        return f"{text}: {self.message}" if self.message else text


def run_suite(
    projections: Iterable[Projection], recordings: Sequence[Recording]
) -> tuple[ConformanceLine, ...]:
    """Check every recording in every projection; outcomes are ordered by projection."""
    return tuple(check(projection, one) for projection in projections for one in recordings)


def check(projection: Projection, recording: Recording) -> ConformanceLine:
    """Deliver one recording and compare what arrived.

    An adapter may refuse a failed trajectory whose content it cannot carry, or deliver it masked.
    """
    beyond = (projection.cannot_carry | {Content.NO_LEDGER}) & recording.contents
    try:
        delivered = projection.deliver(recording.trajectory, filler_id=recording.filler_id)
    except MissingDependencyError as error:
        return _outcome(projection, recording, ConformanceResult.NOT_INSTALLED, str(error))
    except ConfigurationError as error:
        verdict = ConformanceResult.REFUSED if beyond else ConformanceResult.FAIL
        return _outcome(projection, recording, verdict, str(error))
    except Exception as error:  # noqa: BLE001  # a foreign trainer may raise anything
        return _outcome(
            projection, recording, ConformanceResult.FAIL, _unexpected(error, bool(beyond))
        )
    is_failure = recording.trajectory.reward is None
    if beyond and not is_failure:
        difference = (
            f"delivered {len(delivered)} rows of a trajectory with {' and '.join(sorted(beyond))}, "
            "which it declares it cannot carry; refuse with a ConfigurationError instead"
        )
    elif projection.omits_unscored and is_failure:
        difference = f"{len(delivered)} rows of a failure, none expected" if delivered else None
    else:
        difference = _difference(projection, recording, delivered)
    verdict = ConformanceResult.PASS if difference is None else ConformanceResult.FAIL
    return _outcome(projection, recording, verdict, difference or "")


def expected_rows(trajectory: Trajectory, shape: Shape, *, filler_id: int) -> tuple[Row, ...]:
    """Return the rows that a trainer must receive for a trajectory.

    Raises:
        ConfigurationError: The trajectory is several rows.
    """
    if shape is Shape.WHOLE:
        return (whole_row(trajectory, filler_id=filler_id),)
    if shape is Shape.CALLS:
        return call_rows(trajectory, filler_id=filler_id)
    return step_rows(trajectory, filler_id=filler_id, merge=shape is Shape.MERGED)


def _rewarded_rows(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the rows with the trajectory's reward on the last token of each."""
    reward = rows[-1].reward
    total = [(len(row.response_ids) - 1, reward or 0.0) for row in rows]
    return tuple(
        replace(row, reward=reward, turn_rewards=(last,))
        for row, last in zip(rows, total, strict=True)
    )


def _difference(
    projection: Projection, recording: Recording, delivered: Sequence[DeliveredRow]
) -> str | None:
    try:
        expected = expected_rows(
            recording.trajectory, projection.shape, filler_id=recording.filler_id
        )
    except EnvkitError as error:
        return (
            f"delivered {len(delivered)} rows although the core has none of shape "
            f"{projection.shape.value!r} ({error})"
        )
    is_fork = recording.trajectory.origin is not None
    if projection.rewards_every_row and (is_fork or len(expected) > 1):
        expected = _rewarded_rows(expected)
    return first_difference(expected, delivered, placement=projection.reward_placement)


def _unexpected(error: Exception, must_refuse: bool) -> str:
    text = f"raised {type(error).__name__}: {error}"
    return f"{text}; refuse with a ConfigurationError instead" if must_refuse else text


def _outcome(
    projection: Projection, recording: Recording, verdict: ConformanceResult, message: str
) -> ConformanceLine:
    return ConformanceLine(
        projection=projection.name,
        recording=recording.name,
        verdict=verdict,
        message=" ".join(message.split()),
    )
