"""Put trained models into the package: files, hashes, and the card with what was measured.

python scripts/seeing/ship.py build/seeing --into adapters/envkit_transformers/models
"""

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path
from string import Template
from typing import Any, Final

from measure import BEYOND, TRIALS, table

from envkit_transformers.cache import write_marker

_HERE: Final = Path(__file__).parent
_CARDS: Final = {"seeing": "model", "half": "half"}
"""Folder in the package -> folder in the run."""


def ship(run: Path, target: Path, *, episodes: int, greedy: int) -> None:
    """Copy both models, write their markers, measure them and write their cards."""
    facts: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))
    log = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    facts["minutes"] = f"{json.loads(log[-1])['cpu'] / 60:.0f}"
    for name, source in _CARDS.items():
        folder = target / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run / source, folder)
        for path in folder.iterdir():
            path.chmod(0o644)
        write_marker(folder, facts)
        weights = (folder / "model.safetensors").read_bytes()
        trials = TRIALS if name == "seeing" else TRIALS[:3]
        card = Template((_HERE / f"card-{name}.md").read_text(encoding="utf-8")).substitute(
            facts | facts["versions"],
            sha256=hashlib.sha256(weights).hexdigest(),
            megabytes=f"{len(weights) / 1e6:.1f}",
            table="\n".join(table(folder, trials, episodes=episodes, greedy=greedy)),
            beyond="\n".join(table(folder, BEYOND, episodes=episodes // 4, greedy=episodes // 4))
            if name == "seeing"
            else "",
        )
        (folder / "README.md").write_text(card, encoding="utf-8")


def main() -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", type=Path, help="--out of train.py")
    parser.add_argument("--into", type=Path, required=True, help="folder of the shipped models")
    parser.add_argument("--episodes", type=int, default=256, help="of each figure")
    parser.add_argument("--greedy", type=int, default=1024, help="of each greedy one")
    options = parser.parse_args()
    ship(options.run, options.into, episodes=options.episodes, greedy=options.greedy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
