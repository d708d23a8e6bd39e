"""A browser page that shows MiniWoB++ problems one after another."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from envkit_actions import Action, ActionKind, Button
from envkit_browser import driver
from envkit_browser.miniwob.page import Page
from envkit_browser.miniwob.site import page_path
from envkit_browser.miniwob.tasks import HEIGHT, WIDTH, TaskEntry

_LOOKS: Final = frozenset({ActionKind.SCREENSHOT, ActionKind.ZOOM})
"""Actions that change nothing and take no time."""
_STEP_MS: Final = 500
"""Page time per action, enough for jQuery UI's animations to finish."""
_SETTLE_MS: Final = 5.0
"""Browser clock time after an input, enough to wait for images."""
_DEADLINE_S: Final = 20.0
_WHEEL_MS: Final = 50.0
_LONGEST_WAIT_S: Final = 60.0
_LOAD_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """Result of an action."""

    is_over: bool = False
    raw: float | None = None
    """The page's reward before decay; None until the task is submitted."""
    left: str | None = None
    """Why the page is no longer shown; None if it is."""


class MiniwobSession:
    """Keeps a page open across episodes, and replaces it after a fault."""

    def __init__(self, *, site: driver.Site, scale: int) -> None:
        self._options = driver.PageOptions(
            width=WIDTH * scale,
            height=HEIGHT * scale,
            scale=float(scale),
            site=site,
            settle_ms=_SETTLE_MS,
            deadline_s=_DEADLINE_S,
        )
        self._pool: driver.BrowserPool | None = None
        self._page: driver.Page | None = None
        self._input: driver.PageInput | None = None
        self._held: set[Button] = set()
        self._name = ""

    @property
    def cursor(self) -> tuple[int, int]:
        """Where the mouse pointer is, in device pixels."""
        return (0, 0) if self._input is None else (self._input.x, self._input.y)

    async def start(self, entry: TaskEntry, *, seed: int, mode: str, shows_goal: bool) -> str:
        """Show the problem of a seed and return its goal.

        Raises:
            BrowserFault: The browser is gone or hung.
        """
        async with self._dropping():
            page = await self._ready_page()
            if self._name != entry.name or entry.reloads:
                self._name = ""
                await page.goto(page_path(entry.name), seed=_LOAD_SEED)
                self._name = entry.name
            await self._reset_input()
            arguments = ", ".join(json.dumps(value) for value in (seed, mode, shows_goal))
            problem = await page.evaluate(f"envkitPage.reset({arguments})")
            await page.advance(_SETTLE_MS)
            page.take_events()
            return str(problem["goal"])

    async def perform(self, action: Action) -> ActionResult:
        """Carry out an action and let its time pass.

        Raises:
            BrowserFault: The browser is gone or hung.
        """
        assert self._page is not None
        assert self._input is not None
        async with self._dropping():
            if action.kind is not ActionKind.WAIT:
                await self._input.perform(action)
            if action.kind is ActionKind.SCROLL:  # the wheel takes effect in the next frames
                await self._page.advance(_WHEEL_MS)
            self._note_buttons(action)
            if self._page.left is not None:
                return ActionResult(is_over=True, left=self._page.left)
            state = await self._page.evaluate(f"envkitPage.pass({_milliseconds(action)})")
        return ActionResult(is_over=state["done"], raw=state["raw"] if state["done"] else None)

    async def screenshot(self) -> bytes:
        """Return the page as PNG.

        Raises:
            BrowserFault: The browser is gone or hung.
        """
        assert self._page is not None
        async with self._dropping():
            return await self._page.screenshot()

    async def read(self, goal: str, performed: Sequence[Action]) -> Page:
        """Return the page's elements, for the oracle.

        Raises:
            BrowserFault: The browser is gone or hung.
        """
        assert self._page is not None
        data = await self._page.evaluate("envkitPage.read()")
        return Page.from_json(
            data,
            task=self._name,
            goal=goal,
            scale=self._options.scale,
            performed=tuple(performed),
        )

    def take_events(self) -> dict[str, Any]:
        """Return the page's dialogs and other events since the last call, as JSON data."""
        assert self._page is not None
        events = self._page.take_events()
        found: dict[str, Any] = {kind.value: count for kind, count in sorted(events.counts.items())}
        if events.dialogs:
            found["dialogs"] = [dialog.text for dialog in events.dialogs]
        return found

    async def aclose(self) -> None:
        """Close the page and leave the pool; safe to call twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            if self._page is not None:
                await pool.release(self._page)
            await driver.leave_pool(self, pool)
        self._page, self._input, self._name = None, None, ""

    async def _ready_page(self) -> driver.Page:
        if self._pool is None:
            self._pool = driver.join_pool(self)
        if self._page is not None and (not self._page.is_usable or self._page.left is not None):
            await self._pool.release(self._page)
            self._page = None
        if self._page is None:
            self._page, self._name = await self._pool.open(self._options), ""
            self._input, self._held = driver.PageInput(self._page), set()
        return self._page

    @asynccontextmanager
    async def _dropping(self) -> AsyncGenerator[None]:
        """Drop the page if the block ends in a fault; the next reset opens another."""
        try:
            yield
        except driver.BrowserFault as fault:
            if self._pool is not None:
                self._pool.count(fault)
                if self._page is not None:
                    await self._pool.release(self._page)
            self._page, self._input, self._name = None, None, ""
            raise

    async def _reset_input(self) -> None:
        """Release buttons that an episode held, and move the pointer to a neutral point."""
        assert self._input is not None
        for button in sorted(self._held):
            await self._input.perform(Action(kind=ActionKind.MOUSE_UP, button=button))
        self._held.clear()
        await self._input.perform(Action(kind=ActionKind.MOVE, x=0, y=0))

    def _note_buttons(self, action: Action) -> None:
        if action.kind is ActionKind.MOUSE_DOWN:
            self._held.add(action.button)
        elif action.kind is ActionKind.MOUSE_UP:
            self._held.discard(action.button)


def _milliseconds(action: Action) -> int:
    if action.kind in _LOOKS:
        return 0
    if action.kind is not ActionKind.WAIT:
        return _STEP_MS
    return round(1000 * max(0.0, min(_LONGEST_WAIT_S, action.seconds)))
