"""Measure `envkit ui` on a large run: reading, display in a real browser, and search.

The run is that of `benchmarks/report.py`: synthetic episodes of 5 turns with a drawn figure each,
100 sampled tokens per turn and 100 tokens of text in each observation. "table of runs" and "first
rows" count from the navigation, while the server reads in the background; "index" is the server's
time until the last episode was read. All later figures cover the whole run: "run page" and "list"
from the change of the address until the page is drawn, "search" from the input until its hits are
drawn, "open episode" until its image is loaded. "search server" is the request alone. Goals for
10,000 episodes on two cores: first paint in 1.5 s, a search in 200 ms, an episode in 300 ms.
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

WORDS = ("t", "task 1", "parallel", "nothing-of-it", "angle x equals")


def wait_for(page: Any, condition: str) -> None:  # noqa: ANN401  # as above
    """Wait until an expression holds."""
    while not page.evaluate(condition):
        page.wait_for_timeout(20)


def measure(folder: Path, count: int) -> dict[str, float]:
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
        figures = {"server_ready_s": round(time.perf_counter() - started, 2)}
        with browser_page() as page:
            figures |= walk(page, address, started, count)
        figures["server_megabytes"] = round(psutil.Process(server.pid).memory_info().rss / 1e6)
        return figures
    finally:
        server.kill()
        server.communicate()


def walk(page: Any, address: str, started: float, count: int) -> dict[str, float]:  # noqa: ANN401  # as above
    """Open each page and search."""
    page.goto(address)
    wait_for(page, "document.querySelector('.runs-table')")
    figures = {"table_of_runs_ms": page.evaluate("performance.now()")}
    figures["first_paint_ms"] = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    figures["first_rows_while_read_ms"] = timed(page, "#/run/episodes", ".episodes tbody tr")
    read = "fetch('/api/runs').then(a => a.json()).then(x => x.runs[0].state !== 'reading')"
    while not page.evaluate(read):
        page.wait_for_timeout(250)
    figures["index_s"] = round(time.perf_counter() - started, 1)
    page.reload()
    wait_for(page, "document.querySelector('.episodes tbody tr')")
    figures["reload_list_ms"] = round(page.evaluate("performance.now()"), 1)
    page.wait_for_timeout(3000)
    figures["run_page_ms"] = timed(page, "#/run", "main.run .figs")
    figures["list_ms"] = timed(page, "#/run/episodes", ".episodes tbody tr")
    searches = [timed(page, None, ".scroll > *", text) for text in (*WORDS, "")]
    figures |= {"search_ms": median(searches), "search_slowest_ms": max(searches)}
    alone = [page.evaluate(_FETCH, word) for word in WORDS]
    figures |= {"search_server_ms": median(alone), "search_server_slowest_ms": max(alone)}
    shot = ".turn.on img[src*='/image/']"
    opened = [timed(page, f"#/run/e/{number}", shot) for number in (7, count // 2, count)]
    return figures | {"open_episode_ms": median(opened)}


_FETCH = """async (word) => {
    const start = performance.now();
    await (await fetch(`/api/search?${new URLSearchParams({ name: "run", q: word })}`)).json();
    return Math.round(10 * (performance.now() - start)) / 10;
}"""


def figures_of(episodes: int) -> dict[str, float]:
    """Return the size of a run, and the times of a walk through it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run" / "trajectories.jsonl"
        save((episode(number) for number in range(episodes)), path)
        return {
            "episodes": episodes,
            "megabytes": round(path.stat().st_size / 1e6, 1),
            **measure(Path(folder), episodes),
        }


if __name__ == "__main__":
    run(figures_of, episodes=sized(10_000, 20))
