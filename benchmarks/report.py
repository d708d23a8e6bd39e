"""Measure the single-file report: writing, size, and display and search in a real browser.

A run of synthetic episodes is stored first: 5 turns each, with one of 600 drawn figures per turn,
100 sampled tokens per turn, and 100 tokens of text in the prompt and each observation. "write"
reads that run and writes the file. The browser itself measures "first paint" and "page ready" from
the navigation. "whole file" ends when everything is parsed, "search" lasts from the input until the
result is drawn, "open episode" from the change of the address until its image is there.
Goals for 10,000 episodes on two cores: first paint in 1.5 s, a search in 200 ms, an episode in 300
ms.
"""

import random
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import run, sized
from PIL import Image as PilImage
from PIL import ImageDraw
from storing import text_segment

from envkit.images import Image
from envkit.messages import Message, message
from envkit.trajectory import Segment, SegmentKind, StopReason, Trajectory, TurnRecord, save
from envkit.viewer import write_report
from envkit_browser.driver import find_browser

TURNS = 5
IMAGE_TOKENS = 144
TEXT_TOKENS = 100
FIGURES = 600
WORDS = (
    *("the line", "from A to B", "is parallel", "to CD"),
    *("so angle x", "equals half", "of the arc"),
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
    rng, ids = random.Random(number), np.random.default_rng(number)
    segments: list[Segment] = []
    turns: list[TurnRecord] = []
    messages: list[Message] = []
    for turn in range(TURNS):
        shown, said = figure(rng.randrange(FIGURES)), " ".join(rng.choices(WORDS, k=60))
        reply = text_segment(ids, SegmentKind.MODEL, turn, TEXT_TOKENS)
        segments += [_context(ids, turn, shown), replace(reply, finish_reason="stop")]
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


def _context(rng: np.random.Generator, turn: int, shown: Image) -> Segment:
    kind = SegmentKind.OBSERVATION if turn else SegmentKind.PROMPT
    text = text_segment(rng, kind, turn, TEXT_TOKENS)
    return replace(
        text,
        wire_ids=(5, 9, 6, *text.wire_ids),
        train_ids=(5, *(9,) * IMAGE_TOKENS, 6, *text.train_ids),
        loss_mask=(0,) * (TEXT_TOKENS + IMAGE_TOKENS + 2),
        logprobs=(0.0,) * (TEXT_TOKENS + IMAGE_TOKENS + 2),
        images=(shown,),
    )


def _turn(rng: random.Random, turn: int, said: str, shown: Image) -> TurnRecord:
    return TurnRecord(
        turn=turn,
        prompt_tokens=600 + 400 * turn,
        cached_tokens=600 * turn,
        response_tokens=TEXT_TOKENS,
        observation_tokens=0 if turn == TURNS - 1 else TEXT_TOKENS + IMAGE_TOKENS + 2,
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


_UNTIL = """async ([place, selector, text]) => {
    const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const old = new Set(document.querySelectorAll(selector));  // of the page that is left
    const isThere = (one) => !old.has(one) && one.complete !== false;
    const start = performance.now();
    if (place !== null) location.hash = place;
    if (text !== null) {
        const field = document.querySelector("input[type=search]");
        field.value = text;
        field.dispatchEvent(new Event("input", { bubbles: true }));
    }
    while (![...document.querySelectorAll(selector)].some(isThere)) {
        await new Promise((done) => setTimeout(done, 1));
    }
    await frame();
    return performance.now() - start;
}"""


def timed(page: Any, place: str | None, selector: str, text: str | None = None) -> float:  # noqa: ANN401  # a playwright page
    """Return milliseconds until a new element is drawn after the address or the search changed."""
    return round(page.evaluate(_UNTIL, [place, selector, text]), 1)


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
            for name, value in {**_paint(page), **_walk(page)}.items():
                found.setdefault(name, []).append(value)
    return {name: round(median(values), 1) for name, values in found.items()}


def _paint(page: Any) -> dict[str, float]:  # noqa: ANN401  # playwright is an optional dependency
    page.wait_for_timeout(2_000)  # the texts for the search are decoded when the file is parsed
    return page.evaluate("""() => ({
        first_paint_ms: performance.getEntriesByName("first-contentful-paint")[0].startTime,
        page_ready_ms: performance.getEntriesByName("page ready")[0].startTime,
        whole_file_ms: performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd,
    })""")


def _walk(page: Any) -> dict[str, float]:  # noqa: ANN401  # as above
    words = ("t", "task 1", "parallel", "nothing-of-it", "")
    times = [timed(page, None, ".scroll > *", text) for text in words]
    opened = timed(page, "#/run/e/7", ".turn.on img")
    return {"search_ms": median(times), "search_slowest_ms": max(times), "open_episode_ms": opened}


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
        episodes=sized(10_000, 20),
        opened=sized(3, 1, "number of times the browser opens the file"),
    )
