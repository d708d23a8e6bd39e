"""Scripted policies: one that knows the state, and one that presses anything."""

import contextlib
import random
from typing import Any

from envkit.env import Policy, PolicyContext
from envkit.seeds import derive_seed
from envkit_computer_use import hands
from envkit_computer_use.actions.action import Action, ActionKind, Status
from envkit_computer_use.actions.malformed import InexpressibleActionError
from envkit_computer_use.desktop import Desktop
from envkit_computer_use.dialect import Dialect
from envkit_computer_use.popups import Popup
from envkit_computer_use.rephrasing import rephrased
from envkit_computer_use.widgets import Button


def oracle() -> Policy:
    """Return a policy that solves every task by the plan of its family, one action a turn."""

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped  # a wrapper hides the desktop
        return _written(env.dialect, env.desk, next_action(env))

    return reply


def _written(dialect: Dialect, desk: Desktop, action: Action) -> str:
    """Return a reply that does the action, or as much of it as the dialect has words for.

    Raises:
        InexpressibleActionError: It has none at all.
    """
    try:
        return dialect.write([action])
    except InexpressibleActionError:
        for others in rephrased(desk, action):
            with contextlib.suppress(InexpressibleActionError):
                return dialect.write(others)
        raise


def next_action(env: Any) -> Action:  # noqa: ANN401  # importing the environment would be a circle
    """Return what the oracle does in the environment's present state."""
    data, desk = env.task["data"], env.desk
    if not data.get("feasible", True):
        return Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)
    put_away = _put_away(desk)
    if put_away is not None:
        return put_away
    planned = next(env.family.plan(desk, data), None)
    return planned or Action(kind=ActionKind.TERMINATE, status=Status.SUCCESS)


def _put_away(desk: Desktop) -> Action | None:
    """Return the press that closes a dialog which came up in between; None without one."""
    top = desk.top
    if not top.name.startswith(Popup.PREFIX):
        return None
    return next(hands.press(desk, desk.find(Button, top.name, "button0")), None)


def random_clicks() -> Policy:
    """Return a policy that clicks, drags, types and ends at random, by the context's seed."""

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped  # a wrapper hides the dialect
        rng = random.Random(derive_seed("random clicks", context.seed, context.turn))
        return str(env.dialect.write([_random_action(rng, env.desk)]))

    return reply


def _random_action(rng: random.Random, desk: Desktop) -> Action:
    x, y = rng.randrange(desk.width), rng.randrange(desk.height)
    draw = rng.random()
    if draw < 0.02:
        return Action(kind=ActionKind.TERMINATE, status=rng.choice(list(Status)))
    if draw < 0.72:
        kinds = (ActionKind.CLICK, ActionKind.CLICK, ActionKind.CLICK, ActionKind.DOUBLE_CLICK)
        return Action(kind=rng.choice(kinds), x=x, y=y)
    if draw < 0.82:
        end = (rng.randrange(desk.width), rng.randrange(desk.height))
        return Action(kind=ActionKind.DRAG, x=x, y=y, path=(end,))
    if draw < 0.88:
        return Action(kind=ActionKind.SCROLL, x=x, y=y, dy=rng.choice((-120, 120)))
    if draw < 0.94:
        return Action(kind=ActionKind.TYPE, text=rng.choice(("1", "a", "hello", "42\n")))
    return Action(kind=ActionKind.KEY, keys=(rng.choice(("enter", "tab", "space", "down", "up")),))
