"""What tests of a real browser share: whether there is one, pages, and what it left behind."""

import contextlib
import glob
import os
import signal
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import psutil

from envkit_actions import Action, ActionKind
from envkit_browser import driver
from envkit_browser.driver.process import PROFILE_PREFIX

LOADED_S = 120.0
"""Seconds for a page to load."""


@contextlib.asynccontextmanager
async def running_pool(**options: int) -> AsyncGenerator[driver.BrowserPool]:
    """A pool that is closed at the end."""
    pool = driver.BrowserPool(driver.PoolOptions(**{"spares": 0, **options}))
    try:
        yield pool
    finally:
        await pool.aclose()


async def open_page(
    pool: driver.BrowserPool, html: str, *, seed: int = 0, deadline_s: float = 10.0, **assets: str
) -> driver.Page:
    """A page of 400x300 with this text, loaded.

    The deadline counts from then on: a busy machine loads it late.
    """
    files = {"index.html": html, **{name.replace("_", "."): text for name, text in assets.items()}}
    site = driver.Site(files)
    page = await pool.open(
        driver.PageOptions(width=400, height=300, site=site, deadline_s=LOADED_S)
    )
    await page.goto(seed=seed)
    page.options = replace(page.options, deadline_s=deadline_s)
    return page


async def click(page: driver.Page, x: int, y: int) -> None:
    """Press the left button somewhere."""
    await driver.PageInput(page).perform(Action(kind=ActionKind.CLICK, x=x, y=y))


def profiles() -> set[str]:
    """Profile folders that exist now."""
    return set(glob.glob(str(Path(tempfile.gettempdir()) / f"{PROFILE_PREFIX}*")))


def family_of(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def wait_until_gone(processes: list[psutil.Process], seconds: float = 120.0) -> list[int]:
    """Those that still run after a while; a dead one that nobody has reaped does not."""
    limit = time.monotonic() + seconds
    left = [process.pid for process in processes]
    while left and time.monotonic() < limit:
        left = [process.pid for process in processes if _runs(process)]
        time.sleep(0.02)
    return left


def kill_renderers(browser_pid: int) -> None:
    """SIGKILL to the processes that run pages."""
    for process in family_of(browser_pid)[1:]:
        with contextlib.suppress(psutil.Error):
            if "--type=renderer" in process.cmdline():
                os.kill(process.pid, signal.SIGKILL)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
