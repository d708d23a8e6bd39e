"""Copy trained models into the package: files, hashes, and cards with measurements.

python scripts/seeing/ship.py build/worlds --into adapters/envkit_transformers/models

A run of train.py also has the half-trained model. A run of worlds.py replaces the other one alone.
"""

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path
from string import Template
from typing import Any, Final

from measure import TRIALS, table

from envkit_transformers.cache import write_marker

_HERE: Final = Path(__file__).parent
_SOURCES: Final = {"seeing": "model", "half": "half"}
"""Folder in the package -> folder in the run."""


def pack(run: Path, target: Path) -> dict[str, Any]:
    """Copy the models of a run with their markers; returns the facts of the run."""
    facts: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))
    log = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    facts["minutes"] = round(json.loads(log[-1])["cpu"] / 60)
    for name, source in _SOURCES.items():
        folder = target / name
        if not (run / source).exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run / source, folder)
        for path in folder.iterdir():
            path.chmod(0o644)
        write_marker(folder, facts)
    return facts


def write_card(folder: Path, facts: dict[str, Any], **tables: list[str]) -> None:
    """Fill the model's card, whose template is card-NAME.md next to this script."""
    weights = (folder / "model.safetensors").read_bytes()
    template = Template((_HERE / f"card-{folder.name}.md").read_text(encoding="utf-8"))
    card = template.substitute(
        facts | facts["versions"],
        sha256=hashlib.sha256(weights).hexdigest(),
        megabytes=f"{len(weights) / 1e6:.1f}",
        **{name: "\n".join(lines) for name, lines in tables.items()},
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def main() -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", type=Path, help="--out of train.py")
    parser.add_argument("--into", type=Path, required=True, help="folder of the shipped models")
    parser.add_argument("--episodes", type=int, default=256, help="episodes per figure")
    parser.add_argument("--greedy", type=int, default=1024, help="episodes per greedy figure")
    parser.add_argument("--jobs", type=int, default=2, help="processes that measure")
    options = parser.parse_args()
    facts = pack(options.run, options.into)
    counts = {"episodes": options.episodes, "greedy": options.greedy, "jobs": options.jobs}
    seeing, half = options.into / "seeing", options.into / "half"
    write_card(seeing, facts, table=table(seeing, TRIALS, **counts))
    if (options.run / _SOURCES["half"]).exists():
        write_card(half, facts, table=table(half, TRIALS[2:3], **counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
