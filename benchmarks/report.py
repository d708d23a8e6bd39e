"""Measure the single-file report: writing, size, and display and search in a real browser.

A run of synthetic episodes is stored first: 5 turns each, with one of 600 drawn figures per turn,
100 sampled tokens per turn, and 100 tokens of text in the prompt and each observation. "write"
reads that run and writes the file. The browser itself measures "first paint" and "page ready" from
the navigation. "whole file" ends when everything is parsed, "search" and "sort" last from the input
until the result is drawn, "open episode" from the change of the address until its image is loaded.
Goals for 10,000 episodes on two cores: first paint in 1.5 s, a search in 200 ms, an episode in 300
ms.

    python benchmarks/report.py [--episodes 10000] [--json FILE]
"""

import random
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from harness import run, size
from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.images import Image
from envkit.messages import Message, message
from envkit.trajectory import Segment, SegmentKind, StopReason, Trajectory, TurnRecord, save
from envkit.viewer import write_report
from envkit_browser.driver import find_browser

TURNS = 5
IMAGE_TOKENS = 144
PROMPT_TOKENS, REPLY_TOKENS, OBSERVED_TOKENS = 100, 100, 100
FIGURES = 600
WORDS = (
    "the line",
    "from A to B",
    "is parallel",
    "to CD",
    "so angle x",
    "equals half",
    "of the arc",
)


@cache
def figure(number: int) -> Image:
    """Return a drawing of lines, circles and labels, 384 pixels wide."""
    rng = random.Random(number)
    picture = PilImage.new("RGB", (384, 384), "white")
    pen = ImageDraw.Draw(picture)
    points = [(rng.randrange(20, 364), rng.randrange(20, 364)) for _ in range(6)]
    for start, end in pairwise(points):
        pen.line((*start, *end), fill="black", width=2)
    for name, (x, y) in zip("ABCDEF", points, strict=True):
        pen.text((x + 4, y + 4), name, fill="black", font_size=18)
    x, y = points[0]
    radius = rng.randrange(20, 90)
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline="blue", width=2)
    return Image.from_pil(picture)


def episode(number: int) -> Trajectory:
    """Return an episode of five turns, each with its own image."""
    rng = random.Random(number)
    segments: list[Segment] = []
    turns: list[TurnRecord] = []
    messages: list[Message] = []
    for turn in range(TURNS):
        shown, said = figure(rng.randrange(FIGURES)), " ".join(rng.choices(WORDS, k=60))
        kind = SegmentKind.PROMPT if turn == 0 else SegmentKind.OBSERVATION
        count = PROMPT_TOKENS if turn == 0 else OBSERVED_TOKENS
        segments.append(_context(rng, kind, turn, shown, count))
        segments.append(_reply(rng, turn))
        messages += [
            message("user", f"Task {number}: {' '.join(rng.choices(WORDS, k=30))}", (shown,)),
            message("assistant", said),
        ]
        turns.append(_turn(rng, turn, said, shown))
    return Trajectory(
        episode_id=f"episode-{number:06}",
        env_id="drawn-v0",
        seed=number,
        group_id=f"group-{number // 8}",
        metadata={"member": number % 8},
        task={"id": number},
        segments=tuple(segments),
        turns=tuple(turns),
        messages=tuple(messages),
        reward=float(number % 3 == 0),
        stop_reason=StopReason.MAX_TURNS if number % 5 == 0 else StopReason.TERMINATED,
        duration_seconds=rng.uniform(1, 30),
        engine="none",
    )


def _context(rng: random.Random, kind: SegmentKind, turn: int, shown: Image, count: int) -> Segment:
    text = tuple(rng.randrange(50_000) for _ in range(count))
    return Segment(
        kind=kind,
        turn=turn,
        wire_ids=(5, 9, 6, *text),
        train_ids=(5, *(9,) * IMAGE_TOKENS, 6, *text),
        loss_mask=(0,) * (count + IMAGE_TOKENS + 2),
        logprobs=(0.0,) * (count + IMAGE_TOKENS + 2),
        images=(shown,),
    )


def _reply(rng: random.Random, turn: int) -> Segment:
    ids = tuple(rng.randrange(50_000) for _ in range(REPLY_TOKENS))
    return Segment(
        kind=SegmentKind.MODEL,
        turn=turn,
        wire_ids=ids,
        train_ids=ids,
        loss_mask=(1,) * REPLY_TOKENS,
        logprobs=tuple(-rng.expovariate(2.0) for _ in ids),
        reward=0.0,
        finish_reason="stop",
    )


def _turn(rng: random.Random, turn: int, said: str, shown: Image) -> TurnRecord:
    return TurnRecord(
        turn=turn,
        prompt_tokens=600 + 400 * turn,
        cached_tokens=600 * turn,
        response_tokens=REPLY_TOKENS,
        observation_tokens=0 if turn == TURNS - 1 else OBSERVED_TOKENS + IMAGE_TOKENS + 2,
        image_count=1,
        image_bytes=len(shown.png_bytes()),
        queue_seconds=0.01,
        generate_seconds=rng.uniform(0.2, 4.0),
        env_seconds=rng.uniform(0.01, 0.5),
        encode_seconds=0.01,
        response_text=said,
        parse_error="no call found" if rng.random() < 0.05 else None,
        reward=0.0,
        finish_reason="stop",
        info={"turn": turn, "reward_terms": {"answer": 0.0}},
    )


@contextmanager
def browser_page() -> Generator[Any]:
    """Yield a page of a fresh browser, of playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(600_000)
        yield page
        browser.close()


def in_browser(page_file: Path, opened: int) -> dict[str, float]:
    """Return a browser's times to show and search the file, as medians over several loads."""
    found: dict[str, list[float]] = {}
    for _ in range(opened):
        with browser_page() as page:
            page.goto(f"{page_file.as_uri()}#/run/episodes")
            for name, value in {**_paint(page), **_list(page), **_open(page)}.items():
                found.setdefault(name, []).append(value)
    return {name: round(median(values), 1) for name, values in found.items()}


def _paint(page: Any) -> dict[str, float]:  # noqa: ANN401  # playwright is an optional dependency
    page.wait_for_timeout(2_000)  # the texts for the search are decoded when the file is parsed
    return page.evaluate("""() => ({
        first_paint_ms: performance.getEntriesByName("first-contentful-paint")[0].startTime,
        page_ready_ms: performance.getEntriesByName("page ready")[0].startTime,
        whole_file_ms: performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd,
    })""")


def _list(page: Any) -> dict[str, float]:  # noqa: ANN401  # as above
    script = """async (act) => {
        const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        const table = document.querySelector(".scroll");
        await frame();
        const start = performance.now();
        const drawn = new Promise((done) => {
            const watcher = new MutationObserver(() => { watcher.disconnect(); done(); });
            watcher.observe(table, { childList: true });
        });
        if ("text" in act) {
            const field = document.querySelector("input[type=search]");
            field.value = act.text;
            field.dispatchEvent(new Event("input", { bubbles: true }));
        } else table.querySelector(`[data-sort=${act.sort}]`).click();
        await drawn;
        await frame();
        return performance.now() - start;
    }"""
    words = ("t", "task 1", "parallel", "nothing-of-it", "")
    times = [page.evaluate(script, {"text": text}) for text in words]
    sort = page.evaluate(script, {"sort": "mean"})
    return {"search_ms": median(times), "search_slowest_ms": max(times), "sort_ms": sort}


def _open(page: Any) -> dict[str, float]:  # noqa: ANN401  # as above
    script = """async () => {
        const start = performance.now();
        location.hash = "#/run/e/7";
        while (!document.querySelector(".turn.on img")?.complete)
            await new Promise((done) => setTimeout(done, 1));
        return performance.now() - start;
    }"""
    return {"open_episode_ms": page.evaluate(script)}


def measure(episodes: int, opened: int) -> dict[str, float]:
    """Return the figures of writing the page and of opening it."""
    with tempfile.TemporaryDirectory() as folder:
        path, page = Path(folder) / "run" / "trajectories.jsonl", Path(folder) / "report.html"
        save((episode(number) for number in range(episodes)), path)
        started, worked = time.perf_counter(), time.process_time()
        write_report(path, page)
        return {
            "episodes": episodes,
            "write_seconds": round(time.perf_counter() - started, 2),
            "write_cpu_seconds": round(time.process_time() - worked, 2),
            "megabytes": round(page.stat().st_size / 1e6, 1),
            **in_browser(page, opened),
        }


if __name__ == "__main__":
    run(
        measure,
        episodes=size(10_000, 20),
        opened=size(3, 1, "number of times the browser opens the file"),
    )
