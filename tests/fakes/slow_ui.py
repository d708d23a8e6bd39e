"""A slow browser and a slow server on request: they show what a test forgets to wait for.

    ENVKIT_SLOW_UI=6 pytest tests/core/viewer

Pages then run on a processor that is six times slower, and every answer of a server takes 0.1 to
0.4 seconds longer.
"""

import asyncio
import os
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from aiohttp import web
from aiohttp.typedefs import Handler

from envkit.viewer.library import Library
from envkit.viewer.server import create_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FACTOR: Final = int(os.environ.get("ENVKIT_SLOW_UI", "1"))
_DELAYS_S: Final = (0.1, 0.4, 0.2, 0.3)


def slow_server() -> AbstractContextManager[Any]:
    """Delay the answers of servers that start inside, if slowness is asked for."""
    return patch("envkit.viewer.server.create_app", _slow_app) if FACTOR > 1 else nullcontext()


def _slow_app(library: Library, *, key: str) -> web.Application:
    app, delays = create_app(library, key=key), cycle(_DELAYS_S)

    @web.middleware
    async def delayed(request: web.Request, handler: Handler) -> web.StreamResponse:
        half = next(delays) / 2
        await asyncio.sleep(half)
        response = await handler(request)
        await asyncio.sleep(half)  # what it says may be out of date when it arrives
        return response

    app.middlewares.append(delayed)
    return app


def slow_pages(browser: "Browser") -> None:
    """Let the pages that the browser opens run slowly, if slowness is asked for."""
    if FACTOR <= 1:
        return
    new_context, new_page = browser.new_context, browser.new_page

    def slow_context(**options: Any) -> Any:
        context = new_context(**options)
        context.on("page", _slow_page)
        return context

    def slow_page(**options: Any) -> Any:
        page = new_page(**options)
        _slow_page(page)
        return page

    vars(browser).update(new_context=slow_context, new_page=slow_page)


def _slow_page(page: "Page") -> None:
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": FACTOR})
