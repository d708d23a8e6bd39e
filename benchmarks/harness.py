"""What all benchmarks share: options, tiny sizes, timing, printing figures, `--json FILE`, memory.

A benchmark is a function that takes its options as keywords and returns figures:

    def measure(steps: int) -> dict[str, float]: ...

    if __name__ == "__main__":
        run(measure, steps=sized(400, 8, "number of steps of each kind"))

With `--tiny` each size that was not given is its tiny one: the same work, done within seconds.
"""

import argparse
import asyncio
import inspect
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

Figures = Mapping[str, Any]
COMMAND: Final = (sys.executable, "-c", "from envkit.cli import main; main()")
"""Starts the command line in its own process."""


def sized(default: object, tiny: object, told: str = "") -> dict[str, Any]:
    """Return an option that says how much is measured.

    Args:
        default: Its value; None if the help says what that means.
        tiny: Its value with `--tiny`.
        told: What it counts.
    """
    return {"default": default, "tiny": tiny, "help": told}


@contextmanager
def serving(command: Sequence[str]) -> Generator[str]:
    """Run a server that prints its port in its own process, and yield its address."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def run(
    measure: Callable[..., Any], *, show: Callable[[Any], None] | None = None, **options: object
) -> Any:  # noqa: ANN401  # whatever `measure` returns
    """Read the options, measure, print the figures, and write them to `--json FILE`.

    Args:
        measure: Takes the options as keywords and returns figures that JSON can hold; may be
            asynchronous.
        show: Prints the figures, if not one per line.
        options: The default of each option, the keywords of its `add_argument`, or a `sized`.

    Returns:
        The figures.
    """
    chosen = _chosen(options)
    path: Path | None = chosen.pop("json")
    figures = measure(**chosen)
    if inspect.iscoroutine(figures):
        figures = asyncio.run(figures)
    (show or print_figures)(figures)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return figures


def _chosen(options: Mapping[str, object]) -> dict[str, Any]:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tiny: dict[str, Any] = {}
    for name, given in options.items():
        keywords: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"default": given}
        default = keywords.get("default")
        if "tiny" in keywords:
            tiny[name] = keywords.pop("tiny")
            sizes = f"default: {default}, tiny: {tiny[name]}"
            keywords["help"] = f"{keywords.get('help', '')} ({sizes})".lstrip()
        if "action" not in keywords:
            example = tiny.get(name, "") if default is None else default
            keywords.setdefault("type", str if "nargs" in keywords else type(example))
        parser.add_argument(f"--{name.replace('_', '-')}", **keywords)
    parser.add_argument("--tiny", action="store_true", help="measure as little as possible")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    if parser.parse_known_args()[0].tiny:
        parser.set_defaults(**tiny)
    chosen = vars(parser.parse_args())
    del chosen["tiny"]
    return chosen


def print_figures(figures: Figures) -> None:
    """Print one line per figure, under its path: `templates>qwen3>encode_us`."""
    for path, value in _flat(figures, ""):
        print(f"{path:48} {round(value, 4) if isinstance(value, float) else value}")


def _flat(figures: Figures, place: str) -> Iterator[tuple[str, Any]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{place}{name}>")
        else:
            yield f"{place}{name}", value


def quiet(figures: Figures) -> None:
    """Print nothing: the benchmark has printed its figures while it measured."""


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the time that a call takes; CPU time of the process by default."""
    started = clock()
    call()
    return clock() - started


def best_ms(
    call: Callable[[], object], times: int = 9, clock: Callable[[], float] = time.thread_time
) -> float:
    """Return the minimum milliseconds of a call, since other load only adds time."""
    return 1e3 * min(seconds(call, clock) for _ in range(times))


def memory_mb() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
