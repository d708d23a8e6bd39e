"""Measure the real browser: steps per second and reset time.

A step is a click that changes the page, a screenshot and one read of the page's state. "small" is a
page of 320x420 pixels, "screen" one of 672x448; "pages" are small ones played concurrently in one
browser. A reset opens a fresh session on a spare page and loads a task's page; "reload" reloads it
in the same session. In MiniWoB++ a step is a click, half a second of page time and a screenshot; a
reset shows another problem of the same task. Wall time, so it depends on the machine's load.
Goals: 100 steps per second on one page, 20 ms per reset.
"""

import asyncio
import statistics
import time
from typing import Any, Final

from harness import run, sized

from envkit_actions import Action, ActionKind
from envkit_browser.driver import BrowserPool, Page, PageInput, PageOptions, Site
from envkit_browser.miniwob import MiniwobEnv

HTML: Final = """<!doctype html><body style="font:16px sans-serif">
<h3>Which do you like?</h3><p id="state">0</p>
<button onclick="state.textContent = ++n" style="width:120px;height:40px">More</button>
<label><input type="checkbox"> One</label><label><input type="checkbox"> Two</label>
<script>let n = 0</script>"""
SITE: Final = Site({"index.html": HTML})
SMALL: Final = PageOptions(width=320, height=420, site=SITE)
SCREEN: Final = PageOptions(width=672, height=448, site=SITE)
CLICK: Final = Action(kind=ActionKind.CLICK, x=60, y=120)


async def play(page: Page, steps: int) -> None:
    """Play steps on a page and check that each click arrived."""
    page_input, state = PageInput(page), 0
    for _ in range(steps):
        await page_input.perform(CLICK)
        await page.screenshot()
        state = await page.evaluate("n")
    if state != steps:
        raise RuntimeError(f"{steps} clicks must count to {steps}, got {state}")


async def steps_per_second(
    pool: BrowserPool, options: PageOptions, pages: int, steps: int
) -> float:
    """Return the steps per second of all pages together."""
    opened = [await pool.open(options) for _ in range(pages)]
    for page in opened:
        await page.goto()
        await page.screenshot()
    started = time.perf_counter()
    await asyncio.gather(*(play(page, steps // pages) for page in opened))
    seconds = time.perf_counter() - started
    for page in opened:
        await pool.release(page)
    return steps / seconds


async def reset_milliseconds(pool: BrowserPool, resets: int) -> tuple[float, float]:
    """Return the median milliseconds of a reset to a fresh session, and of a reload."""
    fresh: list[float] = []
    again: list[float] = []
    page = await pool.open(SMALL)
    for _ in range(resets):
        await asyncio.sleep(0.3)  # an episode, while the next page is prepared
        started = time.perf_counter()
        await pool.release(page)
        page = await pool.open(SMALL)
        await page.goto()
        await page.screenshot()
        fresh.append(1000 * (time.perf_counter() - started))
        started = time.perf_counter()
        await page.goto()
        await page.screenshot()
        again.append(1000 * (time.perf_counter() - started))
    await pool.release(page)
    return statistics.median(fresh), statistics.median(again)


async def miniwob_reset(env: MiniwobEnv, seed: int) -> None:
    """Show a problem; above its Submit button and below the bar, no click ends the episode."""
    await env.areset(seed=0, options={"task": {"name": "click-checkboxes", "seed": seed}})


async def miniwob(pages: int, steps: int, resets: int) -> dict[str, float]:
    """Return the steps per second of MiniWoB++ on pages at once, and the median of a reset."""
    envs = [MiniwobEnv(task="click-checkboxes", max_turns=10**6) for _ in range(pages)]
    times: list[float] = []
    for env in envs:
        for seed in range(1 + resets):
            started = time.perf_counter()
            await miniwob_reset(env, seed)
            times.append(1000 * (time.perf_counter() - started))

    async def click(env: MiniwobEnv) -> None:
        for step in range(steps // pages):
            await env.astep(f'{{"action": "click", "x": {step % 320}, "y": {104 + step % 36}}}')

    started = time.perf_counter()
    await asyncio.gather(*map(click, envs))
    taken = time.perf_counter() - started
    for env in envs:
        await env.aclose()
    return {"steps_per_second": steps / taken, "reset_ms": statistics.median(times)}


async def measure(steps: int, resets: int) -> dict[str, Any]:
    """Return every figure by name."""
    pool = BrowserPool()
    figures: dict[str, Any] = {}
    try:
        started = time.perf_counter()
        await pool.release(await pool.open(SMALL))
        figures["launch_ms"] = 1000 * (time.perf_counter() - started)
        figures["small_steps_per_second"] = await steps_per_second(pool, SMALL, 1, steps)
        figures["screen_steps_per_second"] = await steps_per_second(pool, SCREEN, 1, steps)
        for pages in (2, 4, 8):
            name = f"pages_{pages}_steps_per_second"
            figures[name] = await steps_per_second(pool, SMALL, pages, steps)
        figures["memory_mb"] = sum(b.process.memory() for b in pool.browsers) / 2**20
        figures["reset_ms"], figures["reload_ms"] = await reset_milliseconds(pool, resets)
    finally:
        await pool.aclose()
    figures["miniwob"] = {str(pages): await miniwob(pages, steps, resets) for pages in (1, 8)}
    return figures


if __name__ == "__main__":
    run(
        measure,
        steps=sized(400, 8, "steps of each kind"),
        resets=sized(20, 1, "resets to a fresh session, and reloads"),
    )
