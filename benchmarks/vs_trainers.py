"""Compare CPU time per turn of trainers' own rollout loops and envkit's adapter.

For each trainer with a contest under `trainers/`, its contract environment plays the same episodes
twice: the same images, the same replies, one strict fake server without latency whose own time is
subtracted. 64 concurrent episodes, 20 turns each, a new image of 224 by 224 pixels in every turn,
and no image shared by two episodes. The figure covers the rollout: encode, request, decode,
environment, append. The trainer's processing of finished episodes is reported separately. Goal:
envkit needs at most a third of the fastest own loop.

The environments are those of `make contract-NAME`; a missing one is built. Own loops:

- verl: `tool_agent` in the V0 worker. The server is an object in the process, because Ray's
  transport would be the same for both.
- SkyRL: `SkyRLVLMGymGenerator`, over SkyRL's own HTTP client, to a server in another process. The
  protocol carries the tensors of every image in every request, about 800 kB each, which takes most
  of both sides' time. 16 episodes move 8 GB on each side, so it plays no more by default.
- TRL: GRPOTrainer's tool loop with an `environment_factory`; its replies come from a script.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from harness import run, sized

ROOT: Final = Path(__file__).resolve().parents[1]
CONTESTS: Final = Path(__file__).resolve().parent / "trainers"
EPISODES: Final = {"skyrl": 16}
"""Concurrent episodes, if not 64."""
FOLDERS: Final = (".", "envs", "adapters", "tests", "benchmarks/trainers")


def trainers() -> list[str]:
    """Return the trainers that have a contest."""
    return sorted(path.stem.removesuffix("_contest") for path in CONTESTS.glob("*_contest.py"))


def interpreter(trainer: str) -> Path:
    """Return the Python of a trainer's contract environment, building it if needed."""
    sys.path.insert(0, str(ROOT / "scripts" / "contracts"))
    from environment import ensure_environment  # pyright: ignore[reportMissingImports]
    from recipes import RECIPES  # pyright: ignore[reportMissingImports]

    return ensure_environment(RECIPES[trainer])


def play(trainer: str, episodes: int, turns: int) -> dict[str, Any]:
    """Run one contest in its own process and return its figures.

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
            "--episodes", str(episodes),
            "--turns", str(turns),
            "--json", str(found),
        ]  # fmt: skip
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not found.exists():
            raise SystemExit(
                f"{trainer}: the contest failed\n{(done.stdout + done.stderr)[-4000:]}"
            )
        figures: dict[str, Any] = json.loads(found.read_text())
    return figures


def measure(trainer: list[str] | None, episodes: int | None, turns: int) -> dict[str, Any]:
    """Play all contests and return their figures by trainer."""
    results: dict[str, Any] = {}
    for name in trainer or trainers():
        print(f"{name}: playing", file=sys.stderr, flush=True)
        results[name] = play(name, episodes or EPISODES.get(name, 64), turns)
    best = min(one["own"]["cpu_ms_per_turn"] for one in results.values())
    for one in results.values():
        one["fastest_own_over_envkit"] = best / one["envkit"]["cpu_ms_per_turn"]
    return results


if __name__ == "__main__":
    run(
        measure,
        trainer={"action": "append", "choices": trainers(), "help": "default: all"},
        episodes=sized(None, 2, "concurrent episodes, if not 64 and for SkyRL 16"),
        turns=sized(20, 2),
    )
