"""Each failure of a real browser, done for real: survived, typed, counted."""

import asyncio
import contextlib
import os
import pickle
import signal

import pytest
from fakes import browsers
from fakes.browsers import click, kill_renderers, open_page, running_pool
from fakes.needs import BROWSER

from envkit.errors import ConfigurationError, FaultKind
from envkit.faults import FaultPlan
from envkit_browser.driver import BrowserFault, BrowserPool, Page, PageEvent, Trouble
from envkit_browser.driver.injection import Injection, inject

pytestmark = [BROWSER.mark, pytest.mark.slow]

BUTTON = "<body style='margin:0'><button style='width:100px;height:50px' onclick='%s'>go</button>"


async def fault_of(page: Page) -> BrowserFault:
    """What a click and a look at the page end with."""
    with pytest.raises(BrowserFault) as caught:
        await _click_and_look(page)
    return caught.value


async def _click_and_look(page: Page) -> None:
    await click(page, 20, 20)
    await page.screenshot()
    await page.evaluate("1")


async def works_again(pool: BrowserPool, page: Page) -> bool:
    await pool.release(page)
    fresh = await open_page(pool, "<p>fresh")
    return await fresh.evaluate("document.body.innerText") == "fresh"


async def test_browser_killed_faults_at_once_and_a_new_one_comes() -> None:
    async with running_pool() as pool:
        page, neighbour = [await open_page(pool, BUTTON % "") for _ in range(2)]
        os.killpg(page.browser.process.pid, signal.SIGKILL)
        faults = [await fault_of(page), await fault_of(neighbour)]
        assert [fault.trouble for fault in faults] == [Trouble.BROWSER_DIED] * 2
        assert {(fault.kind, fault.retryable) for fault in faults} == {(FaultKind.CRASHED, True)}
        assert await works_again(pool, page)
        assert pool.started == 2


async def test_browser_killed_within_a_call_ends_the_call() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, "<p>hi")
        call = asyncio.ensure_future(_hang(page))
        await asyncio.sleep(0.2)
        os.killpg(page.browser.process.pid, signal.SIGKILL)
        with pytest.raises(BrowserFault) as caught:
            await asyncio.wait_for(call, 120)
        assert caught.value.trouble is Trouble.BROWSER_DIED


async def _hang(page: Page) -> None:
    await page.evaluate("for (;;);")


@pytest.mark.parametrize("way", ["signal", "protocol"])
async def test_renderer_crash_faults_its_page_alone(way: str) -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % "")
        if way == "signal":
            kill_renderers(page.browser.process.pid)
        else:
            with contextlib.suppress(BrowserFault):
                await page.send("Page.crash")
        fault = await fault_of(page)
        assert (fault.trouble, fault.kind) == (Trouble.RENDERER_CRASHED, FaultKind.CRASHED)
        assert await works_again(pool, page)
        assert pool.started == 1


async def test_hung_page_times_out_and_its_neighbour_lives() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % "for(;;);", deadline_s=2)
        neighbour = await open_page(pool, "<p>hi")
        fault = await fault_of(page)
        assert (fault.trouble, fault.kind, fault.retryable) == (
            Trouble.HUNG,
            FaultKind.TIMEOUT,
            True,
        )
        await pool.release(page)
        assert await neighbour.evaluate("document.body.innerText") == "hi"
        assert (await neighbour.screenshot()).startswith(b"\x89PNG")
        assert pool.started == 1


async def test_every_call_that_waits_for_a_hung_page_says_so() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, "<p>hi", deadline_s=1)
        first = asyncio.ensure_future(page.evaluate("for(;;);"))
        await asyncio.sleep(0.8)
        second = asyncio.ensure_future(page.evaluate("1"))
        ends = await asyncio.gather(first, second, return_exceptions=True)
        assert [end.trouble for end in ends if isinstance(end, BrowserFault)] == [Trouble.HUNG] * 2


async def test_page_that_hangs_by_a_timer_times_out() -> None:
    async with running_pool() as pool:
        page = await open_page(
            pool, "<script>setTimeout(() => { for(;;); }, 500)</script>", deadline_s=1
        )
        with pytest.raises(BrowserFault) as caught:
            await page.advance(1000)
        assert caught.value.trouble is Trouble.HUNG


async def test_page_that_never_loads_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsers, "LOADED_S", 1.0)
    async with running_pool() as pool:
        with pytest.raises(BrowserFault) as caught:
            await open_page(pool, "<script>for(;;);</script>")
        assert caught.value.trouble is Trouble.HUNG


async def test_stopped_browser_times_out_and_is_replaced() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % "", deadline_s=1)
        os.killpg(page.browser.process.pid, signal.SIGSTOP)
        fault = await fault_of(page)
        assert (fault.trouble, fault.kind) == (Trouble.HUNG, FaultKind.TIMEOUT)
        assert await works_again(pool, page)
        assert not page.browser.process.is_alive


async def test_closed_socket_faults_and_the_browser_is_replaced() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % "")
        page.browser.close_socket()
        fault = await fault_of(page)
        assert (fault.trouble, fault.kind) == (Trouble.SOCKET_CLOSED, FaultKind.CRASHED)
        assert await works_again(pool, page)
        assert not page.browser.process.is_alive


@pytest.mark.parametrize(
    ("kind", "script", "value"),
    [
        ("alert", 'alert("hello")', "undefined"),
        ("confirm", 'window.said = confirm("hello")', "true"),
        ("prompt", 'window.said = prompt("hello", "me")', "me"),
    ],
)
async def test_dialog_is_answered_and_reported(kind: str, script: str, value: str) -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % script)
        await click(page, 20, 20)
        events = page.take_events()
        assert [(dialog.kind, dialog.text) for dialog in events.dialogs] == [(kind, "hello")]
        assert await page.evaluate("String(window.said)") == value
        assert page.take_events().dialogs == []


async def test_question_before_leaving_does_not_hold_a_page_back() -> None:
    async with running_pool() as pool:
        leaving = "window.onbeforeunload = (e) => { e.preventDefault(); return 1 };"
        page = await open_page(pool, BUTTON % leaving)
        await click(page, 20, 20)
        await page.goto("index.html?again")
        assert [dialog.kind for dialog in page.take_events().dialogs] == ["beforeunload"]
        assert await page.evaluate("location.search") == "?again"


async def test_flood_of_dialogs_hangs_no_longer_than_the_deadline() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % "for(;;) alert(1)", deadline_s=2)
        assert (await fault_of(page)).trouble is Trouble.HUNG
        assert len(page.take_events().dialogs) == 20


async def test_navigation_out_of_the_site_is_refused_and_counted() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % 'location = "https://example.com/"')
        times = 12  # the page's clock stopped after two of five, once
        for number in range(times):
            await click(page, 20, 20)
            async with asyncio.timeout(120):  # an earlier click would replace the navigation
                while page.events.counts[PageEvent.BLOCKED_NAVIGATION] <= number:
                    await asyncio.sleep(0.001)
        assert page.left is None
        assert page.take_events().counts[PageEvent.BLOCKED_NAVIGATION] == times
        assert await page.evaluate("location.pathname") == "/index.html"


async def test_navigation_to_a_blank_page_is_noticed() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % 'location = "about:blank"')
        await click(page, 20, 20)
        await page.screenshot()
        assert page.left == "navigated"
        assert page.is_usable


async def test_navigation_within_the_site_stays_on_it() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % 'location = "b.html"', b_html="<p>second")
        await click(page, 20, 20)
        await page.advance(200)
        assert page.left is None
        assert await page.evaluate("document.body.innerText") == "second"


async def test_page_that_closes_itself_is_noticed() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % "")
        with contextlib.suppress(BrowserFault):
            await page.send("Page.close")
            await page.advance(100)
        assert page.left == "closed"
        assert not page.is_usable
        assert await works_again(pool, page)
        assert pool.started == 1


async def test_script_that_throws_has_its_own_fault() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, "<p>")
        with pytest.raises(BrowserFault, match="nothing is not defined") as caught:
            await page.evaluate("nothing.at.all")
        assert (caught.value.trouble, caught.value.kind) == (
            Trouble.SCRIPT_FAILED,
            FaultKind.PERMANENT,
        )
        assert page.is_usable


async def test_call_that_is_cancelled_leaves_its_neighbour_alone() -> None:
    async with running_pool() as pool:
        page, neighbour = [await open_page(pool, BUTTON % "") for _ in range(2)]
        for wait in (0.0, 0.001, 0.003, 0.006, 0.01):
            call = asyncio.ensure_future(page.advance(2000))
            await asyncio.sleep(wait)
            call.cancel()
            assert (await neighbour.screenshot()).startswith(b"\x89PNG")
            with contextlib.suppress(asyncio.CancelledError):
                await call
        assert neighbour.browser.is_usable
        assert pool.started == 1


def test_fault_keeps_its_trouble_across_processes() -> None:
    fault = pickle.loads(pickle.dumps(BrowserFault("gone", trouble=Trouble.HUNG)))
    assert (fault.trouble, fault.kind, str(fault)) == (Trouble.HUNG, FaultKind.TIMEOUT, "gone")


@pytest.mark.parametrize(
    ("kind", "trouble"),
    [
        (Injection.KILL_BROWSER, Trouble.BROWSER_DIED),
        (Injection.STOP_BROWSER, Trouble.HUNG),
        (Injection.CRASH_RENDERER, Trouble.RENDERER_CRASHED),
        (Injection.HANG_PAGE, Trouble.HUNG),
        (Injection.CLOSE_SOCKET, Trouble.SOCKET_CLOSED),
        (Injection.CLOSE_PAGE, Trouble.PAGE_GONE),
    ],
)
async def test_plan_injects_the_failure_that_it_names(kind: Injection, trouble: Trouble) -> None:
    plan = FaultPlan(schedule={("browser", 7, 0, 0): kind.value})
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % "", deadline_s=1.5)
        assert await inject(plan, page, (7, 1, 0)) is None
        assert await inject(plan, page, (7, 0, 0)) is kind
        assert (await fault_of(page)).trouble is trouble
        assert plan.injected == {kind.value: 1}


async def test_plan_with_an_unknown_kind_is_refused() -> None:
    plan = FaultPlan(schedule={("browser", 7, 0, 0): "meteor"})
    async with running_pool() as pool:
        page = await open_page(pool, BUTTON % "")
        with pytest.raises(ConfigurationError, match="meteor"):
            await inject(plan, page, (7, 0, 0))
