"""Measure the geometry environment: fresh problems with diagrams per second, and the grader.

Problems are counted per second of CPU time on one core, gradings by wall time. Goals: at least 150
problems per second, a grader median of at most 0.1 ms.

    python benchmarks/geo3k.py [--json FILE]
"""

import statistics
import time

from harness import run

from envkit_geo3k import ProceduralSource, grade
from envkit_geo3k.drawing import draw
from envkit_geo3k.figure import Figure

ANSWERS = (
    ("30", "30"),
    ("30°", "30"),
    ("31", "30"),
    (r"\frac{10}{4}", "2.5"),
    ("10/4", r"\frac{5}{2}"),
    ("2√221", r"2 \sqrt { 221 }"),
    ("29.73", r"2 \sqrt { 221 }"),
    (r"12\sqrt3 \text{ square units}", r"12 \sqrt{3}"),
    ("x = 13", "13"),
    (r"m\angle ABC = 65^\circ", "65"),
    (
        r"\boxed{\dfrac{25\pi}{3} - \frac{25\sqrt{3}}{4}}",
        r"\frac{25 \pi}{3} - \frac{25 \sqrt{3}}{4}",
    ),
    ("10pi", r"10 \pi"),
    ("8.08", "8.1"),
    (r"\left(3, \frac{9}{2}\right)", "(3, 4.5)"),
    ("2:3", "4:6"),
    ("9**9**9**9", "3.5"),
    ("I do not know", "3.5"),
)


def problems_per_second(count: int, *, encode: bool) -> float:
    """Return fresh problems with figures per second of CPU time, optionally encoded as PNG."""
    source = ProceduralSource(seed=2024)
    draw(Figure.from_json(source.task(0)["figure"]))  # loads the font
    started = time.process_time()
    for index in range(1, count + 1):
        image = draw(Figure.from_json(source.task(index)["figure"]))
        if encode:
            image.png_bytes()
    return count / (time.process_time() - started)


def grader_milliseconds(rounds: int) -> tuple[float, float]:
    """Return median and 95th percentile of one grading in milliseconds."""
    samples: list[float] = []
    for answer, gold in ANSWERS * rounds:
        started = time.perf_counter()
        grade(answer, gold)
        samples.append((time.perf_counter() - started) * 1e3)
    return statistics.median(samples), statistics.quantiles(samples, n=20)[18]


def measure(problems: int, rounds: int) -> dict[str, float]:
    """Return all figures."""
    median, p95 = grader_milliseconds(rounds)
    return {
        "problems_per_second": round(problems_per_second(problems, encode=False), 1),
        "problems_with_png_per_second": round(problems_per_second(problems, encode=True), 1),
        "grader_median_ms": round(median, 4),
        "grader_p95_ms": round(p95, 4),
    }


if __name__ == "__main__":
    run(
        measure,
        problems={"default": 600, "help": "number of problems to draw"},
        rounds={"default": 300, "help": "how often to grade each answer"},
    )
