"""Thirty copies of a real run, each with one hostile file, link, text or number."""

import gzip
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fakes.command import run_envkit
from fakes.hostile_rows import mutated

from envkit.trajectory.storage import read_lines

Attack = Callable[[Path, random.Random], None]

ROWS, PLAN = "trajectories.jsonl", "run.json"
OTHERS = (
    *("metrics.json", "vocabulary.json", "unfinished.jsonl", "faulted.jsonl"),
    *("eval.json", "x.json"),
)
CODE = "hostile_module"
"""A module that the folders name; importing it is a fault."""
HTML = "</script><img src=x onerror=hostile>"
TEXT = f"\x1b]0;hostile\x07\x1b[2J\x9b31m\x00\u202e{HTML}[bold]\r"
"""Terminal escapes, a control character of eight bits, right-to-left text, HTML, Rich's marks."""
DEEP = "[" * 200_000 + "]" * 200_000
HUGE = 32 << 20
OUTSIDE = ".outside"
"""A folder next to the runs; no command may change it."""


def real_run(folder: Path) -> Path:
    """Play three episodes of a run of four, with images."""
    done = run_envkit(
        "rollout", "canary-v0", "-n", 4, "--group", 2, "--policy", "oracle", "--out", folder, "-q"
    )
    assert done.code == 0, done.err
    lines = (folder / ROWS).read_bytes().splitlines(keepends=True)
    (folder / ROWS).write_bytes(b"".join(lines[:3]))
    return folder


def hostile_folders(real: Path, root: Path, rng: random.Random) -> dict[str, Path]:
    """Write a folder for each attack, by its name."""
    made: dict[str, Path] = {}
    (root / OUTSIDE).mkdir(parents=True)
    (root / OUTSIDE / "notes").write_text("{}\nnotes of the user")
    (root / OUTSIDE / "empty.png").write_bytes(b"")
    for name, attack in ATTACKS.items():
        folder = root / (f"run\n\x1b[2J{name}<b>" if name == "names" else name)
        shutil.copytree(real, folder)
        attack(folder, rng)
        made[name] = folder
    return made


def _add_rows(count: int) -> Attack:
    """Add mutated rows to the sound ones."""

    def attack(folder: Path, rng: random.Random) -> None:
        rows = _rows(folder)
        with (folder / ROWS).open("ab") as file:
            file.writelines(mutated(rng.choice(rows), rng) for _ in range(count))

    return attack


def _change_rows(change: Callable[[Any], Any]) -> Attack:
    """Add changed copies of the sound rows."""

    def attack(folder: Path, rng: random.Random) -> None:
        del rng
        with (folder / ROWS).open("a") as file:
            file.writelines(json.dumps(change(row)) + "\n" for row in _rows(folder))

    return attack


def _write(name: str, data: str | bytes) -> Attack:
    def attack(folder: Path, rng: random.Random) -> None:
        del rng
        content = data.encode() if isinstance(data, str) else data
        (folder / name).write_bytes(content)

    return attack


def _replace(*names: str, by: Callable[[Path], object]) -> Attack:
    """Replace files, or the images, by something that is not a regular file."""

    def attack(folder: Path, rng: random.Random) -> None:
        del rng
        for name in names:
            for path in list(folder.glob(name)) or [folder / name]:
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                by(path)

    return attack


def _link(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def _settings(**changes: object) -> Attack:
    """Change settings of run.json, which may have dots, and seal it again."""

    def attack(folder: Path, rng: random.Random) -> None:
        del rng
        document = json.loads((folder / PLAN).read_text())
        for name, value in changes.items():
            *parents, last = name.split("__")
            holder = document["settings"]
            for one in parents:
                holder = holder[one]
            holder[last] = value
        text = json.dumps(document["settings"], sort_keys=True)
        document["seal"] = hashlib.sha256(text.encode()).hexdigest()
        (folder / PLAN).write_text(json.dumps(document))

    return attack


def _rows(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / ROWS).read_bytes().splitlines()]


def _with_texts(value: Any) -> Any:
    """Return JSON data with the hostile text in every text that is not a hash or a word."""
    if isinstance(value, list):
        return [_with_texts(one) for one in value]
    if not isinstance(value, dict):
        return value
    free = ("content", "text", "response_text", "model", "episode_id", "env_id", "engine", "reason",
            "group_id", "agent", "message", "purpose", "weight_version", "role")  # fmt: skip
    found = {key: _with_texts(one) for key, one in value.items()}
    found |= {key: TEXT for key in free if type(found.get(key)) is str}
    for key in ("info", "metadata", "task", "reset_info"):
        if isinstance(found.get(key), dict):
            found[key] |= {TEXT: TEXT}
    return found


def _with_names(folder: Path, rng: random.Random) -> None:
    """Give the folder files with hostile names."""
    del rng
    for name in ("a\nb", "\x1b[2J", "<img src=x>", "\udcff", "x" * 240):
        (folder / f"{name}.json").write_text("{}")
        (folder / "images" / f"{name}.png").write_bytes(b"")


def _with_code(folder: Path, rng: random.Random) -> None:
    """Name code everywhere that a run can name it."""
    path = f"{CODE}:run"
    agent = {"kind": "function", "function": path, "command": f"python -m {CODE}", "url": None}
    _settings(
        engine__policy=path, config__history=path, config__adjust_rewards=path, config__agent=agent
    )(folder, rng)
    row = {
        "env_id": path,
        "engine": path,
        "metadata": {"wrap": [path], "wrap_kwargs": {path: {"f": path}}},
    }
    _change_rows(lambda one: {**one, **row})(folder, rng)


def _with_others_images(row: Any) -> Any:
    text = json.dumps(row)
    for entry in ("../../../../etc/passwd", "/etc/passwd"):
        text = text.replace('"image": "', f'"image": "{entry}', 1)
    return json.loads(text)


def _duplicated(folder: Path, rng: random.Random) -> None:
    del rng
    lines = (folder / ROWS).read_bytes()
    (folder / ROWS).write_bytes(lines * 3)


PNG_BOMB = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\x7f" * 8 + b"\x08\2\0\0\0" + b"\0" * 4
BOMB = gzip.compress(b"\0" * HUGE)
ATTACKS: Mapping[str, Attack] = {
    "mutated-1": _add_rows(20),
    "mutated-2": _add_rows(20),
    "rows-deep": _write(ROWS, DEEP + "\n"),
    "rows-huge": _change_rows(
        lambda row: {**row, "engine": "x" * HUGE if row["metadata"]["member"] else "y"}
    ),
    "rows-gzip": _write(ROWS, BOMB[: len(BOMB) // 2]),
    "rows-cut": lambda folder, rng: os.truncate(folder / ROWS, rng.randrange(1000, 20_000)),
    "rows-loop": _replace(ROWS, by=_link(ROWS)),
    "rows-zero": _replace(ROWS, by=_link("/dev/zero")),
    "rows-outside": _replace(ROWS, by=_link(f"../{OUTSIDE}/notes")),
    "rows-pipe": _replace(ROWS, by=os.mkfifo),
    "rows-folder": _replace(ROWS, by=os.mkdir),
    "rows-counts": _change_rows(
        lambda row: {**row, "metadata": {"group": 10**400, "member": float("nan"), "siblings": -1}}
    ),
    "rows-twice": _duplicated,
    "rows-texts": _change_rows(_with_texts),
    "rows-paths": _change_rows(_with_others_images),
    "plan-deep": _write(PLAN, DEEP),
    "plan-list": _write(PLAN, '{"schema": 1, "envkit": [NaN], "settings": [], "seal": {}}'),
    "plan-zero": _replace(PLAN, by=_link("/dev/zero")),
    "plan-pipe": _replace(PLAN, by=os.mkfifo),
    "plan-huge": _write(PLAN, '{"settings": "' + "x" * HUGE + '"}'),
    "plan-numbers": _settings(
        group_size=-1, episodes=10**400, concurrency=0, config__seed=1e999, tasks=[[]]
    ),
    "plan-code": _with_code,
    "others-deep": _replace(*OTHERS, by=lambda path: path.write_text(DEEP)),
    "others-pipe": _replace(*OTHERS, by=os.mkfifo),
    "others-zero": _replace(*OTHERS, by=_link("/dev/zero")),
    "images-pipe": _replace("images/*.png", by=os.mkfifo),
    "images-zero": _replace("images/*.png", by=_link("/dev/zero")),
    "images-outside": _replace("images", by=_link(f"../{OUTSIDE}")),
    "images-garbage": _replace("images/*.png", by=lambda path: path.write_bytes(PNG_BOMB)),
    "names": _with_names,
}


def sound_lines(folder: Path) -> int:
    """Return how many lines of a folder are as a run wrote them; 0 if its file is hostile."""
    file = folder / ROWS
    if file.is_symlink() or not file.is_file():
        return 0
    return sum(1 for stored in read_lines(file) if stored.trajectory is not None)
