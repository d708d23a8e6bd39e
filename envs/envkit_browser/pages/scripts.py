"""Wrap a task's JavaScript, and interpret its results."""

import json
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.grading import UngradedError, finite_reward
from envkit.tasks import Task

_AT: Final = """(target) => {
    const element = typeof target === "string" ? document.querySelector(target) : target;
    const box = element.getBoundingClientRect();
    return { x: Math.floor((box.left + box.width / 2) * %(scale)s),
             y: Math.floor((box.top + box.height / 2) * %(scale)s) };
  }"""
_RUN: Final = """(() => {
  const context = %(context)s;
  context.at = %(at)s;
  const value = (found) => typeof found === "function" ? found(context) : found;
  return { %(parts)s };
})()"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalCheck:
    """What the checker says about the goal."""

    done: bool
    """Whether the episode ends."""
    reward: float
    """Reward of this turn."""


def setup_script(task: Task, scale: float) -> str:
    """Return the script that prepares a page; its `setup` may be the goal."""
    return _script(task, scale, {}, setup=task.get("setup", "null"), oracle=task.get("oracle"))


def check_script(task: Task, scale: float, *, answer: str | None, status: str | None) -> str:
    """Return the script that judges a page.

    Args:
        task: The task, with its checker and its oracle, if any.
        scale: Device pixels per CSS pixel.
        answer: The agent's answer; None without one.
        status: The agent's final status; None while the episode runs.
    """
    said = {"answer": answer, "status": status}
    return _script(task, scale, said, check=task["check"], oracle=task.get("oracle"))


def read_verdict(value: Any) -> GoalCheck:  # noqa: ANN401  # any JSON
    """Interpret a checker's value: `{done, reward}`, or a number above 0 for solved.

    Raises:
        UngradedError: It is neither.
    """
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {"reward": value}
    try:
        reward = finite_reward(fields.get("reward", 0))
    except UngradedError as error:
        raise UngradedError(
            f"the checker of a page must be a number or {{done, reward}}, got {value!r:.200}"
        ) from error
    return GoalCheck(done=bool(fields.get("done", reward > 0)), reward=reward)


def _script(task: Task, scale: float, said: dict[str, Any], **parts: str | None) -> str:
    written = [f"{name}: value(({source}\n))" for name, source in parts.items() if source]
    return _RUN % {
        "context": json.dumps({"seed": task.get("seed", 0), **said}),
        "at": _AT % {"scale": json.dumps(scale)},
        "parts": ", ".join(written),
    }
