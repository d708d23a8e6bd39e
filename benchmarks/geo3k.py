"""Measure the geometry environment: fresh problems with diagrams per second of CPU time.

Goal: at least 150 problems per second on one core. `benchmarks/grading.py` measures the grader.
"""

import time

from harness import run, sized

from envkit_geo3k import ProceduralSource
from envkit_geo3k.drawing import draw
from envkit_geo3k.figure import Figure


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


def measure(problems: int) -> dict[str, float]:
    """Return all figures."""
    return {
        "problems_per_second": round(problems_per_second(problems, encode=False), 1),
        "problems_with_png_per_second": round(problems_per_second(problems, encode=True), 1),
    }


if __name__ == "__main__":
    run(measure, problems=sized(600, 4, "number of problems to draw"))
