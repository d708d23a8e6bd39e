"""Measure the search engine on the bundled facts: queries per second, load time and memory.

Queries are counted per second of CPU time on one core, with three hits each: page titles, short
queries such as "population of Oslo", and whole questions. Loading is measured in a fresh process,
without imports; memory is the peak of that process, including numpy and envkit. Goals: at least
2,000 queries per second on average over the three kinds, loading under 1 s, under 300 MB.

With `--tantivy` the same queries also go to an index on disk, and the overlap of both rankings is
printed: the share of our three hits among tantivy's three, and how often the first hit is the same.
`--large N` also compares both on a fictional world of N things.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import run, sized

from envkit_search.bm25 import Bm25Index
from envkit_search.document import Document
from envkit_search.fact_pages import fact_documents, fact_index
from envkit_search.questions import FactQuestions
from envkit_search.tantivy_backend import build_index
from envkit_search.world import World, WorldShape, world_documents

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


def drawn_queries(count: int) -> dict[str, list[str]]:
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


def tantivy_figures(
    name: str, index: Bm25Index, documents: Iterable[Document], texts: Sequence[str]
) -> dict[str, float]:
    """Compare tantivy with an in-memory index over the same documents."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        disk = build_index(Path(folder) / "index", documents)
        built = time.process_time()
        found = disk.search_now(texts, TOPK)
        searched = time.process_time() - built
    shared = first = total = 0
    for text, hits in zip(texts, found, strict=True):
        expected = [hit.document.id for hit in index.search(text, TOPK)]
        got = [hit.document.id for hit in hits]
        shared += len({*expected} & {*got})
        total += len(expected)
        first += expected[:1] == got[:1]
    return {
        f"{name}_tantivy_build_cpu_seconds": round(built - started, 1),
        f"{name}_tantivy_per_second": round(len(texts) / searched, 1),
        f"{name}_tantivy_overlap": round(shared / total, 4),
        f"{name}_tantivy_same_first": round(first / len(texts), 4),
    }


def large_figures(size: int, count: int) -> dict[str, float]:
    """Return the figures of both engines on a large fictional world."""
    shape = WorldShape(seed=1, size=size)
    documents = list(world_documents(World(shape)))
    started = time.process_time()
    index = Bm25Index.build(documents)
    figures: dict[str, float] = {
        "large_documents": len(documents),
        "large_build_cpu_seconds": round(time.process_time() - started, 1),
    }
    draws = random.Random(0)
    titles = [document.title for document in draws.sample(documents, count // 2)]
    texts = [*titles, *(f"what is {title} known for" for title in titles)]
    figures["large_per_second"] = round(queries_per_second(index, texts), 1)
    return figures | tantivy_figures("large", index, documents, texts)


def measure(queries: int, tantivy: bool, large: int | None) -> dict[str, float]:
    """Return all figures."""
    figures: dict[str, float] = load_figures()
    kinds = drawn_queries(queries)
    for kind, texts in kinds.items():
        figures[f"{kind}_per_second"] = round(queries_per_second(fact_index(), texts), 1)
    everything = [text for texts in kinds.values() for text in texts]
    figures["queries_per_second"] = round(queries_per_second(fact_index(), everything), 1)
    figures["world_2000_cpu_seconds"] = round(world_seconds(2000), 3)
    if tantivy:
        figures |= tantivy_figures("facts", fact_index(), fact_documents(), everything)
    if large is not None:
        figures |= large_figures(large, queries)
    return figures


if __name__ == "__main__":
    run(
        measure,
        queries=sized(3000, 4, "number of queries of each kind"),
        tantivy={"action": "store_true", "help": "compare with an index on disk"},
        large={"type": int, "metavar": "N", "help": "also measure a world of N things"},
    )
