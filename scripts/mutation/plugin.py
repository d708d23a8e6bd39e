"""A pytest plugin that runs the collected tests once for each mutant of a file.

cosmic-ray's own runner writes each mutant into the checkout and starts pytest anew, which takes
seconds. Here one process collects the tests, records which of them execute which lines, and forks
for each mutant. The child replaces the code of the changed function in memory and runs the tests
that execute the changed statement, the fastest first, until one fails. A mutant that no function
holds, such as a default value, is imported instead by a new pytest process.

The environment variable names a file with the job as JSON: `root`, `path`, `module`, `source`,
`limit_s`, `arguments`, `results`, and `mutants`, a list of `key`, `lines` and `source`. For each
mutant the plugin appends a line of JSON to `results`: `key`, `status` and the failed test, `by`.
"""

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import pytest

JOB: Final = "ENVKIT_MUTATION_JOB"
IMPORTED: Final = "ENVKIT_MUTATION_IMPORT"
_MEMORY_BYTES: Final = 12 << 30
_CACHE: Final = type(functools.lru_cache(len))
_OPTIMIZED: Final = 0x1
"""Flag of a function's code; the code of a module or class body lacks it."""
_BASE_S: Final = 10.0
_SLOWER: Final = 5.0
"""Times the tests' usual seconds, plus `_BASE_S`, until a mutant counts as killed by time."""

Lines = dict[int, set[int]]
"""Numbers of tests by the line that they execute."""
Trace = Callable[[FrameType, str, object], Any]
"""A trace function of `sys.settrace`."""


class _MutantImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a mutated source."""

    def __init__(self, module: str, path: str, source: str) -> None:
        self._module, self._path, self._source = module, path, source

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, self._path, "exec"), module.__dict__)


if IMPORTED in os.environ:
    with open(os.environ[IMPORTED], encoding="utf-8") as file:
        sys.meta_path.insert(0, _MutantImporter(**json.load(file)))


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples for every mutant, and keep no failing ones."""
    from hypothesis import settings

    fast = settings.get_profile("fast")
    settings.register_profile("mutation", fast, derandomize=True, database=None)
    settings.load_profile("mutation")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the job instead of the tests."""
    if JOB not in os.environ:
        return None
    if session.testsfailed:
        raise session.Interrupted("tests cannot be collected")
    job = json.loads(Path(os.environ[JOB]).read_text(encoding="utf-8"))
    _Job(session, job).run()
    return True


class _Job:
    """All mutants of one file."""

    def __init__(self, session: pytest.Session, job: dict[str, Any]) -> None:
        self._session, self._items, self._job = session, list(session.items), job
        self._path = str(Path(job["root"], job["path"]))
        self._results = Path(job["results"])
        self._seconds: dict[int, float] = {}
        self._lines: Lines = {}
        gc.unfreeze()  # gc.get_objects leaves out frozen objects
        self._functions = [
            one
            for one in gc.get_objects()
            if type(one) is FunctionType and one.__code__.co_filename == self._path
        ]
        self._caches = [
            one
            for one in gc.get_objects()
            # Not isinstance, which runs the code of foreign objects.
            if type(one) is _CACHE and one.__wrapped__ in self._functions
        ]

    def run(self) -> None:
        """Play the mutants."""
        failed = self._record()
        if failed:
            raise pytest.UsageError(f"tests fail without a mutant: {', '.join(failed)}")
        gc.freeze()  # a collection in a child would copy the whole memory
        failed = self._repeat()
        if failed:
            raise pytest.UsageError(f"tests fail when they run again: {', '.join(failed)}")
        for mutant in self._job["mutants"]:
            self._play(mutant)

    def _play(self, mutant: dict[str, Any]) -> None:
        started = time.perf_counter()
        first, last = mutant["lines"]
        chosen = {at for line in range(first, last + 1) for at in self._lines.get(line, ())}
        swap = _Swap.of(self._path, self._job["source"], mutant["source"])
        if swap is None:  # the line runs at import: any test may show it
            chosen = set(range(len(self._items)))
        order = sorted(chosen, key=lambda at: (self._seconds[at], at))
        limit_s = _BASE_S + _SLOWER * sum(self._seconds[at] for at in order)
        if not order:
            answer: dict[str, Any] | None = {"status": "survived", "by": "no test executes it"}
        elif swap is None:
            limit_s += 30
            self._check_names()
            answer = self._forked(lambda: self._import_mutant(mutant, order), limit_s=limit_s)
        else:
            answer = self._forked(lambda: self._swap_mutant(swap, order), limit_s=limit_s)
        answer = answer or {"status": "killed", "by": "time"}
        answer["seconds"] = round(time.perf_counter() - started, 2)
        with self._results.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"key": mutant["key"], **answer}) + "\n")

    def _record(self) -> list[str]:
        """Run every test, note the lines of the file that it executes, and return what failed.

        It runs in this process, so that children find warm caches.
        """
        failed: list[str] = []
        current = -1

        def line(frame: FrameType, event: str, _: object) -> Trace:
            self._lines.setdefault(frame.f_lineno, set()).add(current)
            return line

        def call(frame: FrameType, event: str, argument: object) -> Trace | None:
            return line(frame, event, argument) if frame.f_code.co_filename == self._path else None

        signal.alarm(self._job["limit_s"])
        for current, item in enumerate(self._items):
            started = time.perf_counter()
            threading.settrace(call)
            sys.settrace(call)
            is_passed = self._passes(item, self._items[current + 1 : current + 2])
            sys.settrace(None)
            self._seconds[current] = time.perf_counter() - started
            if not is_passed:
                failed.append(item.nodeid)
        threading.settrace(None)  # pyright: ignore[reportArgumentType]
        signal.alarm(0)
        return failed

    def _repeat(self) -> list[str]:
        """Run every test again in a child, and return what failed: it would kill every mutant."""

        def run() -> dict[str, Any]:
            items = self._items
            return {
                "failed": [
                    item.nodeid
                    for at, item in enumerate(items)
                    if not self._passes(item, items[at + 1 : at + 2])
                ]
            }

        answer = self._forked(run, limit_s=self._job["limit_s"])
        return ["the child ended"] if answer is None else answer["failed"]

    def _swap_mutant(self, swap: "_Swap", order: Sequence[int]) -> dict[str, Any]:
        if not swap.apply(self._functions):
            return {"status": "survived", "by": "its function is not reachable"}
        for cache in self._caches:  # else a cached result of the recording hides the mutant
            cache.cache_clear()
        items = [self._items[at] for at in order]
        for at, item in enumerate(items):
            if not self._passes(item, items[at + 1 : at + 2]):
                return {"status": "killed", "by": item.nodeid}
        return {"status": "survived", "by": ""}

    def _import_mutant(self, mutant: dict[str, Any], order: Sequence[int]) -> dict[str, Any]:
        """Run the tests in a new process that imports the mutant."""
        work = self._results.with_suffix(".import.json")
        facts = {"module": self._job["module"], "path": self._path, "source": mutant["source"]}
        work.write_text(json.dumps(facts), encoding="utf-8")
        code = self._pytest(
            "-x", *(self._items[at].nodeid for at in order), **{IMPORTED: str(work)}
        )
        return {"status": "killed" if code else "survived", "by": "import" if code else ""}

    @functools.cache  # noqa: B019  # one job a process
    def _check_names(self) -> None:
        """Check that a new process finds the tests by name, else its failure would kill any mutant.

        Raises:
            UsageError: It does not.
        """
        if self._pytest("--collect-only", "-q", *(item.nodeid for item in self._items)):
            raise pytest.UsageError("the tests cannot be collected by name")

    def _pytest(self, *arguments: str, **variables: str) -> int:
        """Run a new process of pytest and return its exit status."""
        environment = {name: value for name, value in os.environ.items() if name != JOB}
        command = [sys.executable, "-m", "pytest", *self._job["arguments"], *arguments]
        pid = os.posix_spawn(sys.executable, command, {**environment, **variables})
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _passes(self, item: pytest.Item, following: Sequence[pytest.Item]) -> bool:
        nextitem = following[0] if following else None
        before = self._session.testsfailed
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        return self._session.testsfailed == before

    @staticmethod
    def _forked(work: Callable[[], Any], *, limit_s: float) -> dict[str, Any] | None:
        """Return what a function answers in a child, or None if the child dies or is too slow."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.setsid()
                os.close(reading)
                resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
                with os.fdopen(writing, "w", encoding="utf-8") as out:
                    json.dump(work(), out)
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        text = b"".join(_read(reading, time.monotonic() + limit_s))
        os.close(reading)
        # Also what a test left running.
        for stop in (lambda: os.killpg(pid, signal.SIGKILL), lambda: os.kill(pid, signal.SIGKILL)):
            try:
                stop()
            except ProcessLookupError:
                continue
        os.waitpid(pid, 0)
        try:
            return json.loads(text)
        except ValueError:
            return None


def _read(descriptor: int, deadline: float) -> Iterator[bytes]:
    while (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            part = os.read(descriptor, 1 << 16)
            if not part:
                return
            yield part


class _Swap:
    """Replaces the code of one function of an imported file."""

    def __init__(self, was: CodeType, becomes: CodeType) -> None:
        self._was, self._becomes = was, becomes

    @classmethod
    def of(cls, path: str, source: str, mutated: str) -> "_Swap | None":
        """Return the outermost function that changed; None if other code did."""
        before = compile(source, path, "exec")
        pair = _changed(before, compile(mutated, path, "exec"))
        return None if pair is None else cls(*pair)

    def apply(self, functions: Sequence[FunctionType]) -> bool:
        """Replace the code in this process; return False if no such function is alive."""
        name = self._was.co_qualname
        found = [
            one
            for one in functions
            if one.__code__.co_qualname == name and one.__code__ == self._was
        ]
        for function in found:
            function.__code__ = self._becomes
        return bool(found)


def _changed(before: CodeType, after: CodeType) -> tuple[CodeType, CodeType] | None:
    """Return the one function whose code differs, before and after."""
    if before.co_flags & _OPTIMIZED:
        same_cells = before.co_freevars == after.co_freevars
        return (before, after) if before != after and same_cells else None
    was, becomes = _nested(before), _nested(after)
    if len(was) != len(becomes) or before.co_code != after.co_code:
        return None
    if [one for one in before.co_consts if type(one) is not CodeType] != [
        one for one in after.co_consts if type(one) is not CodeType
    ]:
        return None
    pairs = [pair for pair in zip(was, becomes, strict=True) if pair[0] != pair[1]]
    return _changed(*pairs[0]) if len(pairs) == 1 else None


def _nested(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if type(one) is CodeType]
