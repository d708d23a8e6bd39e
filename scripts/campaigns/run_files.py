"""Give hostile run files to everything that reads a run file.

`--rows` changes rows of real runs at random. A line may be refused or read, but no reader may raise
anything else or take seconds. `--folders` makes hostile run folders from a seed and runs every
command that reads a run on each, in a process with a deadline and a limit of memory. A command may
refuse a folder, but not hang, crash, print a traceback or control characters, import what the
folder names, change a file outside it, or lose the sound lines.
`tests/core/trajectory/test_hostile_rows.py` runs part of both.

    python scripts/campaigns/run_files.py --rows 100000
    python scripts/campaigns/run_files.py --folders
"""

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.hostile_folders import (  # noqa: E402
    CODE,
    HTML,
    OUTSIDE,
    hostile_folders,
    real_run,
    sound_lines,
)
from fakes.hostile_rows import mutated, read_everywhere, real_rows  # noqa: E402
from fakes.served import served  # noqa: E402

DEADLINE_S = 60
MEMORY = 4 << 30
HEAVY = ("torch", "transformers", "pyarrow.parquet", "datasets", "inspect_ai.log", "anywidget")
TRAINERS = ("slime", "miles", "verl", "skyrl", "trl")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CONTROLS = re.compile(r"[^\t\n -~\u00a0-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")


def commands(run: Path, real: Path, out: Path) -> dict[str, tuple[object, ...]]:
    """Return the command lines that read a run; the last ones change it."""
    rows = run / "trajectories.jsonl"
    return {
        "verify": ("verify", run),
        "verify --json": ("verify", run, "--json"),
        "view": ("view", run),
        "view --images": ("view", run, "--images", "blocks"),
        "report": ("report", run, "--out", out / "report.html"),
        "report two": ("report", real, run, "--out", out / "diff.html"),
        "eval --paired": ("eval", real, run, "--paired"),
        "filter": ("filter", run, "--out", out / "kept.jsonl"),
        "export sft": ("export", run, "--format", "sft", "--out", out / "sft.jsonl"),
        "export parquet": ("export", run, "--format", "parquet", "--out", out / "run.parquet"),
        "export hf": ("export", run, "--format", "hf", "--out", out / "hf"),
        "export inspect": ("export", run, "--format", "inspect", "--out", out / "run.eval"),
        "export --tasks": (
            "export", "canary-v0", "--format", "jsonl", "--tasks", rows, "--out", out / "t.jsonl",
        ),
        "rollout --tasks": (
            "rollout", "canary-v0", "--policy", "oracle", "--tasks", rows, "--out", out / "played",
        ),
        "certify --golden": ("certify", "canary-v0", "--only", "golden", "--golden", rows, "-n", 2),
        "conformance": ("conformance", "--recordings", run),
        **{
            f"import {one}": ("import", rows, "--from", one, "--out", out / one) for one in TRAINERS
        },
        "merge": ("merge", run, real, "--out", out / "merged"),
        "eval --resume": ("eval", "--resume", run, "-q"),
        "--resume": ("rollout", "--resume", run, "-q"),
        "--retry-faults": ("rollout", "--resume", run, "--retry-faults", "-q"),
        "--overwrite": ("rollout", "canary-v0", "-n", 1, "--policy", "oracle", "--out", run,
                        "--overwrite", "-q"),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a process left behind."""

    status: int
    """As `os.waitstatus_to_exitcode` returns it; -14 after the deadline."""
    text: str
    seconds: float

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with it."""
        if self.status not in range(4):
            yield f"ended with {self.status}"
        for word in ("Traceback", "Warning: "):
            if word in self.text:
                yield f"printed {word!r}"
        if found := CONTROLS.search(COLOURS.sub("", self.text)):
            yield f"printed {found[0]!r}"
        if self.text.startswith("envkit: error") and self.text.count("\n") != 1:
            yield "printed an error of several lines"


def run(act: Callable[[], object], where: Path, *, deadline_s: int = DEADLINE_S) -> Outcome:
    """Call a function in a child with a deadline and a limit of memory."""
    started = time.monotonic()
    file = where / "output"
    child = os.fork()
    if not child:
        _child(act, file, where, deadline_s)
    _, status = os.waitpid(child, 0)
    text = file.read_text(encoding="utf-8", errors="backslashreplace")
    code = os.waitstatus_to_exitcode(status)
    return Outcome(status=code, text=text, seconds=time.monotonic() - started)


def _child(act: Callable[[], object], file: Path, where: Path, deadline_s: int) -> NoReturn:
    signal.alarm(deadline_s)
    with file.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    faulthandler.dump_traceback_later(deadline_s - 5)
    os.chdir(where)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    code = 0
    try:
        act()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # it is printed
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def envkit(*arguments: object) -> None:
    """Run the command line in this process."""
    from envkit.cli import main as command

    command([str(one) for one in arguments])


def notebook(folder: Path) -> None:
    """Read a run as a notebook does."""
    from envkit.errors import EnvkitError
    from envkit.trajectory import load
    from envkit.trajectory.storage import read_index
    from envkit_notebook import show

    for read in (load, show, lambda path: list(read_index(path))):
        try:
            read(folder)
        except EnvkitError as error:
            sys.stdout.write(f"{error}\n".replace("\x1b", ""))


def browse(root: Path) -> None:
    """Open every run, episode and image of a folder as the pages of `envkit ui` do."""
    with served(root) as address:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        base = address.partition("?")[0]

        def get(path: str) -> tuple[int, bytes]:
            sys.stdout.write(f"{time.monotonic():.1f} {path!r}\n")
            sys.stdout.flush()
            try:
                with opener.open(f"{base}{path}", timeout=DEADLINE_S) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        opener.open(address).close()
        time.sleep(3)  # it reads the folder in the background
        overview = json.loads(get("api/runs")[1])
        names = [one["name"] for one in overview["runs"]]
        assert len(names) > 1, overview
        for name in names:
            query = urllib.parse.urlencode({"name": name})
            seen = [get(f"api/run?{query}"), get(f"api/search?{query}&q=a")]
            seen += [get(f"api/episode?{query}&number={number}") for number in range(1, 9)]
            seen.append(get(f"api/diff?first={query[5:]}&second={urllib.parse.quote(names[0])}"))
            for sha256 in set(re.findall(rb"[0-9a-f]{64}", b"".join(body for _, body in seen))):
                seen.append(get(f"image/{sha256.decode()}?{query}"))
            assert not any(status >= 500 for status, _ in seen), (name, seen)


def folders(seed: int, wanted: int) -> int:
    """Print what each command does with each hostile folder; return the number of faults."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary).resolve()
        real, runs = real_run(root / "real"), root / "runs"
        rng = random.Random(seed)
        made = rng.sample(sorted(hostile_folders(real, runs, rng).items()), wanted)
        trap = Trap.set(root / "modules", runs / OUTSIDE)
        page = run(lambda: browse(runs), trap.folder, deadline_s=5 * DEADLINE_S)
        for package in HEAVY:  # once, not in each process
            with contextlib.suppress(ImportError):
                importlib.import_module(package)
        faults = _tell("ui", {"ui": page}, {"ui": [*page.faults(), *trap.faults()]})
        for name, folder in made:
            where = root / f"work-{name}"
            where.mkdir()
            sound = sound_lines(folder)
            done = {"notebook": run(lambda folder=folder: notebook(folder), where)}
            wrong = {"notebook": [*done["notebook"].faults(), *trap.faults()]}
            for title, line in commands(folder, real, where).items():
                if "--tasks" in title and name in ("rows-pipe", "rows-zero"):
                    continue  # a file of tasks may be a pipe, and is read to its end
                done[title] = run(lambda line=line: envkit(*line), where)
                wrong[title] = [*done[title].faults(), *trap.faults()]
            for title, fault in _lost(sound, done, where):
                wrong[title].append(fault)
            faults += _tell(name, done, wrong)
    sys.stdout.write(f"{len(made)} folders: {faults or 'no'} faults\n")
    return faults


def _lost(sound: int, done: Mapping[str, Outcome], where: Path) -> Iterator[tuple[str, str]]:
    """Yield commands that did not show the sound lines, or showed a text as markup."""
    if sound:
        if f'"trajectories": {sound}' not in done["verify --json"].text:
            yield "verify --json", f"did not read {sound} sound lines"
        for title in ("view", "report", "report two"):
            if done[title].status:
                yield title, "refused the sound lines too"
    for page in where.glob("*.html"):
        if HTML in page.read_text(encoding="utf-8"):
            yield "report", f"{page.name} has raw HTML"


@dataclass(frozen=True)
class Trap:
    """Notices that the module that the folders name was imported, or a file outside changed."""

    folder: Path
    outside: Mapping[Path, bytes]

    @classmethod
    def set(cls, folder: Path, outside: Path) -> "Trap":
        """Make the module, and remember the files of a folder."""
        folder.mkdir()
        (folder / f"{CODE}.py").write_text(
            f"open({str(folder / 'imported')!r}, 'w').close()\nrun = print\n"
        )
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        return cls(folder, {one: one.read_bytes() for one in outside.iterdir()})

    def faults(self) -> Iterator[str]:
        """Yield what happened since the last call."""
        marker = self.folder / "imported"
        if marker.exists():
            marker.unlink()
            yield "ran code"
        for path, before in self.outside.items():
            if not path.exists() or path.read_bytes() != before:
                path.write_bytes(before)
                yield f"changed {path.name} outside"


def _tell(name: str, done: Mapping[str, Outcome], wrong: Mapping[str, list[str]]) -> int:
    codes = Counter(outcome.status for outcome in done.values())
    slowest = max(done, key=lambda title: done[title].seconds)
    counts = ", ".join(f"{count} x exit {code}" for code, count in sorted(codes.items()))
    sys.stdout.write(f"{name:16} {counts}; {slowest}: {done[slowest].seconds:.1f} s\n")
    for title, found in wrong.items():
        for fault in found:
            sys.stdout.write(f"  {title}: {fault}\n    {done[title].text[-1500:]!r}\n")
    sys.stdout.flush()
    return sum(map(len, wrong.values()))


def rows(count: int, seed: int) -> int:
    """Read mutated rows; print how many were readable and return the number of faults."""
    rng, counts, longest = random.Random(seed), Counter[bool](), 0.0
    faults = set[str]()
    with tempfile.TemporaryDirectory() as folder:
        real = real_rows(Path(folder))
        for _ in range(count):
            file, row = rng.choice(real)
            line = mutated(row, rng)
            started = time.process_time()
            try:
                counts[read_everywhere(file, line)] += 1
            except Exception as error:  # noqa: BLE001  # what the campaign looks for
                place = traceback.extract_tb(error.__traceback__)[-1]
                fault = f"{place.filename}:{place.lineno}: {error!r:.200}"
                if fault not in faults:
                    faults.add(fault)
                    sys.stdout.write(f"{fault}\n{line[:2000]!r}\n")
                    sys.stdout.flush()
            longest = max(longest, time.process_time() - started)
    sys.stdout.write(
        f"{count:,} rows: {counts[True]:,} readable, {counts[False]:,} refused, "
        f"at most {longest:.2f} CPU s for one\n"
    )
    return len(faults)


def main() -> int:
    """Return 1 if a reader failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=0, help="how many mutated rows to read")
    parser.add_argument("--folders", type=int, nargs="?", const=30, default=0, help="of the 30")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults = rows(options.rows, options.seed) if options.rows else 0
    faults += folders(options.seed, options.folders) if options.folders else 0
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
