"""Rows of real runs with hostile changes, given to everything that reads a run file."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fakes.command import run_envkit

from envkit.errors import StorageError
from envkit.metrics import Aggregator
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.storage import FILE_NAME, parse_line
from envkit.trajectory.verify import verify_file
from envkit.viewer.differences import Trace
from envkit.viewer.episodes import checked_row, episode
from envkit.viewer.run import RunData

VALUES: tuple[Any, ...] = (
    10**400, -(10**400), 10**30, 2**63, -1, 0, 1.5, -0.0, 1e308, True, False, None,
    "", "text", "\ud800", "\x00", "../../etc/passwd", "<script>", [], {}, [[]], {"a": 1}, [None],
    [10**400], [1] * 1000, {"role": "user"}, {"type": "image", "image": "zz"}, {"$float": "nan"},
    {"$bytes": "\u00e9"}, {"$array": ["<f8", [10**9, 10**9], ""]}, {"$pairs": [[[], 1]]},
)  # fmt: skip
WORDS = {
    "NAN": "NaN",
    "INFINITY": "-Infinity",
    "DEEP": "[" * 98 + "]" * 98,
    "DEEPER": "[" * 150 + "]" * 150,
    "NESTED": "[" * 3000 + "]" * 3000,
}
"""Placeholders for what `json.dumps` does not write."""


def real_rows(folder: Path) -> list[tuple[Path, Any]]:
    """Play small runs into a folder; return their rows with their files."""
    runs: dict[str, tuple[object, ...]] = {
        "images": ("canary-v0", "-n", 2),
        "roles": ("refine-v0", "-n", 1),
        "sequences": ("canary-v0", "-n", 2, "--agent", "fakes.own_agents:delegating"),
    }
    found: list[tuple[Path, Any]] = []
    for name, options in runs.items():
        out = folder / name
        done = run_envkit("rollout", *options, "--policy", "oracle", "--out", out, "--quiet")
        assert done.code == 0, done.err
        lines = (out / FILE_NAME).read_bytes().splitlines()
        found += [(out / FILE_NAME, json.loads(line)) for line in lines]
    return found


def mutated(row: Any, rng: random.Random) -> bytes:
    """Return a line whose row has one to three changes."""
    row = copy.deepcopy(row)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(row))
        holder, key = rng.choice(places)
        change = rng.random()
        if change < 0.15:
            del holder[key]
        elif change < 0.25 and isinstance(holder, list):
            holder.append(holder[key])
        elif change < 0.3 and isinstance(holder, dict):
            holder[f"{key}x"] = copy.deepcopy(rng.choice(VALUES))
        else:
            holder[key] = copy.deepcopy(rng.choice((*VALUES, *WORDS)))
    text = json.dumps(row)
    for word, written in WORDS.items():
        text = text.replace(f'"{word}"', written)
    return text.encode() + b"\n"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container with a key of it; long lists by their first entries."""
    keys: Any = list(value) if isinstance(value, dict) else range(min(len(value), 6))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def read_everywhere(file: Path, line: bytes) -> bool:
    """Read a line as verify, reports, the viewer and comparisons do; return whether it is readable.

    Args:
        file: Its file, whose image folder it refers to; other lines are not read.
        line: The line.
    """
    folder = ImageFolder(file.parent / IMAGE_FOLDER)
    stored = parse_line(file, 1, line, folder)
    copied = file.with_name("one.jsonl")
    copied.write_bytes(line)
    report = verify_file(copied)
    trajectory = stored.trajectory
    if trajectory is None:
        assert isinstance(stored.error, StorageError)
        assert not report.is_sound
        return False
    Trace.of(trajectory)
    metrics = Aggregator()
    metrics.add(trajectory)
    metrics.result(elapsed_seconds=1.0)
    run = RunData("run")
    run.add(trajectory, checked_row(stored, trajectory))
    json.dumps([run.figures(), run.index()])
    json.dumps(episode(trajectory, stored.certificate, number=1, folder=folder).data)
    return True
