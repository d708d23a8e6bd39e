"""The environment `computer-use-linux-v0`: real applications on a real Linux desktop."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from envkit import ranges
from envkit.env import Capabilities, Env, Policy, Turn
from envkit.errors import EnvFault, EnvkitError, FaultKind
from envkit.grading import Grade, UngradedError, settle
from envkit.marks import Mark
from envkit.tasks import Task
from envkit_actions.action import Action, ActionKind
from envkit_actions.dialect import Dialect
from envkit_actions.marks import mark
from envkit_actions.parsed import feedback
from envkit_actions.random_clicks import random_clicks
from envkit_actions.zooming import View
from envkit_linux_desktop.desk import Limits
from envkit_linux_desktop.display import encoded
from envkit_linux_desktop.performing import LONGEST_WAIT, Performer
from envkit_linux_desktop.policies import nothing, oracle
from envkit_linux_desktop.session import DesktopSession, Pool
from envkit_linux_desktop.source import LinuxDesktopTasks, scenario_of
from envkit_linux_desktop.tasks.checks import FilesHome, Home
from envkit_linux_desktop.tasks.scenario import Scenario

_ACTION_SECONDS: Final = 30.0
"""Maximum seconds of one action, without its own waiting."""
_REPLY_SECONDS: Final = 120.0
"""Seconds after which a reply's remaining actions are skipped."""
_POLL_SECONDS: Final = 0.1


class LinuxDesktopEnv(Env):
    """Use real applications on a Linux desktop through screenshots.

    Task: a sentence such as "Rename report-3.txt to summary.txt". Tasks are drawn from
        `envkit_linux_desktop.tasks.FAMILIES` at levels 1 to 4. Each runs in a new session without
        network, with its own home folder.
    Observation: a screenshot of `width` x `height` pixels after each reply; at first with the goal,
        later with any actions that failed or could not be parsed; with `has_tree`, also the
        accessibility tree. If a reply ends with `zoom`, the image shows only that region, enlarged.
    Action: one or several actions in the form of the model family that `action` names. Actions
        after one that ends the episode are ignored.
    Reward: 1.0 if every check holds on the final files in the home folder, else 0.0. A session
        that dies is a fault and has no reward.
    Episode end: `terminate` or `answer`; `max_turns` replies truncate, and are graded too.
    Chance: doing nothing gives 0.0.
    Budget: `max_turns` replies, one screenshot each.
    Dataset: generated, no licence needed.
    Source: original; applications from Debian.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, on_step_timeout="truncate"
    )
    """Not deterministic: applications run in real time. A policy can wait past a step's deadline,
    and a session that hangs is noticed long before."""
    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {
        "oracle": oracle,
        "nothing": nothing,
        "random": random_clicks,
    }
    """Named scripted policies: name -> a factory that takes no argument."""

    def __init__(
        self,
        *,
        action: str = "canonical",
        level: int | None = None,
        families: Sequence[str] | None = None,
        apps: Sequence[str] | None = None,
        split: str = "train",
        max_turns: int = 100,
        width: int = 1280,
        height: int = 800,
        has_tree: bool = False,
        ready: int = 1,
        limits: Limits | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment; the first session starts at the first reset.

        Args:
            action: The form of replies, by the name of a model family.
            level: 1 to 4; None mixes all.
            families: Names of task families; None means all.
            apps: Only tasks of these applications; None means all.
            split: "train" or "test".
            max_turns: Replies per episode.
            width: Screen width in pixels, 800 to 2560.
            height: Screen height in pixels, 600 to 1600.
            has_tree: Whether observations have the accessibility tree as text.
            ready: Sessions to keep ready for the next reset; 0 starts each on demand.
            limits: Resource limits of each session; None uses the defaults.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A value is out of range.
            UnknownNameError: There is no such action family, task family or application.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        ranges.within(800, 2560, width=width)
        ranges.within(600, 1600, height=height)
        ranges.within(0, 64, ready=ready)
        self.dialect = Dialect(action, width, height)
        self.tools = self.dialect.tools
        self.tasks = LinuxDesktopTasks(level=level, families=families, apps=apps, split=split)
        self.system_prompt = _PROMPT.format(turns=max_turns, actions=self.dialect.prompt)
        self._size, self._has_tree = (width, height), has_tree
        self._pool = Pool(width, height, size=ready, limits=limits or Limits())
        self._session: DesktopSession | None = None
        self._performer: Performer | None = None
        self.scenario: Scenario
        self._whole = 0
        """Index of the last image of the whole screen, which coordinates refer to."""

    @property
    def session(self) -> DesktopSession:
        """The running session.

        Raises:
            EnvFault: No session is running.
        """
        if self._session is None:
            raise EnvFault("the session is closed", kind=FaultKind.CRASHED)
        return self._session

    def on_reset(self, task: Task) -> Turn:
        """Take a new session, open the task's windows and state the goal.

        Raises:
            DatasetError: The task does not name a scenario.
            EnvFault: Two attempts to start a session failed.
            MissingDependencyError: A program or a package is missing.
        """
        self.scenario = scenario_of(task)
        settled = self._use_session(self._open_windows)
        info = {key: task[key] for key in ("id", "family", "level") if key in task}
        return self._turn(f"Task: {self.scenario.goal}", {**info, "settled": settled})

    def on_turn(self, response_text: str) -> Turn:
        """Execute the actions of the reply.

        Raises:
            EnvFault: The session died, or the grader failed.
        """
        parsed = self.dialect.read(self.reply)
        notes: list[str] = []
        told: list[str] = []
        marks: list[Mark] = []
        end: Action | None = None
        view: View | None = None
        settled, until = True, time.monotonic() + _REPLY_SECONDS
        for number, action in enumerate(parsed.actions):
            if time.monotonic() > until:
                left = len(parsed.actions) - number
                notes.append(f"actions left out at the end of {_REPLY_SECONDS:g} seconds: {left}")
                break
            cursor = self.session.screen.pointer
            image = None if self._whole == self.turn else self._whole
            if action.is_end:
                end = action
                marks.append(mark(action, cursor=cursor, image=image))
                break
            note, settled = self._perform(action)
            marks.append(mark(action, cursor=cursor, note=note, image=image))
            told += self.dialect.answers(action, cursor)
            view = View.of_zoom(action, self._size)
            if note is not None:
                notes.append(f"{action.kind.value}: {note}")
        grade = self._grade() if end or self.turn + 1 >= self.max_turns else None
        terms = {} if grade is None else {"task": grade.score}
        info: dict[str, Any] = {
            **parsed.info,
            **({} if grade is None else grade.info()),
            "notes": notes,
            "settled": settled,
            "reward_terms": terms,
            "marks": marks,
        }
        if end is not None:
            return self._turn("The task is over.", info, reward=sum(terms.values()), done=True)
        labels = [] if view is None else [view.label]
        lines = [*labels, *told, *parsed.problems, *parsed.warnings, *notes]
        lines += [] if settled else ["The screen is still changing."]
        if view is None:
            self._whole = self.turn + 1
        return self._turn(feedback(lines), info, reward=sum(terms.values()), view=view)

    def close(self) -> None:
        """Close the session and the pool."""
        self._leave()
        self._pool.close()

    def write_click(self, x: int, y: int) -> str:
        """Return the reply that clicks at a pixel of the screenshot, for playing by hand."""
        return self.dialect.write_click(x, y)

    def oracle(self) -> Policy:
        """Return a policy that solves tasks through the keyboard."""
        return oracle()

    def _use_session(self, prepare: Callable[[DesktopSession, Performer], None]) -> bool:
        """Prepare a new session, with one retry; return whether the screen settled."""
        self._whole = 0
        try:
            return self._prepare_new(prepare)
        except EnvFault:
            return self._prepare_new(prepare)

    def _prepare_new(self, prepare: Callable[[DesktopSession, Performer], None]) -> bool:
        self._leave()
        session = self._session = self._pool.take()
        performer = self._performer = Performer(session.screen)
        prepare(session, performer)
        return session.screen.settle(quiet=0.2, limit=5.0, least=0.1)

    def _open_windows(self, session: DesktopSession, _: Performer) -> None:
        session.put(self.scenario.files)
        for command in self.scenario.launch:
            session.open(command)

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _perform(self, action: Action) -> tuple[str | None, bool]:
        """Execute an action; return why it failed, if it did, and whether the screen settled."""
        assert self._performer is not None
        session = self.session
        with session.deadline(_ACTION_SECONDS + min(LONGEST_WAIT, max(0.0, action.seconds))):
            note = self._performer.perform(action)
            quiet = 0.04 if action.kind is ActionKind.TYPE else 0.06
            settled = session.screen.settle(quiet=quiet, least=quiet)
        return note, settled

    def _grade(self) -> Grade:
        """Grade the final files.

        Raises:
            EnvFault: The session is gone, or the grader failed.
        """
        session = self.session
        session.check()
        grade = settle(
            lambda: self._score(session.home),
            untouched=self._try_grader,
            grader="linux-desktop",
            task=self.task,
        )
        session.check()
        return grade

    def _score(self, home: Home) -> float:
        """Grade a home folder until it solves the task or the time is over."""
        until = time.monotonic() + self.scenario.grace
        with self._failing():
            while not (score := self.scenario.grade(home)) and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
        return score

    def _try_grader(self) -> None:
        """Grade the initial files and the solution, which have everything that checks read."""
        with self._failing():
            for files in (self.scenario.files, self.scenario.solve()):
                self.scenario.grade(FilesHome(files))
                for check in self.scenario.checks:
                    check.holds(FilesHome(files))

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Raise a failure of the grader as `UngradedError`."""
        try:
            yield
        except EnvkitError:
            raise
        except Exception as error:
            raise UngradedError(
                f"the grader of the family {self.task.get('family')!r} failed: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _turn(
        self,
        text: str,
        info: Mapping[str, Any],
        *,
        reward: float = 0.0,
        done: bool = False,
        view: View | None = None,
    ) -> Turn:
        """Build a turn with a screenshot of the whole screen, or of the zoomed view."""
        self.session.check()
        shot = self.session.shot()
        image = encoded(shot) if view is None else view.enlarge(shot)
        if self._has_tree and not done:
            text = f"{text}\n\nAccessibility tree:\n{self.session.tree()}"
        return Turn(text, images=(image,), reward=reward, done=done, info=info)


_PROMPT: Final = """You use a Linux computer by mouse and keyboard. You see a screenshot after each
reply. There is no network.
{actions}
End the task yourself when it is done and all files are saved: with terminate and the status
success, or with the status failure if it can't be done. You have {turns} replies."""
