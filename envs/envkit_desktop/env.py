"""The environment `computer-use-v0`: a simulated desktop, seen in screenshots."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from envkit import ranges
from envkit.env import Capabilities, Env, Policy, Turn
from envkit.errors import DatasetError
from envkit.marks import Mark
from envkit.success import OWN_REWARD
from envkit.tasks import Task
from envkit_actions.action import Action, ActionKind, Status
from envkit_actions.dialect import Dialect
from envkit_actions.marks import mark
from envkit_actions.parsed import feedback
from envkit_actions.random_clicks import random_clicks
from envkit_actions.zooming import View
from envkit_desktop.desktop import Desktop, Event, Program, no_program
from envkit_desktop.families import FAMILIES
from envkit_desktop.families.family import ANSWER, OVER, Family
from envkit_desktop.performing import perform
from envkit_desktop.policies import oracle
from envkit_desktop.popups import Popup
from envkit_desktop.screen import Screen
from envkit_desktop.source import DesktopTasks
from envkit_desktop.theme import THEMES

WIDTH: Final = 672
HEIGHT: Final = 448


class ComputerUseEnv(Env):
    """Do something on a desktop with mouse and keyboard, seeing screenshots.

    Task: a sentence such as "Set Volume to 40 and press OK". Tasks are generated from `FAMILIES` at
        levels 1 to 5: more windows, look-alike names, longer lists and chains, and interrupting
        dialogs. Some tasks of levels 3 to 5 are infeasible.
    Observation: a screenshot of `width` x `height` pixels after each reply, with the goal at first,
        and later with any actions that had no effect or could not be read, and the answer to
        `cursor_position`. After a `zoom` that ends a reply it shows the region alone, enlarged to
        the same size; the text says which.
    Action: one or several actions in the form of the model family that `action` names. Actions
        after one that ends the episode are ignored.
    Reward: 1.0 if the final state passes the task's checker, else 0.0; for an infeasible task, 1.0
        for `terminate` with the status failure. With `shaping`, every turn adds `shaping` times the
        change in the fraction of subgoals reached. `info["reward_terms"]` adds up to the reward.
    Episode end: a button that submits the task, `terminate` or `answer`; `max_turns` replies
        truncate.
    Budget: `max_turns` replies, one screenshot each.
    Dataset: generated, no licence needed; text uses the bundled DejaVu Sans.
    Source: original. Kinds of tasks and conventions follow MiniWoB++ and OSWorld.
    """

    capabilities = Capabilities(
        thread_safe=True, compute_bound=True, replay_safe=True, snapshot=True, deterministic=True
    )
    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {
        "oracle": oracle,
        "random": random_clicks,
    }
    """Named scripted policies: name -> a factory that takes no argument."""

    def __init__(
        self,
        *,
        action: str = "canonical",
        level: int | None = None,
        families: Sequence[str] | None = None,
        split: str = "train",
        max_turns: int = 40,
        width: int = WIDTH,
        height: int = HEIGHT,
        shaping: float = 0.0,
        shows_pointer: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Set up tasks and rules.

        Args:
            action: The form of replies, by the name of a model family.
            level: 1 to 5; None mixes all.
            families: Names from `FAMILIES`; None means all.
            split: "train" or "test".
            max_turns: Replies per episode.
            width: Screen width in pixels, at least the default.
            height: Screen height in pixels, at least the default.
            shaping: Weight of progress in the reward; 0.0 adds none.
            shows_pointer: Whether screenshots show the mouse pointer.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A value is out of range.
            UnknownNameError: There is no such action family or family of tasks.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        ranges.within(WIDTH, 1920, width=width)
        ranges.within(HEIGHT, 1200, height=height)
        ranges.at_least(0, shaping=shaping)
        self.dialect = Dialect(action, width, height)
        self.tools = self.dialect.tools
        self.tasks = DesktopTasks(level=level, families=families, split=split)
        self.system_prompt = _PROMPT.format(turns=max_turns, actions=self.dialect.prompt)
        self._size = (width, height)
        self._shaping = shaping
        self._shows_pointer = shows_pointer
        self._start_blank()

    def _start_blank(self) -> None:
        self.desk = Desktop(width=self._size[0], height=self._size[1])
        self._screen = Screen(*self._size, shows_pointer=self._shows_pointer)
        self._whole = 0
        """Index of the last image of the whole screen, which coordinates refer to."""

    @property
    def family(self) -> Family:
        """The family of the running task."""
        return FAMILIES[self.task["family"]]

    def on_reset(self, task: Task) -> Turn:
        """Build the desktop and state the goal.

        Raises:
            DatasetError: The task lacks a field, or names an unknown family or theme.
        """
        _check_task(task)
        self._start_blank()
        self.desk = Desktop(
            width=self._size[0],
            height=self._size[1],
            theme=task["theme"],
            program=self._program(),
        )
        try:
            self.family.build(self.desk, task["data"], random.Random(task["look"]))
            self.desk.popups = tuple(Popup(**popup) for popup in task["popups"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DatasetError(
                f"the data of a {task['family']!r} task must be what its family draws, "
                f"got {error!r} from {task['data']!r:.200}"
            ) from error
        info = {key: task[key] for key in ("id", "family", "level") if key in task}
        return self._turn(f"Task: {task['goal']}", info)

    def on_turn(self, response_text: str) -> Turn:
        """Carry out the actions of the reply."""
        parsed = self.dialect.read(self.reply)
        before = self._progress()
        notes: list[str] = []
        told: list[str] = []
        end: Action | None = None
        view: View | None = None
        marks: list[Mark] = []
        for action in parsed.actions:
            cursor, field = self.desk.pointer, _field(self.desk, action)
            if action.is_end:
                end = action
                marks.append(self._mark(action, cursor))
                break
            note = perform(self.desk, action)
            marks.append(self._mark(action, cursor, note) | field)
            told += self.dialect.answers(action, cursor)
            view = View.of_zoom(action, self._size)
            if note is not None:
                notes.append(f"{action.kind.value}: {note}")
            if self.desk.model.get(OVER):
                break
        done = end is not None or bool(self.desk.model.get(OVER))
        if end is not None and end.kind is ActionKind.ANSWER:
            self.desk.model[ANSWER] = end.text
        terms: dict[str, float] = {}
        if self._shaping:
            terms["progress"] = self._shaping * (self._progress() - before)
        if done or self.turn + 1 >= self.max_turns:
            terms["task"] = float(self._is_solved(end))
        info: dict[str, Any] = {
            **parsed.info,
            "notes": notes,
            "reward_terms": terms,
            "marks": marks,
        }
        if self._shaping:
            info[OWN_REWARD] = terms.get("task", 0.0)
        labels = [] if view is None else [view.label]
        said = feedback([*labels, *told, *parsed.problems, *parsed.warnings, *notes])
        view = None if done else view
        if view is None:
            self._whole = self.turn + 1
        text = "The task is over." if done else said
        return self._turn(text, info, reward=sum(terms.values()), done=done, view=view)

    def _mark(self, action: Action, cursor: tuple[int, int], note: str | None = None) -> Mark:
        """Return the mark of an action; after a zoom, on the last image of the whole screen."""
        image = None if self._whole == self.turn else self._whole
        return mark(action, cursor=cursor, note=note, image=image)

    def _turn(
        self,
        text: str,
        info: Mapping[str, Any],
        *,
        reward: float = 0.0,
        done: bool = False,
        view: View | None = None,
    ) -> Turn:
        """Build a turn with a screenshot of the desktop, or of the zoomed view."""
        image = self._screen.shoot(self.desk)
        if view is not None:
            image = view.enlarge(self._screen.canvas)
        info = {**info, "state_hash": self._screen.state_hash(self.desk)}
        return Turn(text, images=(image,), reward=reward, done=done, info=info)

    def _is_solved(self, end: Action | None) -> bool:
        """Return whether the task is solved, given the action that ended it, if one did."""
        has_given_up = (
            end is not None and end.kind is ActionKind.TERMINATE and end.status is Status.FAILURE
        )
        if not self.task["data"].get("feasible", True) or has_given_up:
            return has_given_up and not self.task["data"].get("feasible", True)
        return all(self.family.goals(self.desk, self.task["data"]))

    def _progress(self) -> float:
        if not self._shaping or not self.task["data"].get("feasible", True):
            return 0.0
        goals = self.family.goals(self.desk, self.task["data"])
        return sum(goals) / len(goals)

    def _program(self) -> Program:
        family, data = self.family, self.task["data"]

        def react(desk: Desktop, event: Event) -> bool:
            return family.react(desk, event, data)

        return react

    def get_state(self) -> dict[str, Any]:
        """Return the desktop."""
        return {"desk": self.desk.to_json(), "whole": self._whole}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the desktop; the next screenshot is redrawn in full."""
        self._start_blank()
        program = self._program() if self.task else no_program
        self.desk = Desktop.from_json(state["desk"], program=program)
        self._whole = state["whole"]

    def write_click(self, x: int, y: int) -> str:
        """Return the reply that clicks at a pixel of the screenshot, for playing by hand."""
        return self.dialect.write_click(x, y)

    def oracle(self) -> Policy:
        """Return a policy that reads the state and solves every task."""
        return oracle()


_PROMPT: Final = """You use a computer by mouse and keyboard. You see a screenshot after each reply.
{actions}
Some tasks end when a button such as OK hands them in. End the others yourself: with terminate and
the status success, with answer where a question is asked, or with terminate and the status failure
where the task can't be done. You have {turns} replies."""


def _field(desk: Desktop, action: Action) -> Mark:
    """Return the middle of the field that takes typed text; empty if there is none."""
    if action.kind is not ActionKind.TYPE or desk.focus is None:
        return {}
    origin = desk.origin_of(desk.focus)
    if origin is None:
        return {}
    x, y = origin[0] + desk.focus.width // 2, origin[1] + desk.focus.height // 2
    return {"x": x, "y": y} if 0 <= x < desk.width and 0 <= y < desk.height else {}


def _check_task(task: Task) -> None:
    kinds = {"goal": str, "data": dict, "popups": list, "theme": int, "look": int, "family": str}
    for name, kind in kinds.items():
        if not isinstance(task.get(name), kind):
            raise DatasetError(
                f"a computer-use task needs {name!r} of type {kind.__name__}, "
                f"got {task.get(name)!r:.80}"
            )
    if task["family"] not in FAMILIES or not 0 <= task["theme"] < len(THEMES):
        raise DatasetError(
            f"a task must name one of the families {sorted(FAMILIES)} and a theme below "
            f"{len(THEMES)}, got {task['family']!r} and {task['theme']!r}"
        )
