"""Play imported OSWorld tasks on the Linux desktop."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from envkit.env import Policy, Turn
from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind
from envkit.grading import Grade, settle
from envkit.tasks import ListSource, Task
from envkit_actions.action import Action, ActionKind, Status
from envkit_linux_desktop.env import LinuxDesktopEnv
from envkit_linux_desktop.osworld.files import FileFolder
from envkit_linux_desktop.osworld.playing import Finished, Play
from envkit_linux_desktop.osworld.programs import DEFAULT_APPLICATIONS, Application
from envkit_linux_desktop.osworld.task_file import OsworldTask, import_tasks
from envkit_linux_desktop.performing import Performer
from envkit_linux_desktop.session import DesktopSession

_WINDOW_SECONDS: Final = 20.0
_QUIET_SECONDS: Final = 0.4
_DASHES: Final = str.maketrans({"\u2013": "-", "\u2014": "-"})
"""LibreOffice's titles have another dash than OSWorld's from version 7.5 on."""


class OsworldEnv(LinuxDesktopEnv):
    """Do an OSWorld task with real applications on a Linux desktop, seeing screenshots.

    Task: `{"id": ...}` of an imported task file; files that cannot be played are in `refused`.
    Observation, action: as `computer-use-linux-v0`.
    Reward: when the episode ends, the evaluators' score of the final state, 0 to 1. An infeasible
        task is solved by `terminate` with the status failure, which fails every other one.
    Episode end: `terminate` or `answer`; `max_turns` replies truncate, and are graded too.
    Dataset: the task files and documents that you bring.
    """

    default_threshold = 1.0

    def __init__(
        self,
        *,
        folder: str | Path,
        files: str | Path,
        installed: Collection[Application] = DEFAULT_APPLICATIONS,
        identities: Sequence[str] | None = None,
        **arguments: Any,  # noqa: ANN401  # those of LinuxDesktopEnv
    ) -> None:
        """Import the tasks.

        Args:
            folder: Holds the task files.
            files: The folder of their documents; see `FileFolder`.
            installed: Applications of the desktop.
            identities: Ids of the tasks to play; None plays all that can be played.
            arguments: As for `LinuxDesktopEnv`: `action`, `max_turns`, `width`, `height`, ...

        Raises:
            ConfigurationError: A folder is missing, no task can be played, or an id is unknown.
            DatasetError: The index of the documents is not valid.
        """
        super().__init__(**arguments)
        self._files = FileFolder(files)
        found = import_tasks(folder, files=self._files, installed=installed)
        self.refused = found.refused
        """Why each other task file cannot be played."""
        known = {task.identity: task for task in found.tasks}
        chosen = list(known) if identities is None else identities
        if unknown := [identity for identity in chosen if identity not in known]:
            raise ConfigurationError(
                f"{len(unknown)} of the ids in 'identities' belong to no task that can be played, "
                f"such as {unknown[0]!r:.60}. See import_tasks(...).refused for reasons"
            )
        self._imported = {identity: known[identity] for identity in chosen}
        if not self._imported:
            raise ConfigurationError(
                f"no task in {str(folder)!r} can be played: {dict(found.reasons())}"
            )
        self.tasks = ListSource([{"id": identity} for identity in self._imported])
        self._play: Play | None = None
        self._gave_up = False

    def oracle(self) -> Policy:
        """Raise, since task files have no solutions.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError("OSWorld's task files have no solutions, so there is no oracle")

    def on_reset(self, task: Task) -> Turn:
        """Take a new session, play the setup and state the instruction.

        Raises:
            DatasetError: There is no such task, or a document has changed.
            EnvFault: No session started, or a setup step failed.
        """
        chosen = self._imported.get(str(task.get("id")))
        if chosen is None:
            raise DatasetError(f"no imported task has the id {task.get('id')!r:.80}")
        self._gave_up = False
        settled = self._use_session(
            lambda session, performer: self._play_setup(chosen, session, performer)
        )
        info = {"id": chosen.identity, "settled": settled}
        return self._turn(f"Task: {chosen.instruction}", info)

    def on_turn(self, response_text: str) -> Turn:
        """Execute the actions of the reply.

        Raises:
            EnvFault: The session died, or the grader failed.
        """
        actions = self.dialect.read(self.reply).actions
        end = next((action for action in actions if action.is_end), None)
        self._gave_up = end is not None and end.status is Status.FAILURE
        return super().on_turn(response_text)

    def _play_setup(self, task: OsworldTask, session: DesktopSession, performer: Performer) -> None:
        self._play = Play(task=task, desk=SessionDesk(session, performer), files=self._files)
        self._play.prepare()

    def _grade(self) -> Grade:
        assert self._play is not None
        play, session = self._play, self.session
        session.check()
        grade = settle(
            lambda: play.grade(gave_up=self._gave_up),
            untouched=lambda: self._grade_untouched(play.task),
            grader="osworld",
            task=self.task,
        )
        session.check()
        return grade

    def _grade_untouched(self, task: OsworldTask) -> None:
        session = self._pool.take()
        try:
            desk = SessionDesk(session, Performer(session.screen))
            play = Play(task=task, desk=desk, files=self._files)
            play.prepare()
            play.grade(gave_up=False)
            session.check()
        finally:
            session.close()


class SessionDesk:
    """Carries out a task's steps on a session."""

    def __init__(self, session: DesktopSession, performer: Performer) -> None:
        """Take a session and what gives it input."""
        self._session, self._performer = session, performer

    def put(self, path: str, data: bytes) -> None:
        """Write a file of the home folder."""
        self._session.put({path: data})

    def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the first bytes of a regular file; None if there is no such file."""
        return self._session.home.read(path, limit=limit)

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Return the names in a folder; none if it cannot be listed."""
        return self._session.home.names(folder) or ()

    def run(self, command: Sequence[str], *, seconds: float) -> Finished:
        """Run a command to its end."""
        desk = self._session.desk
        assert desk is not None
        done = desk.run(command, seconds=seconds)
        texts = [data.decode("utf-8", "replace") for data in (done.output, done.errors)]
        return Finished(code=done.code, stdout=texts[0], stderr=texts[1])

    def launch(self, command: Sequence[str]) -> None:
        """Start a program and wait for its window."""
        self._session.open(command)

    def act(self, action: Action) -> None:
        """Give input; a click without a place is at the centre of the screen."""
        screen = self._session.screen
        if action.kind is ActionKind.WAIT:  # a task may wait longer than a policy
            time.sleep(action.seconds)
            self._session.check()
            return
        if action.kind in (ActionKind.CLICK, ActionKind.DOUBLE_CLICK) and action.x is None:
            action = replace(action, x=screen.width // 2, y=screen.height // 2)
        note = self._performer.perform(action)
        if note is not None:
            raise EnvFault(f"a task's input cannot be given: {note}", kind=FaultKind.PERMANENT)
        # The steps before grading save a document: damage ends when it has been written.
        screen.settle(quiet=_QUIET_SECONDS, limit=5.0, least=_QUIET_SECONDS)

    def activate(self, title: str, *, strict: bool) -> None:
        """Wait for a window and bring it to the front."""
        identity = self._find(title, strict=strict, seconds=_WINDOW_SECONDS)
        if identity is not None:
            self._ask_manager(identity, "_NET_ACTIVE_WINDOW", [2, 0, 0])

    def close_window(self, title: str, *, strict: bool) -> None:
        """Close a window if it is there."""
        identity = self._find(title, strict=strict, seconds=0.0)
        if identity is not None:
            self._ask_manager(identity, "_NET_CLOSE_WINDOW", [0, 2, 0])

    def _find(self, title: str, *, strict: bool, seconds: float) -> int | None:
        wanted, until = title.translate(_DASHES), time.monotonic() + seconds
        while True:
            for identity, shown in self._session.screen.windows():
                name = shown.translate(_DASHES)
                if name == wanted if strict else wanted in name:
                    return identity
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)

    def _ask_manager(self, identity: int, message: str, data: list[int]) -> None:
        from Xlib import X
        from Xlib.protocol import event

        screen = self._session.screen
        with screen.faults():
            root = screen.x.screen().root
            window = screen.x.create_resource_object("window", identity)
            order = event.ClientMessage(
                window=window,
                client_type=screen.x.intern_atom(message),
                data=(32, [*data, 0, 0]),
            )
            root.send_event(order, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
            screen.x.sync()
        screen.settle(quiet=0.1, limit=2.0, least=0.1)
