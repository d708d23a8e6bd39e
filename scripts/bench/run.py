# ruff: noqa: T201  # a script prints its progress
"""Run the benchmarks one after the other and write one table of their figures.

    make bench                                   # all but reliability.py: hours, on a quiet machine
    make bench ARGS="--only loop delta"          # only these; the other rows of the table stay
    make bench ARGS=--tiny                       # minutes: shows that each one runs

The table is `benchmarks/results/table.md`; beside it are the figures of each benchmark as JSON, and
what it printed. A benchmark that cannot run here has a row that says why. The table is written
after each benchmark, so Ctrl-C keeps what was measured. Status 1: a benchmark failed, which is more
than a package, browser or desktop that is missing here.
"""

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rows import ROOT, Benchmark, Outcome, benchmarks, commit, machine, markdown

BENCHMARKS: Final = benchmarks()
RESULTS: Final = ROOT / "benchmarks" / "results"
LONGEST_S: Final = 2 * 3600.0
LONGEST_REASON: Final = 300
NEWS_S: Final = 60.0
"""Seconds between two signs of life."""
_LACKING: Final = re.compile(
    r"^(?:[\w.]+\.)?(?:MissingDependencyError|RefusedError|ModuleNotFoundError): (.+)$", re.M
)
_OURS: Final = frozenset(file.stem for file in (ROOT / "benchmarks").rglob("*.py"))


def interpreter(environment: str) -> Path:
    """Return the Python of a contract environment, or this one."""
    if not environment:
        return Path(sys.executable)
    sys.path.append(str(ROOT / "scripts" / "contracts"))
    from recipes import RECIPES

    folder: Path = RECIPES[environment].folder()
    return folder / "bin" / "python"


def declare(folder: Path) -> str:
    """Write the metadata that names the plugins, for a Python where envkit is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / "plugins" / "envkit-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return str(info.parent)


def play(name: str, benchmark: Benchmark, folder: Path, *, tiny: bool) -> Outcome:
    """Run a benchmark in its own processes and return its rows, or why there are none."""
    day, made = str(datetime.datetime.now(tz=datetime.UTC).date()), commit()
    python = interpreter(benchmark.environment)
    if not python.exists():
        wanted = benchmark.environment
        reason = f"the environment of {wanted} is not built; make contract-{wanted} builds it"
        return Outcome(day=day, commit=made, reason=reason)
    result, log = folder / f"{name}.json", folder / f"{name}.log"
    result.unlink(missing_ok=True)
    script = ROOT / "benchmarks" / f"{benchmark.script or name}.py"
    arguments = [*benchmark.arguments, *(("--tiny",) if tiny else ()), "--json", str(result)]
    paths = [str(ROOT / one) for one in ("", "envs", "adapters")]
    if benchmark.environment:
        paths.append(declare(folder))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, script, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C reaches it through `stop`, with all its processes
        )
        try:
            wait(process)
        except subprocess.TimeoutExpired:
            reason = f"no end after {LONGEST_S / 3600:.0f} hours; {log.name} has its output"
            return Outcome(day=day, commit=made, reason=reason, failed=True)
        finally:
            stop(process)
    if not result.exists():
        reason, failed = why(log.read_text(errors="replace"), process.returncode)
        return Outcome(day=day, commit=made, reason=reason, failed=failed)
    figures: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    try:
        rows = [row.cells(figures, tiny=tiny) for row in benchmark.rows]
    except (KeyError, TypeError, ZeroDivisionError) as error:
        reason = f"{result.name} lacks {error}, which rows.toml names"
        return Outcome(day=day, commit=made, reason=reason, failed=True)
    return Outcome(day=day, commit=made, rows=rows)


def wait(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a benchmark's end, with a sign of life now and then."""
    started = time.monotonic()
    while (spent := time.monotonic() - started) < LONGEST_S:
        try:
            process.wait(NEWS_S)
        except subprocess.TimeoutExpired:
            print(f"        still running after {spent + NEWS_S:.0f} s", flush=True)
        else:
            return
    raise subprocess.TimeoutExpired(process.args, LONGEST_S)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a benchmark and everything that it started."""
    for number, patience_s in ((signal.SIGINT, 10), (signal.SIGKILL, 10)):
        if process.poll() is None or number is signal.SIGKILL:
            try:
                os.killpg(process.pid, number)
                process.wait(patience_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def why(output: str, status: int) -> tuple[str, bool]:
    """Return why a benchmark wrote no figures, and whether that is a failure."""
    lacking = _LACKING.findall(output)
    module = lacking[-1].partition("named '")[2].split("'")[0] if lacking else ""
    if lacking and module not in _OURS and not module.startswith("envkit"):
        return lacking[-1][:LONGEST_REASON], False
    if status < 0:
        return f"killed by signal {-status}", True
    last = (output.strip().splitlines() or [f"ended with status {status} and no output"])[-1]
    return last[:LONGEST_REASON], not output.strip() or "Traceback" in output


def kept(file: Path) -> dict[str, Outcome]:
    """Return the outcomes of earlier runs on this machine."""
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["machine"] != machine():
            return {}
        return {name: Outcome(**outcome) for name, outcome in found["outcomes"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{file} is damaged, delete it: {error!r}") from error


def write(outcomes: Mapping[str, Outcome], folder: Path, *, tiny: bool) -> None:
    """Write the table, and what it was made of."""
    ordered = {name: outcomes[name] for name in BENCHMARKS if name in outcomes}
    found = {"machine": machine(), "outcomes": {n: asdict(one) for n, one in ordered.items()}}
    texts = {"json": json.dumps(found, indent=2) + "\n", "md": markdown(ordered, tiny=tiny)}
    for suffix, text in texts.items():
        partial = folder / f"table.{suffix}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / f"table.{suffix}")


def main() -> int:
    """Run the benchmarks that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help="run these")
    parser.add_argument("--tiny", action="store_true", help="measure as little as possible")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"default: {RESULTS}")
    options = parser.parse_args()
    # Tiny figures never replace measured ones.
    folder: Path = options.out or (RESULTS / "tiny" if options.tiny else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    outcomes, names = kept(folder / "table.json"), options.only or list(BENCHMARKS)
    status = 0
    # Ctrl-C counts even where a shell started this in the background and had it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        for number, name in enumerate(names, 1):
            print(f"[{number:2}/{len(names)}] {name}", flush=True)
            started = time.monotonic()
            outcome = play(name, BENCHMARKS[name], folder, tiny=options.tiny)
            outcomes[name] = outcome
            write(outcomes, folder, tiny=options.tiny)
            status |= outcome.failed
            said = outcome.rows or [["failed" if outcome.failed else "not run", outcome.reason]]
            for row in said:
                print(f"        {'  '.join(filter(None, row))}", flush=True)
            print(f"        {time.monotonic() - started:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted; what was measured is in the table", flush=True)
        status = 130
    print(folder / "table.md")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
