"""The browser's process: found, started, and gone without a trace however it ends."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from fakes.browsers import family_of, open_page, profiles, running_pool, wait_until_gone
from fakes.needs import BROWSER, CONTAINED, FIRST_PROCESS

from envkit_browser.driver import Browser, BrowserFault, Trouble, find_browser
from envkit_browser.driver import binary as binary_module

pytestmark = pytest.mark.slow

START = """
import asyncio, glob, subprocess, sys
from pathlib import Path
from envkit_browser.driver import Browser
def members(group):
    stats = [Path(stat).read_text().rpartition(")")[2] for stat in glob.glob("/proc/[0-9]*/stat")]
    return [stat for stat in stats if stat.split()[2] == str(group)]
async def main():
    browser = await Browser.start()
    print(browser.process.pid, browser.process.profile, flush=True)
    %s
asyncio.run(main())
"""
OWN_CHILD = "subprocess.Popen(['sh', '-c', 'exit 7'], start_new_session=True)"
REPORT = "await browser.connection.aclose(); print(len(members(browser.process.pid)), own.wait())"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep profiles apart from those of other runs on this machine."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def launched(ending: str) -> tuple[subprocess.Popen[str], list[psutil.Process], Path]:
    """Start a browser in another interpreter; return it, the browser's processes, the profile."""
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", START % ending],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    pid, profile = child.stdout.readline().split()
    processes = family_of(int(pid))
    child.stdout.close()
    return child, processes, Path(profile)


def finish(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    child.wait(120)


def is_removed(profile: Path) -> bool:
    limit = time.monotonic() + 120
    while profile.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    return not profile.exists()


@BROWSER.mark
@pytest.mark.parametrize(
    "ending",
    ["sys.stdin.read(); await browser.aclose()", "sys.stdin.read()", "sys.stdin.read(); 1 / 0"],
    ids=["closed", "forgotten", "error"],
)
def test_browser_leaves_nothing_when_the_interpreter_ends(ending: str) -> None:
    child, processes, profile = launched(ending)
    assert len(processes) > 1
    assert profile.is_dir()
    finish(child)
    assert wait_until_gone(processes) == []
    assert is_removed(profile)


@BROWSER.mark
def test_browser_leaves_nothing_when_the_interpreter_is_killed() -> None:
    child, processes, profile = launched("sys.stdin.read()")
    child.send_signal(signal.SIGKILL)
    finish(child)
    assert wait_until_gone(processes) == []
    assert is_removed(profile)


@BROWSER.mark
@CONTAINED.mark
@pytest.mark.parametrize("ending", ["await browser.aclose()", "browser.process.kill()"])
def test_first_process_of_a_container_collects_the_browsers_children(ending: str) -> None:
    code = START % f"own = {OWN_CHILD}; {ending}; {REPORT}"
    done = subprocess.run(
        [*FIRST_PROCESS, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[1:] == ["0 7"], done.stderr


@BROWSER.mark
async def test_close_leaves_no_process_and_no_profile() -> None:
    async with running_pool() as pool:
        page = await open_page(pool, "<p>hi")
        browser = page.browser
        processes = family_of(browser.process.pid)
        assert profiles()
    assert wait_until_gone(processes) == []
    assert not browser.process.profile.exists()
    await browser.aclose()
    browser.process.kill()


@BROWSER.mark
async def test_start_that_is_cancelled_leaves_nothing() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    for wait in (0.0, 0.02, 0.1, 0.3):
        start = asyncio.ensure_future(Browser.start())
        await asyncio.sleep(wait)
        if start.done():  # a fast machine
            await (await start).aclose()
            continue
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    def left() -> set[int]:
        gc.collect()
        return {c.pid for c in psutil.Process().children(recursive=True)} - before

    limit = time.monotonic() + 120
    while (left() or profiles()) and time.monotonic() < limit:
        await asyncio.sleep(0.1)  # the thread that starts a process ends on its own
    assert (left(), profiles()) == (set(), set())


@BROWSER.mark
async def test_browser_that_is_collected_is_killed() -> None:
    browser = await Browser.start()
    processes = family_of(browser.process.pid)
    await browser.connection.aclose()
    del browser
    gc.collect()
    assert wait_until_gone(processes) == []


async def test_binary_that_ends_at_once_is_a_typed_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVKIT_BROWSER", sys.executable)
    with pytest.raises(BrowserFault, match="ended at once") as caught:
        await Browser.start()
    assert caught.value.trouble is Trouble.START_FAILED
    assert caught.value.retryable
    assert not profiles()


def test_binary_on_the_path_is_found_behind_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENVKIT_BROWSER", raising=False)
    monkeypatch.setattr(binary_module, "_PLACES", ())
    script = tmp_path / "chromium-headless-shell"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (tmp_path / "chrome-headless-shell").symlink_to(os.path.realpath("/bin/sh"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_browser() == Path("/bin/sh").resolve()
