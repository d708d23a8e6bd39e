"""Inject real failures into a browser, as a `FaultPlan` says.

The scope is "browser"; the key is the task's seed and the turn. A plan that draws an unknown kind
is rejected.
"""

import contextlib
import signal
from enum import StrEnum
from typing import Final

from envkit.errors import ConfigurationError
from envkit.faults import FaultPlan
from envkit_browser.driver.page import Page
from envkit_browser.driver.trouble import BrowserFault

SCOPE: Final = "browser"
"""The scope of the plan's calls."""


class Injection(StrEnum):
    """Failures that can be injected."""

    KILL_BROWSER = "kill_browser"
    """SIGKILL to the whole process group."""
    STOP_BROWSER = "stop_browser"
    """SIGSTOP to the whole process group: it lives but does not answer."""
    CRASH_RENDERER = "crash_renderer"
    """The page's own process crashes."""
    HANG_PAGE = "hang_page"
    """An endless loop in the page."""
    CLOSE_SOCKET = "close_socket"
    """The DevTools connection breaks."""
    DIALOG = "dialog"
    """The page shows an alert."""
    NAVIGATE = "navigate"
    """The page goes to about:blank."""
    CLOSE_PAGE = "close_page"
    """The page closes."""


async def inject(plan: FaultPlan, page: Page, key: tuple[int, int, int | None]) -> Injection | None:
    """Inject the failure that the plan draws for this call, and return it.

    Args:
        plan: A plan with kinds of `Injection` for the scope "browser".
        page: The page whose browser, process or document fails.
        key: Seed, turn and attempt; without an attempt, the plan counts attempts.

    Raises:
        ConfigurationError: The plan names another kind.
    """
    seed, turn, attempt = key
    kind = plan.draw(SCOPE, seed, turn, attempt=attempt)
    if kind is None:
        return None
    try:
        injection = Injection(kind)
    except ValueError as error:
        raise ConfigurationError(
            f"kinds of the scope {SCOPE!r} must be in {[k.value for k in Injection]}, got {kind!r}"
        ) from error
    with contextlib.suppress(BrowserFault):  # the next command hits the failure
        await _fail(injection, page)
    return injection


_SIGNALS: Final = {
    Injection.KILL_BROWSER: signal.SIGKILL,
    Injection.STOP_BROWSER: signal.SIGSTOP,
}
_COMMANDS: Final = {
    Injection.CRASH_RENDERER: "Page.crash",
    Injection.CLOSE_PAGE: "Page.close",
}
_SCRIPTS: Final = {
    Injection.HANG_PAGE: "for (;;);",
    Injection.DIALOG: "alert('injected')",
    Injection.NAVIGATE: "location = 'about:blank'",
}


async def _fail(injection: Injection, page: Page) -> None:
    if injection in _SIGNALS:
        page.browser.process.signal(_SIGNALS[injection])
    elif injection in _COMMANDS:
        await page.send(_COMMANDS[injection])
    elif injection in _SCRIPTS:
        await page.evaluate(f"void setTimeout(() => {{ {_SCRIPTS[injection]} }}, 1)")
    else:
        page.browser.close_socket()
