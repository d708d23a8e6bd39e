"""A scripted policy that knows the state."""

import contextlib
from typing import Any

from envkit.env import Policy, PolicyContext
from envkit_actions.action import Action, ActionKind, Status
from envkit_actions.dialect import Dialect
from envkit_actions.malformed import InexpressibleActionError
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop
from envkit_desktop.popups import Popup
from envkit_desktop.rephrasing import rephrased
from envkit_desktop.widgets import Button


def oracle() -> Policy:
    """Return a policy that solves every task by the plan of its family, one action per turn."""

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped  # a wrapper hides the desktop
        return _written(env.dialect, env.desk, next_action(env))

    return reply


def _written(dialect: Dialect, desk: Desktop, action: Action) -> str:
    """Return a reply for the action, or for the part that the dialect can express.

    Raises:
        InexpressibleActionError: The dialect can express none of it.
    """
    try:
        return dialect.write([action])
    except InexpressibleActionError:
        for others in rephrased(dialect, desk, action):
            with contextlib.suppress(InexpressibleActionError):
                return dialect.write(others)
        raise


def next_action(env: Any) -> Action:  # noqa: ANN401  # importing the environment would be a circle
    """Return the oracle's action in the current state."""
    data, desk = env.task["data"], env.desk
    if not data.get("feasible", True):
        return Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)
    put_away = _dismiss_popup(desk)
    if put_away is not None:
        return put_away
    planned = next(env.family.plan(desk, data), None)
    return planned or Action(kind=ActionKind.TERMINATE, status=Status.SUCCESS)


def _dismiss_popup(desk: Desktop) -> Action | None:
    """Return the press that closes an interrupting dialog, or None."""
    top = desk.top
    if not top.name.startswith(Popup.PREFIX):
        return None
    return next(moves.press(desk, desk.find(Button, top.name, "button0")), None)
