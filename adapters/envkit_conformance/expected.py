"""What the suite expects: the core's own rows, and the contents of a recording."""

from dataclasses import replace

from envkit.trajectory import Row, Trajectory, call_rows, step_rows, whole_row
from envkit_conformance.delivered import Content, Shape


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


def rewarded_rows(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the rows with the trajectory's reward on the last token of each."""
    reward = rows[-1].reward
    total = [(len(row.response_ids) - 1, reward or 0.0) for row in rows]
    return tuple(
        replace(row, reward=reward, turn_rewards=(last,))
        for row, last in zip(rows, total, strict=True)
    )


def contents(trajectory: Trajectory) -> frozenset[Content]:
    """Return what a trainer must be able to accept for this trajectory."""
    found: set[Content] = set()
    if any(segment.images for segment in trajectory.segments):
        found.add(Content.IMAGES)
    if (
        trajectory.has_ledger
        and not trajectory.is_faulted
        and len(trajectory.steps(merge=True)) > 1
    ):
        found.add(Content.SEQUENCES)
    if not trajectory.has_ledger:
        found.add(Content.NO_LEDGER)
    return frozenset(found)
