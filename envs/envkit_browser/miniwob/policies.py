"""A scripted policy that reads the page."""

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any, Final

from envkit.env import Policy, PolicyContext
from envkit_actions import Action, ActionKind, InexpressibleActionError, Status
from envkit_browser.miniwob.page import Page
from envkit_browser.miniwob.plans import PLANS

_LOOK: Final = Action(kind=ActionKind.MOVE, x=0, y=0)
"""Has no effect in every dialect: the pointer is already there."""
_LONGEST_RUN: Final = 25
"""Maximum repeated key presses per reply."""


def oracle() -> Policy:
    """Return a policy that solves the tasks in `PLANS`, by coordinates and keys only.

    It sees more than a model, because it reads the page, but acts through the same actions. Its
    first reply has no effect: reading is slow, so the environment reads pages only on request.
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

    A task without a plan is abandoned.
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
