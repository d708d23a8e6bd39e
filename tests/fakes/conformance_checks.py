"""What every adapter's contract test asks of the conformance suite."""

from collections.abc import Sequence

from envkit_conformance import ConformanceResult, Projection, run_suite, shipped_recordings


def check_projection(projections: Sequence[Projection], name: str) -> None:
    """Fail unless a projection delivers every recording, but for what it says it cannot carry."""
    projection = next(one for one in projections if one.name == name)
    recordings = shipped_recordings()
    outcomes = run_suite([projection], recordings)
    wrong = [
        one
        for one in outcomes
        if one.verdict in (ConformanceResult.FAIL, ConformanceResult.NOT_INSTALLED)
    ]
    assert not wrong, "\n".join(map(str, wrong))
    passed = [one.recording for one in outcomes if one.verdict is ConformanceResult.PASS]
    within = [one.name for one in recordings if not one.contents & projection.cannot_carry]
    assert passed == within
    assert passed
