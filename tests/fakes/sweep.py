"""Certify many environments in one process, to measure the certification itself."""

from collections.abc import Callable, Sequence
from typing import Final

from envkit_certify.certified import Plan
from envkit_certify.lines import CertificateLine, Verdict
from envkit_certify.process import FreshProcess
from envkit_certify.worker import LINES, line_of, open_subject

_NO_VERDICT: Final = ("speed", "memory")
_COSTLY: Final = ("contract", "leaks", "state", "constants", "payloads", "replies")

Progress = Callable[[str, list[CertificateLine]], None]
"""Told the failed lines of each target."""


def sweep(
    targets: Sequence[str], *, episodes: int = 16, progress: Progress | None = None
) -> dict[str, list[str]]:
    """Return the names of the lines that failed, by target.

    Nothing protects this process from an environment that hangs.

    Args:
        targets: Ids or classes, as `envkit certify` takes them.
        episodes: Per policy.
        progress: Told after each target.
    """
    found: dict[str, list[str]] = {}
    with FreshProcess() as replays:
        for target in targets:
            subject = open_subject(Plan(target=target, episodes=episodes), replays)
            lines = [line_of(subject, name) for name in LINES if name not in _NO_VERDICT]
            subject.close()
            failed = [line for line in lines if line.verdict is Verdict.FAIL]
            found[target] = [line.name for line in failed]
            if progress is not None:
                progress(target, failed)
    return found


def missed(targets: Sequence[str], *, episodes: int) -> list[str]:
    """Return the targets that no line fails. A target's costly lines run only if no other fails.

    Args:
        targets: Ids or classes, as `envkit certify` takes them.
        episodes: Per policy.
    """
    names = [name for name in LINES if name not in (*_NO_VERDICT, *_COSTLY)]
    found: list[str] = []
    with FreshProcess() as replays:
        for target in targets:
            subject = open_subject(Plan(target=target, episodes=episodes), replays)
            lines = (line_of(subject, name) for name in (*names, *_COSTLY))
            if all(line.verdict is not Verdict.FAIL for line in lines):
                found.append(target)
            subject.close()
    return found
