"""CPU time a turn: trainers' own rollout loops against envkit's adapter in the same trainer.

For each trainer with a contest under `trainers/`, its contract environment plays the same episodes
twice: the same pictures, the same replies, one strict fake server without latency whose own time is
taken off. 64 episodes at once, 20 turns each, a new picture in every turn. Goal: envkit takes at
most a third of the trainer's own loop.

    python benchmarks/vs_trainers.py [--json FILE] [--trainer NAME ...] [--episodes N] [--turns N]

The environments are those of `make contract-NAME`; a missing one is built.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
CONTESTS: Final = Path(__file__).resolve().parent / "trainers"
GOAL: Final = 3.0
FOLDERS: Final = (".", "envs", "adapters", "tests", "benchmarks/trainers")


def trainers() -> list[str]:
    """Return the trainers that have a contest."""
    return sorted(path.stem.removesuffix("_contest") for path in CONTESTS.glob("*_contest.py"))


def interpreter(trainer: str) -> Path:
    """Return the Python of a trainer's contract environment, building it when it is missing."""
    sys.path.insert(0, str(ROOT / "scripts" / "contracts"))
    from environment import ensure_environment  # pyright: ignore[reportMissingImports]
    from recipes import RECIPES  # pyright: ignore[reportMissingImports]

    return ensure_environment(RECIPES[trainer])


def play(trainer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one contest in a process of its own and return its figures.

    Raises:
        SystemExit: It failed; its output was shown.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in FOLDERS),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "figures.json"
        command = [
            str(interpreter(trainer)), "-W", "ignore", str(CONTESTS / f"{trainer}_contest.py"),
            "--episodes", str(options.episodes), "--turns", str(options.turns),
            "--json", str(found),
        ]  # fmt: skip
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not found.exists():
            raise SystemExit(
                f"{trainer}: the contest failed\n{(done.stdout + done.stderr)[-4000:]}"
            )
        figures: dict[str, Any] = json.loads(found.read_text())
    return figures


def main() -> None:
    """Play all contests, print one table, write the figures where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", action="append", choices=trainers(), help="default: all")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for trainer in options.trainer or trainers():
        print(f"{trainer}: playing", file=sys.stderr, flush=True)
        results[trainer] = play(trainer, options)
    print(f"{'trainer':>8}  {'own loop':>12}  {'envkit':>12}  ratio (goal {GOAL:g}x)")
    for trainer, figures in results.items():
        own, envkit = figures["own"]["cpu_ms_per_turn"], figures["envkit"]["cpu_ms_per_turn"]
        print(f"{trainer:>8}  {own:>9.2f} ms  {envkit:>9.2f} ms  {figures['ratio']:.1f}x")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
