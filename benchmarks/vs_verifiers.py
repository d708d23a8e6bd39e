"""Compare CPU time per turn and memory of verifiers' own episodes and envkit's, in one run.

The same text conversation on both sides, exact tokens kept: the environment says a short text in
every turn, a server in another process answers at once. verifiers plays with its training client,
which renders what is new and calls vLLM's generate endpoint, and in envkit's chat loop, because a
program per segment, as its `null` harness starts, would cost it far more. envkit plays over
SGLang's endpoint, without its check of prompts. The sides alternate; each figure is the lowest of
three.

    python benchmarks/vs_verifiers.py [--json FILE] [--opening WORDS] [--turns N] [--episodes N]

The environment is that of `make contract-verifiers`; a missing one is built. Memory is what Python
allocated for 1,000 finished episodes, from `--kept` of them.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from harness import run, sized
from vs_trainers import FOLDERS, ROOT, interpreter

TALK: Final = Path(__file__).resolve().parent / "trainers" / "verifiers_talk.py"


def measure(opening: int, turns: int, episodes: int, kept: int) -> dict[str, Any]:
    """Play both sides in the contract environment and return the figures.

    Raises:
        SystemExit: They failed; their output was shown.
    """
    folders = (*FOLDERS, "benchmarks")
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in folders),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    options = {"opening": opening, "turns": turns, "episodes": episodes, "kept": kept}
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "figures.json"
        command = [str(interpreter("verifiers")), "-W", "ignore", str(TALK), "--json", str(found)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not found.exists():
            raise SystemExit(f"the contest failed\n{(done.stdout + done.stderr)[-4000:]}")
        figures: dict[str, Any] = json.loads(found.read_text())
    return figures


def show(figures: dict[str, Any]) -> None:
    """Print a line for each figure: verifiers, envkit, their ratio."""
    print(f"{figures['turns']} turns, tokens at the end {figures['tokens']}")
    for name in ("long", "short", "mb_per_1000"):
        own, mine = figures[name]["own"], figures[name]["envkit"]
        unit = "MB per 1,000 episodes" if name == "mb_per_1000" else f"ms per turn, {name} opening"
        print(f"verifiers {own:9.2f}  envkit {mine:9.2f}  {own / mine:6.1f}x  {unit}")


if __name__ == "__main__":
    run(
        measure,
        show=show,
        opening=sized(1300, 20, "words of a long opening"),
        turns=sized(40, 3, "turns"),
        episodes=sized(2, 1, "episodes of each round"),
        kept=sized(10, 2, "episodes whose memory is measured"),
    )
