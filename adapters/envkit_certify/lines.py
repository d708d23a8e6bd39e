"""The lines of a certification report."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self


class Verdict(StrEnum):
    """How one line ended."""

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"
    """The check does not apply to the environment."""
    NOT_RUN = "not run"
    """Something that the environment needs is missing, such as a browser or a server."""
    FIGURE = "figure"
    """A measurement without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateLine:
    """One line of the report."""

    name: str
    verdict: Verdict
    value: float | None = None
    """The line's number; `detail` says what it measures."""
    detail: str
    """What the number is, or why the line was skipped."""
    evidence: tuple[str, ...] = ()
    """Problems, or the data behind the number."""

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON data."""
        return {**asdict(self), "evidence": list(self.evidence)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the line that `to_json` described."""
        fields: dict[str, Any] = {
            **data,
            "verdict": Verdict(data["verdict"]),
            "evidence": tuple(data["evidence"]),
        }
        return cls(**fields)


def judged(
    name: str,
    value: float | None,
    detail: str,
    *,
    problems: Sequence[str],
    evidence: Sequence[str] = (),
) -> CertificateLine:
    """Return a line that fails if there is a problem."""
    verdict = Verdict.FAIL if problems else Verdict.PASS
    return CertificateLine(
        name=name,
        verdict=verdict,
        value=value,
        detail=detail,
        evidence=(*dict.fromkeys(problems), *evidence),
    )


def skipped(name: str, reason: str) -> CertificateLine:
    """Return a line that does not apply."""
    return CertificateLine(name=name, verdict=Verdict.SKIPPED, detail=reason)


def not_run(name: str, reason: str) -> CertificateLine:
    """Return a line that could not start."""
    return CertificateLine(
        name=name,
        verdict=Verdict.NOT_RUN,
        detail="the environment cannot play here",
        evidence=(reason,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyReport:
    """The result of a certification."""

    target: str
    episodes: int
    seed: int
    lines: tuple[CertificateLine, ...]
    is_complete: bool
    """False if it was interrupted; `lines` then holds those finished."""

    @property
    def failed(self) -> tuple[CertificateLine, ...]:
        """The lines that failed."""
        return self._with(Verdict.FAIL)

    @property
    def not_run(self) -> tuple[CertificateLine, ...]:
        """The lines that could not run."""
        return self._with(Verdict.NOT_RUN)

    @property
    def passed(self) -> bool:
        """Whether every line ran and none failed."""
        return self.is_complete and not self.failed and not self.not_run

    @property
    def summary(self) -> str:
        """Short summary of what failed and what did not run."""
        counts = {"failed": len(self.failed), "not run": len(self.not_run)}
        told = [
            f"{count} of {len(self.lines)} lines {what}" for what, count in counts.items() if count
        ]
        return ", ".join(told) or "no line failed"

    def _with(self, verdict: Verdict) -> tuple[CertificateLine, ...]:
        return tuple(line for line in self.lines if line.verdict is verdict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "target": self.target,
            "episodes": self.episodes,
            "seed": self.seed,
            "is_complete": self.is_complete,
            "passed": self.passed,
            "lines": [line.to_json() for line in self.lines],
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the table's rows: line, verdict, number, detail."""
        return [
            (
                line.name,
                line.verdict.value,
                "-" if line.value is None else f"{line.value:.4g}",
                line.detail,
            )
            for line in self.lines
        ]
