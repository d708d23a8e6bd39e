"""Play a task's steps in a session, and grade it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from envkit.errors import EnvFault, FaultKind
from envkit.grading import UngradedError
from envkit_actions.action import Action
from envkit_linux_desktop.osworld import sources, steps
from envkit_linux_desktop.osworld.evaluators import File
from envkit_linux_desktop.osworld.files import FileFolder
from envkit_linux_desktop.osworld.grading import Comparison, score
from envkit_linux_desktop.osworld.task_file import MAX_BYTES, Check, OsworldTask

_RUN_SECONDS: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str


class Desk(Protocol):
    """What a session offers to the steps of a task. Its home folder is `/home/user`."""

    def put(self, path: str, data: bytes) -> None:
        """Write a file; the path is relative to the home folder."""
        ...

    def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the first bytes of a regular file; None if there is no such file."""
        ...

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Return the names in a folder; none if it cannot be listed."""
        ...

    def run(self, command: Sequence[str], *, seconds: float) -> Finished:
        """Run a command to its end, or to the end of its time."""
        ...

    def launch(self, command: Sequence[str]) -> None:
        """Start a program."""
        ...

    def act(self, action: Action) -> None:
        """Give input; a click without a place is at the centre of the screen."""
        ...

    def activate(self, title: str, *, strict: bool) -> None:
        """Wait for a window and bring it to the front; a window that never comes is no error."""
        ...

    def close_window(self, title: str, *, strict: bool) -> None:
        """Close a window if it is there."""
        ...


@dataclass(kw_only=True)
class Play:
    """One episode of a task: prepare it, let the policy act, grade it."""

    task: OsworldTask
    desk: Desk
    files: FileFolder
    saved: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Outputs and fetched files by name, which `cache_file` getters read."""
    _own: set[str] = field(default_factory=set[str], init=False)
    """Names of the task's own files among them; the policy left the others."""

    def prepare(self) -> None:
        """Play the setup.

        Raises:
            EnvFault: A setup step failed.
        """
        for step in self.task.setup:
            self._step(step)

    def grade(self, *, gave_up: bool) -> float:
        """Play the steps before grading and return the score, 0 to 1.

        Args:
            gave_up: Whether the last action ended the episode with a failure, which solves an
                infeasible task and fails every other.

        Raises:
            UngradedError: A step or an evaluator failed.
            EnvFault: The session is gone.
        """
        try:
            return self._grade(gave_up=gave_up)
        except EnvFault as fault:
            if fault.kind is FaultKind.PERMANENT:  # the session refused; what is in it may be why
                raise UngradedError(str(fault)) from fault
            raise

    def _grade(self, *, gave_up: bool) -> float:
        if self.task.is_infeasible or gave_up:
            return float(self.task.is_infeasible and gave_up)
        for step in self.task.before_grading:
            self._step(step)
        scores: list[float] = []
        for check in self.task.checks:
            found = self._check(check)
            if self.task.any_suffices and found == 1.0:
                return 1.0
            if not self.task.any_suffices and found == 0.0:
                return 0.0
            scores.append(found)
        return max(scores) if self.task.any_suffices else sum(scores) / len(scores)

    def _check(self, check: Check) -> float:
        result = self._fetch(check.result)
        if result is None:
            return 0.0
        expected = None if check.expected is None else self._fetch(check.expected)
        return score(
            Comparison(
                function=check.function, result=result, expected=expected, options=check.options
            )
        )

    def _fetch(self, source: sources.Source) -> Any:  # noqa: ANN401  # JSON data or files
        match source:
            case sources.Literal():
                return source.value
            case sources.Output():
                done = self.desk.run(source.command, seconds=_RUN_SECONDS)
                return done.stderr if source.is_error else done.stdout
            case sources.Listing():
                children = [{"name": name} for name in self.desk.names(source.path)]
                return {"children": children}
            case sources.Saved():
                data = self.saved.get(source.name)
                return None if data is None else self._file(source.name, data)
            case sources.HomeFiles():
                self._own.difference_update(source.names)
                found = [self.desk.read(path, limit=MAX_BYTES) for path in source.paths]
                return self._given(source, found)
            case sources.FolderFiles():
                self._own.update(source.names)
                return self._given(source, [self.files.read(one) for one in source.paths])

    def _given(self, source: sources.Files, found: Sequence[bytes | None]) -> Any:  # noqa: ANN401
        """Return a file, None or a list of them."""
        for name, data in zip(source.names, found, strict=True):
            if data is not None:
                self.saved[name] = data
        files = [
            None if (data := found[index]) is None else self._file(source.names[index], data)
            for index in source.gives
        ]
        return files[0] if len(files) == 1 else files

    def _file(self, name: str, data: bytes) -> File:
        # Either value of a check may come from the policy's home folder.
        is_result = name not in self._own
        return File(name=name, data=data, is_result=is_result, others=dict(self.saved))

    def _step(self, step: steps.Step) -> None:
        match step:
            case steps.PutFile():
                self.desk.put(step.path, self.files.read(step.address))
            case steps.Run():
                self._run(step)
            case steps.Launch():
                self.desk.launch(step.command)
            case steps.Activate():
                self.desk.activate(step.title, strict=step.strict)
            case steps.CloseWindow():
                self.desk.close_window(step.title, strict=step.strict)
            case Action():
                self.desk.act(step)

    def _run(self, step: steps.Run) -> None:
        """Run a command; one that fails is the task's affair, one that cannot start is not."""
        done = self.desk.run(step.command, seconds=_RUN_SECONDS)
        if done.code == 127:  # what a shell gives for an unknown command
            raise EnvFault(
                f"a step of the task {self.task.identity!r} needs a program that is not installed: "
                f"{' '.join(step.command)[:200]}",
                kind=FaultKind.PERMANENT,
            )
        for name, text in ((step.stdout, done.stdout), (step.stderr, done.stderr)):
            if name:
                self.saved[name] = text.encode()
