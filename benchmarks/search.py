"""Measure the search engine on the shipped facts: queries a second, load time and memory.

Queries are counted per second of CPU time on one core, with three hits each: page titles, short
queries such as "population of Oslo", and whole questions. Loading is measured in a fresh process,
imports apart; memory is the peak of that process, numpy and envkit included. Goals: at least 2,000
queries a second in the mean of the three kinds, loading under 1 s, under 300 MB.

    python benchmarks/search.py [--json FILE]
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from envkit_search.bm25 import Bm25Index
from envkit_search.fact_pages import fact_documents, fact_index
from envkit_search.questions import FactQuestions
from envkit_search.world import World, WorldShape
from envkit_search.world_pages import world_documents

TOPK = 3

LOAD = """
import json, resource, time
import envkit_search.fact_pages as pages
import envkit_search.questions as questions
started = time.process_time(), time.perf_counter()
pages.fact_index()
loaded = time.process_time(), time.perf_counter()
questions.FactQuestions()
print(json.dumps({
    "load_cpu_seconds": round(loaded[0] - started[0], 3),
    "load_wall_seconds": round(loaded[1] - started[1], 3),
    "questions_cpu_seconds": round(time.process_time() - loaded[0], 3),
    "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
}))
"""


def queries(count: int) -> dict[str, list[str]]:
    """Return random queries of each kind."""
    draws = random.Random(0)
    titles = [document.title for document in draws.sample(fact_documents(), count)]
    nouns = ("population of {}", "capital {}", "{} time zone", "country of {}", "where is {}")
    source = FactQuestions(split="all")
    indices = draws.sample(range(source.size or 0), count)
    return {
        "titles": titles,
        "short": [draws.choice(nouns).format(title) for title in titles],
        "questions": [source.task(index)["question"] for index in indices],
    }


def queries_per_second(index: Bm25Index, texts: Sequence[str]) -> float:
    """Return answered queries per second of CPU time."""
    started = time.process_time()
    for text in texts:
        index.search(text, TOPK)
    return len(texts) / (time.process_time() - started)


def load_figures() -> dict[str, float]:
    """Return load times and peak memory of a fresh process."""
    run = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def world_seconds(size: int) -> float:
    """Return CPU seconds to draw and index a fictional world."""
    started = time.process_time()
    Bm25Index.build(world_documents(World(WorldShape(seed=1, size=size))))
    return time.process_time() - started


def main() -> None:
    """Print the figures and write them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--queries", type=int, default=3000, help="how many of each kind")
    options = parser.parse_args()
    figures: dict[str, float] = load_figures()
    kinds = queries(options.queries)
    for kind, texts in kinds.items():
        figures[f"{kind}_per_second"] = round(queries_per_second(fact_index(), texts), 1)
    everything = [text for texts in kinds.values() for text in texts]
    figures["queries_per_second"] = round(queries_per_second(fact_index(), everything), 1)
    figures["world_2000_cpu_seconds"] = round(world_seconds(2000), 3)
    for name, value in figures.items():
        print(f"{name:32} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
