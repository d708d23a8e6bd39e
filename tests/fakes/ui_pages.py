"""What tests ask of a page of the viewer."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]
Scheme = Literal["light", "dark"]


def until(page: "Page", condition: str, value: Any = None) -> None:
    """Wait for a condition; `wait_for_function` would need a policy that lets text run as code."""
    for _ in range(600):
        if page.evaluate(condition, value):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def overflow(page: "Page") -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")
