"""What all benchmarks share: their options, printing figures, `--json FILE`, and memory.

A benchmark is a function that takes its options as keywords and returns figures:

    def measure(steps: int) -> dict[str, float]: ...

    if __name__ == "__main__":
        run(measure, steps={"default": 400, "help": "number of steps of each kind"})
"""

import argparse
import asyncio
import inspect
import json
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]


def show(figures: Figures) -> None:
    """Print one line per figure."""
    for name, value in figures.items():
        print(f"{name:32} {round(value, 4) if isinstance(value, float) else value}")


def quiet(figures: Figures) -> None:
    """Print nothing: the benchmark has printed its figures while it measured."""


def run(
    measure: Callable[..., Any], *, show: Callable[[Any], None] = show, **options: object
) -> Any:  # noqa: ANN401  # whatever `measure` returns
    """Read the options, measure, print the figures, and write them to `--json FILE`.

    Args:
        measure: Takes the options as keywords and returns figures that JSON can hold; may be
            asynchronous.
        show: Prints the figures.
        options: The default of each option, or the keywords of its `add_argument`.

    Returns:
        The figures.
    """
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, given in options.items():
        keywords: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"default": given}
        default = keywords.get("default")
        if isinstance(default, int | float) and not isinstance(default, bool):
            keywords.setdefault("type", type(default))
        parser.add_argument(f"--{name.replace('_', '-')}", **keywords)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    chosen = vars(parser.parse_args())
    path: Path | None = chosen.pop("json")
    figures = measure(**chosen)
    if inspect.iscoroutine(figures):
        figures = asyncio.run(figures)
    show(figures)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return figures


def memory_mb() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
