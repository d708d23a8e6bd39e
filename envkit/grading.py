"""Decide what a failed grader means: a fault, or a score of 0.

A grader that times out, crashes or leaves no reward may be broken, or what the policy left may have
broken it. `settle` runs it once per task on untouched state, as if the policy had done nothing. If
it fails there too, the grader is at fault; otherwise the episode scores 0.

    grade = settle(
        lambda: verify(files_of_the_policy),  # raises UngradedError without a reward
        untouched=lambda: verify(files_of_the_task),
        grader="my-env",
        task=task,
    )
    Turn(text, reward=grade.score, done=True, info=grade.info())
"""

import hashlib
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from envkit.errors import EnvFault, EnvkitError, FaultKind

UNGRADED: Final = "ungraded"
"""Key of `info` that says why the grader failed on what the policy left."""
_MAX_TASKS: Final = 4096
_MAX_REASON: Final = 400


class UngradedError(EnvkitError):
    """A grader gave no reward: it timed out, crashed, or left nothing that is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A score, and why it is 0 if what the policy left made the grader fail."""

    score: float
    failure: str | None = None
    """Why the grader gave no reward; None if it gave one."""

    def info(self) -> dict[str, Any]:
        """Return the entry for the turn's info; empty if the grader gave a reward."""
        return {} if self.failure is None else {UNGRADED: self.failure}


def settle(
    grade: Callable[[], float],
    *,
    untouched: Callable[[], object],
    grader: str,
    task: Mapping[str, Any],
) -> Grade:
    """Grade what the policy left; a grader that fails scores 0 if untouched state can be graded.

    Args:
        grade: Grades what the policy left. Raises `UngradedError` if there is no reward.
        untouched: Grades the same task as if the policy had done nothing; its score is ignored. It
            raises `UngradedError` too. A process calls it at most once per grader and task.
        grader: Name of the grader, with the settings that its result depends on.
        task: The task, as JSON data.

    Raises:
        EnvFault: The grader fails on untouched state too (`GRADER`), or either call raised it.
    """
    try:
        return Grade(score=grade())
    except UngradedError as error:
        reason = str(error)[:_MAX_REASON]
    return _judged(reason, _results.get(_key(grader, task), untouched))


async def asettle(
    grade: Callable[[], Awaitable[float]],
    *,
    untouched: Callable[[], Awaitable[object]],
    grader: str,
    task: Mapping[str, Any],
) -> Grade:
    """Grade from an event loop; see `settle`. Episodes that fail together may each run `untouched`.

    Raises:
        EnvFault: As for `settle`.
    """
    try:
        return Grade(score=await grade())
    except UngradedError as error:
        reason = str(error)[:_MAX_REASON]
    key = _key(grader, task)
    if not _results.knows(key):
        failure: UngradedError | None = None
        try:
            await untouched()
        except UngradedError as error:
            failure = error
        _results.keep(key, failure)
    return _judged(reason, _results.get(key, lambda: None))


def _judged(reason: str, failure: str | None) -> Grade:
    if failure is not None:
        raise EnvFault(
            f"the grader fails on untouched state too: {failure}. In this episode: {reason}",
            kind=FaultKind.GRADER,
        )
    return Grade(score=0.0, failure=reason)


def finite_reward(value: object, *, within: tuple[float, float] | None = None) -> float:
    """Return a number that a grader gave.

    Args:
        value: Data from outside.
        within: The lowest and the highest reward that the task declares; None means any finite
            number.

    Raises:
        UngradedError: It is not a finite number, or outside the range.
    """
    number = math.nan
    if isinstance(value, int | float):
        with suppress(OverflowError):  # an integer beyond any float
            number = float(value)
    if not math.isfinite(number):
        raise UngradedError(f"a reward must be a finite number, got {_shown(value)}")
    if within is not None and not within[0] <= number <= within[1]:
        raise UngradedError(
            f"the task declares rewards from {within[0]:g} to {within[1]:g}, got {number:g}"
        )
    return number


def _shown(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # an integer too long to print, a deep list
        return f"a value of type {type(value).__name__}"


def _key(grader: str, task: Mapping[str, Any]) -> str:
    text = json.dumps(task, sort_keys=True, default=repr).encode()
    return f"{grader} {hashlib.sha256(text).hexdigest()}"


class _Results:
    """How graders ended on untouched state, by task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, str | None] = OrderedDict()
        self._running: dict[str, threading.Lock] = {}

    def get(self, key: str, untouched: Callable[[], object]) -> str | None:
        """Return why a task's grader fails on untouched state; None if it does not."""
        with self._lock:
            running = self._running.setdefault(key, threading.Lock())
        with running:  # the members of a group fail together, and one run is enough
            with self._lock:
                if key in self._known:
                    return self._known[key]
            failure: UngradedError | None = None
            try:
                untouched()
            except UngradedError as error:
                failure = error
            return self.keep(key, failure)

    def knows(self, key: str) -> bool:
        """Return whether a task's grader has run on untouched state."""
        with self._lock:
            return key in self._known

    def keep(self, key: str, failure: UngradedError | None) -> str | None:
        """Record how it ended, and return why it failed."""
        with self._lock:
            self._known[key] = None if failure is None else str(failure)[:_MAX_REASON]
            self._running.pop(key, None)
            while len(self._known) > _MAX_TASKS:
                self._known.popitem(last=False)
            return self._known[key]


_results: Final = _Results()

__all__ = ["UNGRADED", "Grade", "UngradedError", "asettle", "finite_reward", "settle"]
