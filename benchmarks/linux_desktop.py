"""Measure real desktop sessions: start, steps per second and memory.

A step is a click, a wait until the screen settles (40 ms without a change), and a screenshot as an
array. Each session shows a text editor.
"""

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import run, sized

from envkit_actions import Action, ActionKind
from envkit_linux_desktop import Limits
from envkit_linux_desktop.display import encoded
from envkit_linux_desktop.performing import Performer
from envkit_linux_desktop.session import DesktopSession, Pool, start_session
from envkit_sandbox.bubblewrap import first_process
from envkit_sandbox.watchdog import processes, proportional_mib

SIZE = (1280, 800)


def timed_start(_: int = 0) -> tuple[float, DesktopSession]:
    """Start a session and return the time it took."""
    begun = time.monotonic()
    session = start_session(*SIZE)
    return time.monotonic() - begun, session


def starts(count: int) -> dict[str, float]:
    """Return times of a start and of a session from the pool."""
    start_session(*SIZE).close()  # the template is made once per machine
    cold: list[float] = []
    ends: list[float] = []
    for _ in range(count):
        seconds, session = timed_start()
        cold.append(seconds)
        begun = time.monotonic()
        session.close()
        ends.append(time.monotonic() - begun)
    pool = Pool(*SIZE, size=1, limits=Limits())
    pool.take().close()
    pooled: list[float] = []
    for _ in range(count):
        time.sleep(2 * max(cold))
        begun = time.monotonic()
        session = pool.take()
        pooled.append(time.monotonic() - begun)
        session.close()
    pool.close()
    return {
        "start_s": statistics.median(cold),
        "longest_start_s": max(cold),
        "close_ms": statistics.median(ends) * 1000,
        "from_the_pool_ms": statistics.median(pooled) * 1000,
    }


def memory(session: DesktopSession) -> float:
    """Return the memory of a session in MiB, shared pages divided."""
    parts = [part for part in (session.display, session.desk) if part is not None]
    firsts = [first_process(part.sandbox) for part in parts if part.sandbox is not None]
    return sum(proportional_mib(one) for first in firsts for one in processes(first))


def steps(count: int, seconds: float, *, encodes: bool) -> dict[str, float]:
    """Return steps per second of several sessions at once."""
    with ThreadPoolExecutor(4) as pool:
        sessions = [one for _, one in pool.map(timed_start, range(count))]
    for session in sessions:
        session.open(("mousepad",))
    counts = [0] * count
    stop = threading.Event()

    def drive(number: int) -> None:
        performer = Performer(sessions[number].screen)
        while not stop.is_set():
            at = counts[number] % 100
            performer.perform(Action(kind=ActionKind.CLICK, x=400 + at, y=300 + at))
            sessions[number].screen.settle(quiet=0.04, least=0.04)
            shot = sessions[number].shot()
            if encodes:
                encoded(shot)
            counts[number] += 1

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    each = statistics.mean(memory(session) for session in sessions)
    for session in sessions:
        session.close()
    return {"steps_per_second": sum(counts) / seconds, "mib_each": each}


def measure(sessions: str, seconds: float, started: int) -> dict[str, Any]:
    """Return all figures; those of the most sessions are there twice."""
    together = {
        count: {
            name: steps(int(count), seconds, encodes=name == "png") for name in ("array", "png")
        }
        for count in sessions.split(",")
    }
    most = together[max(together, key=int)]
    return {**starts(started), "sessions": together, "most_sessions": most}


if __name__ == "__main__":
    run(
        measure,
        sessions=sized("1,4,8,16", "1", "numbers of sessions at once"),
        seconds=sized(10.0, 0.5, "seconds of steps"),
        started=sized(10, 1, "sessions started"),
    )
