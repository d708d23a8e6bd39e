"""The pool: shared, bounded, healthy, isolated, and empty after its last user."""

import asyncio
import gc

import pytest
from fakes.browsers import click, family_of, open_page, running_pool, wait_until_gone
from fakes.needs import BROWSER

from envkit.errors import ConfigurationError
from envkit_actions import Action, ActionKind
from envkit_browser import driver

pytestmark = BROWSER.mark
SMALL = driver.PageOptions(width=100, height=100)


class User:
    """Something that uses a pool."""


async def test_pages_share_a_browser_up_to_its_limit() -> None:
    async with running_pool(pages_per_browser=2, starts=1) as pool:
        pages = await asyncio.gather(*(pool.open(SMALL) for _ in range(3)))
        assert pool.started == 2
        assert sorted(browser.pages for browser in pool.browsers) == [1, 2]
        for page in pages:
            await pool.release(page)


@pytest.mark.slow
async def test_browser_is_replaced_after_its_pages() -> None:
    async with running_pool(recycle_pages=2) as pool:
        browsers = []
        for _ in range(4):
            page = await pool.open(SMALL)
            browsers.append(page.browser)
            await page.aclose()
            await pool.release(page)
            await asyncio.sleep(0)
        assert browsers[0] is browsers[1] is not browsers[2]
        assert pool.started == 2
        assert not browsers[0].process.is_alive


@pytest.mark.parametrize("spares", [0, 1])
async def test_browser_is_replaced_when_it_has_grown(spares: int) -> None:
    async with running_pool(recycle_bytes=1, spares=spares) as pool:
        page = await pool.open(SMALL)
        assert page.browser.process.memory() > 10 * 2**20
        pool._released = 15
        await pool.release(page)
        for _ in range(100):
            if not pool.browsers:
                break
            await asyncio.sleep(0.05)
        assert pool.browsers == ()


@pytest.mark.slow
async def test_pages_of_another_scale_have_their_own_browser() -> None:
    async with running_pool() as pool:
        one = await pool.open(SMALL)
        two = await pool.open(driver.PageOptions(width=100, height=100, scale=2.0))
        assert one.browser is not two.browser
        await two.goto("missing.html")
        assert await two.evaluate("[innerWidth, devicePixelRatio]") == [50, 2]


async def test_sessions_share_neither_cookies_nor_storage_nor_clipboard() -> None:
    html = "<body style='margin:0'><textarea id='t' style='width:200px;height:50px'></textarea>"
    async with running_pool() as pool:
        first, second = [await open_page(pool, html) for _ in range(2)]
        assert first.browser is second.browser
        await first.evaluate(
            "document.cookie = 'a=1; path=/'; localStorage.a = 1; sessionStorage.a = 1; "
            "t.value = 'private'; void indexedDB.open('a')"
        )
        for keys in (("ctrl", "a"), ("ctrl", "c")):
            await click(first, 20, 20)
            await driver.PageInput(first).perform(Action(kind=ActionKind.KEY, keys=keys))
        await click(second, 20, 20)
        await driver.PageInput(second).perform(Action(kind=ActionKind.KEY, keys=("ctrl", "v")))
        seen = "[document.cookie, localStorage.length, sessionStorage.length, t.value]"
        assert await second.evaluate(seen) == ["", 0, 0, ""]
        await pool.release(first)
        third = await open_page(pool, html)
        assert await third.evaluate(seen) == ["", 0, 0, ""]


async def test_spare_page_is_as_fresh_as_any() -> None:
    html = "<script>x = [Math.random(), Date.now(), performance.now()]</script>"
    async with running_pool(spares=1) as pool:
        page = await open_page(pool, html, seed=5)
        plain = await page.evaluate("x")
        await page.evaluate("localStorage.a = 1")
        await pool.release(page)
        await asyncio.gather(*pool._spares._tasks)
        kept = [spare for pages in pool._spares._pages.values() for spare in pages]
        again = await open_page(pool, html, seed=5)
        assert [again] == kept
        assert await again.evaluate("x") == plain
        assert await again.evaluate("localStorage.length") == 0


@pytest.mark.slow
async def test_spare_in_a_dead_browser_is_not_used() -> None:
    async with running_pool(spares=1) as pool:
        page = await open_page(pool, "<p>")
        await pool.release(page)
        await asyncio.gather(*pool._spares._tasks)
        page.browser.process.kill()
        fresh = await open_page(pool, "<p>fresh")
        assert await fresh.evaluate("document.body.innerText") == "fresh"


@pytest.mark.slow
async def test_many_at_once_start_few_browsers() -> None:
    async with running_pool(pages_per_browser=8) as pool:
        pages = await asyncio.gather(*(open_page(pool, f"<p>{n}") for n in range(8)))
        texts = await asyncio.gather(*(page.evaluate("document.body.innerText") for page in pages))
        assert texts == [str(n) for n in range(8)]
        shots = await asyncio.gather(*(page.screenshot() for page in pages))
        assert len(set(shots)) == 8
        replaced = sum(pool.troubles.values())  # a loaded machine may cost a browser its start
        assert pool.started - replaced <= 4


async def test_pool_of_a_loop_has_role_and_ends_with_its_last_user() -> None:
    first, second = User(), User()
    pool = driver.join_pool(first)
    assert driver.join_pool(second) is pool
    page = await pool.open(SMALL)
    processes = family_of(page.browser.process.pid)
    await driver.leave_pool(first, pool)
    await driver.leave_pool(first, pool)
    assert page.browser.is_usable
    await driver.leave_pool(second, pool)
    assert wait_until_gone(processes) == []
    third = User()
    assert driver.join_pool(third) is not pool
    await driver.leave_pool(third, driver.join_pool(third))


@pytest.mark.slow
async def test_pool_is_not_kept_by_a_user_that_was_forgotten() -> None:
    forgotten, user = User(), User()
    pool = driver.join_pool(forgotten)
    driver.join_pool(user)
    page = await pool.open(SMALL)
    del forgotten
    gc.collect()
    await driver.leave_pool(user, pool)
    assert not page.browser.process.is_alive


@pytest.mark.parametrize("options", [{"pages_per_browser": 0}, {"spares": -1}, {"starts": 0}])
def test_pool_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        driver.PoolOptions(**options)


@pytest.mark.parametrize(("width", "scale"), [(0, 1.0), (5000, 1.0), (1, 0.0), (1, 99.0)])
def test_page_options_out_of_range_are_refused(width: int, scale: float) -> None:
    with pytest.raises(ConfigurationError):
        driver.PageOptions(width=width, height=1, scale=scale)


async def test_pool_that_is_empty_closes_twice() -> None:
    pool = driver.BrowserPool()
    await pool.aclose()
    await pool.aclose()
