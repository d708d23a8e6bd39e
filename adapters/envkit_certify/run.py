"""Certify an environment in its own process, line by line."""

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Final

from envkit import errors, ranges
from envkit.errors import ConfigurationError, ContractError, EnvkitError, UnknownNameError
from envkit.plugins import load_policy
from envkit_certify.certified import Plan
from envkit_certify.lines import CertificateLine, CertifyReport
from envkit_certify.process import Worker, WorkerEnded
from envkit_certify.worker import LINES, failed

_HASH_SEED: Final = 1
LINE_LIMIT_S: Final = 300.0
"""Time limit per line; after it, the process is killed."""

Progress = Callable[[CertificateLine], None]
"""Called with each line as it is found."""


class Certification:
    """A certification whose partial report is available while it runs."""

    def __init__(
        self, plan: Plan, *, lines: Collection[str] = LINES, limit_s: float = LINE_LIMIT_S
    ) -> None:
        """Prepare a certification.

        Args:
            plan: What to certify.
            lines: Names of the lines to run; all by default.
            limit_s: Time limit per line.

        Raises:
            ConfigurationError: A number is out of range.
            UnknownNameError: A line name is unknown.
        """
        ranges.at_least(2, episodes=plan.episodes)
        ranges.at_least(0, max_blind=plan.max_blind)
        ranges.positive(**{"the time limit": limit_s})
        for name in lines:
            if name not in LINES:
                raise UnknownNameError.suggest("certificate line", name, LINES)
        for place in plan.policies:
            load_policy(place)
        self._plan, self._limit_s = plan, limit_s
        self._names = [name for name in LINES if name in lines]
        self._lines: list[CertificateLine] = []

    def run(self, progress: Progress | None = None) -> CertifyReport:
        """Run every line. An exception such as KeyboardInterrupt may stop it.

        If a line's process hangs, exits or dies, the line fails and the next one gets a new
        process.

        Raises:
            ConfigurationError: The environment is unknown or does not accept the arguments.
            ContractError: The environment cannot be imported or built.
        """
        while left := self._names[len(self._lines) :]:
            with Worker(_HASH_SEED) as worker:
                worker.ask({"plan": asdict(self._plan), "lines": left})
                self._open(worker)
                for name in left:
                    ended = False
                    try:
                        line = _line(worker.answer(self._limit_s), name)
                    except WorkerEnded as error:
                        line, ended = failed(name, str(error)), True
                    self._lines.append(line)
                    if progress is not None:
                        progress(line)
                    if ended:
                        break
        return self.report()

    def _open(self, worker: Worker) -> None:
        """Wait until the environment is built.

        Raises:
            ConfigurationError: The environment is unknown or does not accept the arguments.
            ContractError: It cannot be imported or built.
        """
        try:
            answer = worker.answer(self._limit_s)
        except WorkerEnded as error:
            raise ContractError(f"{self._plan.target} cannot be built: {error}") from None
        if "error" in answer:
            kind = getattr(errors, answer["kind"], None)
            is_known = isinstance(kind, type) and issubclass(kind, EnvkitError)
            text: str = answer["error"]
            unknown = f"{self._plan.target} cannot be built: {text}"
            if isinstance(kind, type) and issubclass(kind, ConfigurationError):
                raise kind(text.partition(": ")[2])
            raise ContractError(text.partition(": ")[2] if is_known else unknown)

    def report(self) -> CertifyReport:
        """Return the results so far."""
        return CertifyReport(
            target=self._plan.target,
            episodes=self._plan.episodes,
            seed=self._plan.seed,
            lines=tuple(self._lines),
            is_complete=len(self._lines) == len(self._names),
        )


def _line(answer: dict[str, object], name: str) -> CertificateLine:
    data = answer.get("line")
    if isinstance(data, dict):
        return CertificateLine.from_json(data)  # pyright: ignore[reportUnknownArgumentType]  # our own worker's
    return failed(name, str(answer.get("error", answer)))
