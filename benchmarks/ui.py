"""Measure `envkit ui` on a large run: reading, display in a real browser, search and scrolling.

The run is that of `benchmarks/report.py`: synthetic episodes of 5 turns with a drawn figure each,
100 sampled tokens per turn and 100 tokens of text in each observation. "table of runs" and "first
rows" count from the navigation, while the server reads in the background; "index" is the server's
time until the last episode was read. All later figures cover the whole run: "run page" and "list"
from the change of the address until the page is drawn, "search" from the input until its hits are
drawn, "open episode" until its image is loaded. "search server" is the request alone.

"scroll" turns the wheel through a list, then presses End and Home, in `envkit ui` and in the run's
single file. "longest_task_ms" is the longest task of the page's main thread above 50 ms, 0 if there
was none; "longest_gap_ms" is the longest time between two frames; "idle_gap_ms" is the same while
nobody touches the page, which shows the load of the machine. "most_rows" is the largest number of
rows that the page held. Goals for 10,000 episodes on two cores: first paint in 1.5 s, a search in
200 ms, an episode in 300 ms, no task above 50 ms while somebody scrolls.
"""

import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from harness import COMMAND, run, sized
from report import browser_page, episode, timed

from envkit.trajectory import save
from envkit.viewer import write_report

WORDS = ("t", "task 1", "parallel", "nothing-of-it", "angle x equals")


def wait_for(page: Any, condition: str) -> None:  # noqa: ANN401  # as above
    """Wait until an expression holds."""
    while not page.evaluate(condition):
        page.wait_for_timeout(20)


def measure(folder: Path, count: int, *, steps: int, rest_ms: int) -> dict[str, Any]:
    """Serve the folder and walk through its run in a browser."""
    started = time.perf_counter()
    server = subprocess.Popen(
        [*COMMAND, "ui", str(folder), "--port", "0", "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        figures: dict[str, Any] = {"server_ready_s": round(time.perf_counter() - started, 2)}
        with browser_page() as page:
            figures |= walk(page, address, started, count, rest_ms=rest_ms)
            figures["scroll"] = scrolled(page, steps=steps, rest_ms=rest_ms)
        figures["server_megabytes"] = round(psutil.Process(server.pid).memory_info().rss / 1e6)
        return figures
    finally:
        server.kill()
        server.communicate()


def walk(
    page: Any,  # noqa: ANN401  # as above
    address: str,
    started: float,
    count: int,
    *,
    rest_ms: int,
) -> dict[str, Any]:
    """Open each page and search."""
    page.goto(address)
    wait_for(page, "document.querySelector('.runs-table')")
    figures = {"table_of_runs_ms": page.evaluate("performance.now()")}
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    wait_for(page, paint)  # the table may be there before it is painted
    figures["first_paint_ms"] = page.evaluate(paint)
    figures["first_rows_while_read_ms"] = timed(page, "#/run/episodes", ".episodes tbody tr")
    read = "fetch('/api/runs').then(a => a.json()).then(x => x.runs[0].state !== 'reading')"
    while not page.evaluate(read):
        page.wait_for_timeout(250)
    figures["index_s"] = round(time.perf_counter() - started, 1)
    page.reload()
    wait_for(page, "document.querySelector('.episodes tbody tr')")
    figures["reload_list_ms"] = round(page.evaluate("performance.now()"), 1)
    page.wait_for_timeout(rest_ms)
    figures["run_page_ms"] = timed(page, "#/run", "main.run .figs")
    figures["list_ms"] = timed(page, "#/run/episodes", ".episodes tbody tr")
    searches = [timed(page, None, ".scroll > *", text) for text in (*WORDS, "")]
    figures |= {"search_ms": median(searches), "search_slowest_ms": max(searches)}
    alone = [page.evaluate(_FETCH, word) for word in WORDS]
    figures |= {"search_server_ms": median(alone), "search_server_slowest_ms": max(alone)}
    shot = ".turn.on img[src*='/image/']"
    opened = [timed(page, f"#/run/e/{number}", shot) for number in (7, count // 2, count)]
    return figures | {"open_episode_ms": median(opened)}


def scrolled(page: Any, *, steps: int, rest_ms: int) -> dict[str, Any]:  # noqa: ANN401  # as above
    """Scroll through both lists of a run, each from its start to its end and back."""
    figures: dict[str, Any] = {}
    for view in ("groups", "list"):
        timed(page, f"#/run/episodes?view={view}", f"table.{view} tbody tr")
        page.wait_for_timeout(rest_ms)
        page.mouse.move(700, 500)
        page.evaluate(_WATCH)
        page.wait_for_timeout(steps * _STEP_MS)
        idle = page.evaluate(_READ)
        for _ in range(steps):
            page.mouse.wheel(0, 400)
            page.wait_for_timeout(_STEP_MS)
        for key in ("End", "Home") * 3:
            page.keyboard.press(key)
            page.wait_for_timeout(rest_ms // 5)
        figures[view] = page.evaluate(_READ) | {"idle_gap_ms": idle["longest_gap_ms"]}
    return figures


_STEP_MS = 20
_WATCH = """() => {
    const seen = window.seen = { tasks: [0], gaps: [0], rows: 0 };
    const note = (list) => seen.tasks.push(...list.getEntries().map((one) => one.duration));
    new PerformanceObserver(note).observe({ type: "longtask" });
    let last = performance.now();
    requestAnimationFrame(function tick(now) {
        seen.gaps.push(now - last);
        last = now;
        seen.rows = Math.max(seen.rows, document.querySelectorAll("tbody .taskcell").length);
        if (window.seen === seen) requestAnimationFrame(tick);
    });
}"""
_READ = """() => {
    const { tasks, gaps, rows } = window.seen;
    const found = { longest_task_ms: Math.max(...tasks), tasks: tasks.length - 1,
                    longest_gap_ms: Math.round(Math.max(...gaps)), most_rows: rows };
    Object.assign(window.seen, { tasks: [0], gaps: [0] });
    return found;
}"""
_FETCH = """async (word) => {
    const start = performance.now();
    await (await fetch(`/api/search?${new URLSearchParams({ name: "run", q: word })}`)).json();
    return Math.round(10 * (performance.now() - start)) / 10;
}"""


def figures_of(episodes: int, steps: int, rest_ms: int) -> dict[str, Any]:
    """Return the size of a run, and the times of a walk through it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run" / "trajectories.jsonl"
        save((episode(number) for number in range(episodes)), path)
        report = write_report(path, Path(folder) / "report.html")
        figures = measure(Path(folder), episodes, steps=steps, rest_ms=rest_ms)
        with browser_page() as page:
            page.goto(report.as_uri())
            page.wait_for_timeout(rest_ms)
            figures["scroll_file"] = scrolled(page, steps=steps, rest_ms=rest_ms)
        return {
            "episodes": episodes,
            "megabytes": round(path.stat().st_size / 1e6, 1),
            **figures,
        }


if __name__ == "__main__":
    run(
        figures_of,
        episodes=sized(10_000, 20),
        steps=sized(150, 5, "turns of the wheel in a list"),
        rest_ms=sized(2000, 50, "milliseconds of rest before a list is scrolled"),
    )
