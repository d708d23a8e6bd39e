"""A task's container, as the environment uses it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envkit.closing import Closing
from envkit.errors import ConfigurationError, EnvFault, FaultKind, UnknownNameError
from envkit.grading import UngradedError
from envkit.text import utf8
from envkit_harbor.folders import Folder
from envkit_harbor.leftovers import PODMAN
from envkit_harbor.worker import Worker, worker_for

OWN_BACKEND: Final = "bubblewrap"
_SPARE_SECONDS: Final = 120.0
"""Seconds past the deadlines that the worker itself enforces."""
_STOP_SECONDS: Final = 150.0
_ROOT: Final = "root"
_OPTIONS: Final = (_ROOT, "disk_mib", "processes", "memory_mib")
_HALF: Final = 6000
"""Bytes kept of each end of an output."""
_LOST: Final = frozenset((FaultKind.CRASHED, FaultKind.TIMEOUT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How containers are started; see `HarborEnv`."""

    backend: str = OWN_BACKEND
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    python: str | None = None
    variables: tuple[str, ...] = ()
    ignore_unknown: bool = False
    keep_processes: bool = False

    def check(self) -> None:
        """Check the options of the own backend; Harbor checks those of the others.

        Raises:
            UnknownNameError: There is no such option.
            ConfigurationError: The root is not a folder, or a size is not a number above 0.
        """
        if self.backend != OWN_BACKEND:
            return
        for name, value in self.options.items():
            if name not in _OPTIONS:
                raise UnknownNameError.suggest("option of bubblewrap", name, _OPTIONS)
            if name == _ROOT:
                if value is not None and not Path(value, "bin").exists():
                    raise ConfigurationError(
                        f"root must be a folder with a whole system, got {value!r}: it has no bin/"
                    )
            elif not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ConfigurationError(f"{name} must be a number above 0, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that ended."""

    output: str
    code: int
    timed_out: bool


@dataclass(frozen=True, kw_only=True)
class Session(Closing):
    """A started container."""

    folder: Folder
    worker: Worker
    number: int

    @classmethod
    def start(cls, folder: Folder, settings: Settings) -> "Session":
        """Start a task's container.

        Raises:
            EnvFault: It did not start, or the task cannot be played with this backend.
            MissingDependencyError: Harbor or a program is not installed.
        """
        worker = worker_for(settings.python, settings.variables)
        is_own = settings.backend == OWN_BACKEND
        if settings.backend == PODMAN:
            worker.note_containers()
        order = {
            "do": "start",
            "task": str(folder.path),
            "backend": settings.backend,
            "box": dict(settings.options) if is_own else {},
            "options": {} if is_own else dict(settings.options),
            "ignores": settings.ignore_unknown,
            "keeps": settings.keep_processes,
        }
        what = f"the task {folder.path.name!r} cannot be started with {settings.backend!r}"
        started = worker.ask(order, folder.start_seconds + _SPARE_SECONDS, what)
        return cls(folder=folder, worker=worker, number=started["session"])

    def run(self, command: str, *, seconds: float) -> Ran:
        """Run a command in a new shell in the container.

        Args:
            command: Any text; bash reads it.
            seconds: Its deadline, which ends it inside.

        Raises:
            EnvFault: The container is gone.
        """
        order = {
            "do": "run",
            "session": self.number,
            "command": utf8(command.replace("\0", "")),
            "seconds": seconds,
        }
        found = self.worker.ask(order, seconds + _SPARE_SECONDS, "a command could not be run")
        return Ran(
            output=_shortened(found["output"]), code=found["code"], timed_out=found["timed_out"]
        )

    def grade(self) -> dict[str, float]:
        """End the policy's processes, run the task's verifier, and return all its numbers.

        Raises:
            UngradedError: It gave none: it timed out, crashed, or left no reward file.
            EnvFault: The container or the worker is gone.
        """
        seconds = self.folder.verifier_seconds + _SPARE_SECONDS
        if self.folder.is_separate:
            seconds += self.folder.start_seconds
        order = {"do": "grade", "session": self.number}
        try:
            return self.worker.ask(order, seconds, "the verifier gave no reward")["rewards"]
        except EnvFault as fault:
            if fault.kind in _LOST:
                raise
            raise UngradedError(str(fault)) from fault

    def close(self) -> None:
        """Stop the container; a worker that is gone took it along."""
        with suppress(EnvFault):
            order = {"do": "stop", "session": self.number}
            self.worker.ask(order, _STOP_SECONDS, "the container could not be stopped")


def _shortened(text: str) -> str:
    if len(text) <= 2 * _HALF:
        return text
    cut = len(text) - 2 * _HALF
    return f"{text[:_HALF]}\n[... {cut} characters left out ...]\n{text[-_HALF:]}"
