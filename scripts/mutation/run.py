# ruff: noqa: T201  # a script prints its progress
"""Mutation testing of the files in which a silent error costs a training run.

    python scripts/mutation/run.py                         every mutant without a cached result
    python scripts/mutation/run.py tail staleness          only files whose path contains a word
    python scripts/mutation/run.py --survivors             only mutants that survived the last time
    python scripts/mutation/run.py --sample 150 --seed abc a sample, drawn with a seed
    python scripts/mutation/run.py --table                 the table of the cached results

A mutant is one small change: another comparison, a number plus or minus one, `and` for `or`, a
missing `not`, a dropped statement, two swapped arguments. A test that fails kills it. Survivors
stand in `equivalents.toml`, with the inputs on which both agree, or in `survivors.toml` (dropped
statements and swapped arguments only); any other survivor fails the run. Results are cached by
file: an interrupted run continues, and a result lasts until the file or one of its tests changes.

Exit status: 0 no unlisted survivor, 1 unlisted survivors, 2 wrong options or tests that fail
without a mutant, 130 interrupted.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from operators import Mutant, mutants_of

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).parent
EXIT_SURVIVORS, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
_RECORDING_S: Final = 900
_SHARED_ARGUMENTS: Final = (
    "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "plugin", "--import-mode=importlib",
    "-m", "not slow and not sglang and not vllm and not gpu",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Target:
    """A file and its tests."""

    path: str
    tests: tuple[str, ...]
    """Files, relative to the repository."""

    @property
    def module(self) -> str:
        """Name under which the file is imported."""
        parts = Path(self.path).with_suffix("").parts
        return ".".join(parts if parts[0] == "envkit" else parts[1:])

    def digest(self) -> str:
        """Return a hash of the file and its tests."""
        files = [ROOT / self.path, *(ROOT / test for test in self.tests)]
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def main() -> int:
    """Run the mutants and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only files whose path contains one of these")
    parser.add_argument("--survivors", action="store_true", help="repeat only the last survivors")
    parser.add_argument("--sample", type=int, metavar="N", help="draw N mutants")
    parser.add_argument("--seed", default="", help="seed of the sample, such as a commit")
    parser.add_argument("--workers", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--table", action="store_true", help="print the cached results and stop")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))
    targets = [one for one in _targets() if _matches(one.path, options.words)]
    if not targets:
        parser.error(f"no file of targets.toml contains {' or '.join(options.words)}")
    plans = [_Plan(target) for target in targets]
    if options.sample is not None:
        _keep_sample(plans, options.sample, options.seed)
    lists = _Lists()
    if not options.table:
        for plan in plans:
            plan.choose(lists, only_survivors=options.survivors)
        try:
            if not _run(plans, options.workers):
                return EXIT_USAGE
        except KeyboardInterrupt:
            print("interrupted; the next run continues")
            return EXIT_INTERRUPTED
    return _report(plans, lists, is_table=options.table)


class _Lists:
    """Survivors that are known."""

    def __init__(self) -> None:
        self.equivalents = self._read("equivalents.toml")
        self.survivors = self._read("survivors.toml")

    def __contains__(self, key: str) -> bool:
        return key in self.equivalents or key in self.survivors

    @staticmethod
    def _read(name: str) -> dict[str, str]:
        """Return the reason by key."""
        return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


class _Plan:
    """The mutants of one file, and their results."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.mutants = mutants_of(ROOT, target.path)
        self.pending: list[Mutant] = []
        self._digest = target.digest()
        self._cache = _cache_folder() / f"{target.module}.jsonl"
        self.results: dict[str, dict[str, Any]] = {}
        self._last: dict[str, dict[str, Any]] = {}
        for line in self._cache.read_text("utf-8").splitlines() if self._cache.exists() else ():
            entry = json.loads(line)
            self._last[entry["key"]] = entry
            if entry["digest"] == self._digest:
                self.results[entry["key"]] = entry

    def choose(self, lists: _Lists, *, only_survivors: bool) -> None:
        """Select the mutants to run.

        A known survivor is not repeated. With `only_survivors`, an earlier result of other tests
        counts, as long as it is "killed".
        """
        if only_survivors:
            killed = (entry for entry in self._last.values() if entry["status"] == "killed")
            self.add([entry for entry in killed if entry["key"] not in self.results])
        self.pending = [
            one for one in self.mutants if one.key not in self.results and one.key not in lists
        ]

    def add(self, results: Iterable[dict[str, Any]]) -> None:
        """Cache results."""
        with self._cache.open("a", encoding="utf-8") as file:
            for entry in results:
                stamped = {**entry, "digest": self._digest}
                self.results[entry["key"]] = stamped
                file.write(json.dumps(stamped) + "\n")


def _keep_sample(plans: Sequence[_Plan], count: int, seed: str) -> None:
    keys = [mutant.key for plan in plans for mutant in plan.mutants]
    drawn = set(random.Random(seed).sample(keys, min(count, len(keys))))
    for plan in plans:
        plan.mutants = [mutant for mutant in plan.mutants if mutant.key in drawn]


class _Worker:
    """A pytest process that plays the pending mutants of one file."""

    def __init__(self, plan: _Plan, mutants: Sequence[Mutant], folder: Path) -> None:
        self.plan, self._folder = plan, folder
        self._results, self._log = folder / "results.jsonl", folder / "log.txt"
        self._results.touch()
        self._read = 0
        job = {
            "root": str(ROOT),
            "path": plan.target.path,
            "module": plan.target.module,
            "source": (ROOT / plan.target.path).read_text(encoding="utf-8"),
            "results": str(self._results),
            "limit_s": _RECORDING_S,
            "arguments": _SHARED_ARGUMENTS,
            "mutants": [
                {"key": one.key, "lines": one.lines, "source": one.source} for one in mutants
            ],
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        paths = [HERE, ROOT, ROOT / "envs", ROOT / "adapters", ROOT / "tests"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *_SHARED_ARGUMENTS, *plan.target.tests],
                cwd=ROOT,
                env={
                    **os.environ,
                    "ENVKIT_MUTATION_JOB": str(folder / "job.json"),
                    "PYTHONPATH": os.pathsep.join(map(str, paths)),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "OMP_NUM_THREADS": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def collect(self) -> bool:
        """Take over new results; return whether the process still runs."""
        is_running = self._process.poll() is None
        lines = self._results.read_text("utf-8").splitlines()[self._read :]
        self._read += len(lines)
        self.plan.add(json.loads(line) for line in lines)
        return is_running

    def problem(self) -> str | None:
        """Return the end of the log if the process failed."""
        if self._process.returncode == 0:
            return None
        return "\n".join(self._log.read_text("utf-8", errors="replace").splitlines()[-30:])

    def stop(self) -> None:
        """Kill the process."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _run(plans: Sequence[_Plan], workers: int) -> bool:
    """Play all pending mutants; return False if a file's tests fail without a mutant."""
    waiting = [
        (plan, plan.pending[part::parts])
        for plan in plans
        for parts in [1 + len(plan.pending) // 120]
        for part in range(parts)
        if plan.pending
    ]
    total = sum(len(mutants) for _, mutants in waiting)
    running: list[_Worker] = []
    is_sound, started, count = True, time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="envkit-mutation-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    plan, mutants = waiting.pop(0)
                    count += 1
                    place = Path(folder, str(count))
                    place.mkdir()
                    running.append(_Worker(plan, mutants, place))
                time.sleep(0.2)
                for worker in list(running):
                    if not worker.collect():
                        worker.collect()
                        running.remove(worker)
                        problem = worker.problem()
                        if problem is not None:
                            is_sound = False
                            print(f"{worker.plan.target.path}:\n{problem}", file=sys.stderr)
                        minutes = (time.monotonic() - started) / 60
                        left = sum(len(mutants) for _, mutants in waiting)
                        print(
                            f"{worker.plan.target.path}: {minutes:.1f} min, "
                            f"{left} of {total} mutants wait",
                            flush=True,
                        )
        finally:
            for worker in running:
                worker.collect()
                worker.stop()
    return is_sound


def _report(plans: Sequence[_Plan], lists: _Lists, *, is_table: bool) -> int:
    """Print a row for each file and every unlisted survivor."""
    unlisted = [
        (mutant.key, plan.results[mutant.key]["by"])
        for plan in plans
        for mutant in plan.mutants
        if mutant.key not in lists and plan.results.get(mutant.key, {}).get("status") == "survived"
    ]
    if not is_table:
        for key, by in unlisted:
            print(f"survived: {key}" + (f"  ({by})" if by else ""))
    print(_table(plans, lists))
    stale = _stale(plans, lists) if is_table else []
    for key in stale:
        print(f"listed, but no such mutant exists: {key}")
    return EXIT_SURVIVORS if unlisted or stale else 0


def _stale(plans: Sequence[_Plan], lists: _Lists) -> list[str]:
    known = {mutant.key for plan in plans for mutant in plan.mutants}
    paths = {plan.target.path for plan in plans}
    listed = [*lists.equivalents, *lists.survivors]
    return [key for key in listed if key.split("::")[0] in paths and key not in known]


def _table(plans: Sequence[_Plan], lists: _Lists) -> str:
    rows = ["| file | mutants | killed | equivalent | dropped or swapped | killed | listed |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- |")
    sums = [0] * 6
    for plan in plans:
        figures: list[int] = []
        for is_weak in (False, True):
            keys = [one.key for one in plan.mutants if one.is_weak is is_weak]
            killed = sum(plan.results.get(key, {}).get("status") == "killed" for key in keys)
            figures += [len(keys), killed, sum(key in lists for key in keys)]
        rows.append(f"| `{plan.target.path}` | " + " | ".join(map(str, figures)) + " |")
        sums = [one + other for one, other in zip(sums, figures, strict=True)]
    rows.append("| all | " + " | ".join(map(str, sums)) + " |")
    return "\n".join(rows)


def _targets() -> list[Target]:
    entries = tomllib.loads((HERE / "targets.toml").read_text(encoding="utf-8"))["target"]
    return [
        Target(
            path=entry["path"],
            tests=tuple(
                str(file.relative_to(ROOT))
                for pattern in entry["tests"]
                for file in sorted((ROOT / "tests").glob(pattern))
            ),
        )
        for entry in entries
    ]


def _matches(path: str, words: Sequence[str]) -> bool:
    return not words or any(word in path for word in words)


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("ENVKIT_TEST_CACHE") or Path(home, "envkit")) / "mutation"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
