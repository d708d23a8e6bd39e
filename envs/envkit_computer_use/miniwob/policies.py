"""Scripted policies: one that reads the page, and one that presses anything."""

import random
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any, Final

from envkit.env import Policy, PolicyContext
from envkit.seeds import derive_seed
from envkit_computer_use.actions import Action, ActionKind, InexpressibleActionError, Status
from envkit_computer_use.miniwob.page import Page
from envkit_computer_use.miniwob.plans import PLANS

_LOOK: Final = Action(kind=ActionKind.MOVE, x=0, y=0)
"""Does nothing, in every dialect: the pointer rests there already."""
_LONGEST_RUN: Final = 25
"""Equal key presses that one reply holds."""


def oracle() -> Policy:
    """Return a policy that solves the tasks in `PLANS`, by coordinates and keys only.

    It knows more than a model because it reads the page, but all it does goes through the same
    actions. Its first reply only looks: reading takes time, so pages are read when it asks.
    """

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped  # a wrapper hides the page
        if env.page is None:
            env.reads_page = True
            return str(env.dialect.write([_LOOK]))
        run = _next_actions(env.page)
        try:
            return str(env.dialect.write(run))
        except InexpressibleActionError:
            if len(run) == 1:
                raise
            return str(env.dialect.write(run[:1]))

    return reply


def _next_actions(page: Page) -> list[Action]:
    """Return the next action of the plan, with the key presses that repeat it.

    A task without a plan is given up.
    """
    plan = PLANS.get(page.task)
    steps = iter(()) if plan is None else plan(page)
    first = next(steps, None)
    if first is None:
        return [Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)]
    return [first, *_repeats(first, steps)]


def _repeats(first: Action, steps: Iterator[Action]) -> list[Action]:
    if first.kind is not ActionKind.KEY:
        return []
    return list(islice(takewhile(lambda action: action == first, steps), _LONGEST_RUN - 1))


def random_clicks() -> Policy:
    """Return a policy that clicks, drags, types and ends at random, by the context's seed."""

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped  # a wrapper hides the dialect
        rng = random.Random(derive_seed("random clicks", context.seed, context.turn))
        return str(env.dialect.write([_random_action(rng, env.scale)]))

    return reply


def _random_action(rng: random.Random, scale: int) -> Action:
    x, y = rng.randrange(160 * scale), rng.randrange(210 * scale)
    draw = rng.random()
    if draw < 0.02:
        return Action(kind=ActionKind.TERMINATE, status=rng.choice(list(Status)))
    if draw < 0.76:
        return Action(kind=ActionKind.CLICK, x=x, y=y)
    if draw < 0.84:
        end = (rng.randrange(160 * scale), rng.randrange(210 * scale))
        return Action(kind=ActionKind.DRAG, x=x, y=y, path=(end,))
    if draw < 0.88:
        return Action(kind=ActionKind.SCROLL, x=x, y=y, dy=rng.choice((-120, 120)))
    if draw < 0.94:
        return Action(kind=ActionKind.TYPE, text=rng.choice(("1", "a", "hello", "42\n")))
    return Action(kind=ActionKind.KEY, keys=(rng.choice(("enter", "tab", "space", "down", "up")),))
