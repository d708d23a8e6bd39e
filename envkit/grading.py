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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.errors import EnvFault, EnvkitError, FaultKind, type_name

UNGRADED: Final = "ungraded"
"""Key of `info` that says why the grader failed on what the policy left."""
_MAX_TASKS: Final = 4096
_MAX_REASON: Final = 400
_MAX_IDLE_ANSWERS: Final = 8
_CAUSES: Final = 16
_CLIENTS: Final = frozenset({"aiohttp", "anthropic", "httpcore", "httpx", "openai", "requests"})
"""Packages whose errors come from a server or the connection to it."""
_REFUSED_CONTENT: Final = frozenset({400, 413, 422})
"""Statuses with which a server refuses what it was sent."""


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


def idle_answers(task: Mapping[str, Any]) -> Iterator[str]:
    """Yield answers that every grader of a task should be able to read, for `untouched`.

    The empty answer comes first. The texts and numbers of the task follow, because many graders
    raise on an empty answer, and the reference is usually among them.
    """
    answers = [""]
    waiting: list[object] = [task]
    while waiting and len(answers) <= _MAX_IDLE_ANSWERS:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += reversed(list(cast("Mapping[str, object]", value).values()))
        elif isinstance(value, str | int | float):
            with suppress(ValueError):  # an integer too long to print
                answers.append(str(value))
    yield from dict.fromkeys(answers)


def is_unreachable(error: BaseException) -> bool:
    """Return whether a grader failed because a server or the connection to it failed.

    A server that refuses what it was sent (400, 413 or 422) does not count: the policy wrote it.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < _CAUSES:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(_status_of(one) in _REFUSED_CONTENT for one in chain):
        return False
    return any(_is_connection_error(one) for one in chain)


def _is_connection_error(error: BaseException) -> bool:
    if isinstance(error, BrokenPipeError):  # a program that did not read its input
        return False
    named = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    is_lookup = type_name(error) == "gaierror"
    return isinstance(error, ConnectionError) or is_lookup or not named.isdisjoint(_CLIENTS)


def _status_of(error: BaseException) -> object:
    found: object = getattr(error, "status_code", None)
    if found is None:
        found = getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else getattr(error, "status", None)


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

__all__ = [
    "UNGRADED",
    "Grade",
    "UngradedError",
    "asettle",
    "finite_reward",
    "idle_answers",
    "is_unreachable",
    "settle",
]
