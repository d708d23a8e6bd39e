"""Write the measured figures into the README and the pages, from one file.

    python scripts/docs/figures.py                   # write them
    python scripts/docs/figures.py --check           # fail if a page differs
    python scripts/docs/figures.py --take loop delta # first copy them from benchmarks/results

`benchmarks/figures.json` holds every published figure under the name of its benchmark and the key
that the benchmark writes with `--json`. `--take` updates those keys from a new result and dates
them. `figures.md`, next to this script, holds the text of each block; a page starts a block with
`<!-- figures: NAME -->` and ends it with `<!-- end of figures -->`. The learning curves come from
`examples/results`.
"""

import argparse
import datetime
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FIGURES: Final = ROOT / "benchmarks" / "figures.json"
RESULTS: Final = ROOT / "benchmarks" / "results"
TEMPLATES: Final = Path(__file__).with_suffix(".md")
PAGES: Final = (
    "README.md",
    "docs/comparisons.md",
    "docs/concepts/histories.md",
    "docs/concepts/trees.md",
)
_BLOCK: Final = re.compile(
    r"(<!-- figures: (\w+) -->\n\n)(.*?)(<!-- end of figures -->)", re.DOTALL
)


def figures() -> dict[str, Any]:
    """Return all figures: those of the benchmarks, and the learning runs as `learning`."""
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    runs = sorted((ROOT / "examples" / "results").glob("canary-seed*.json"))
    learning = [json.loads(run.read_text(encoding="utf-8")) for run in runs]
    found["learning"] = {
        f"seed{run['seed']}": {"start": run["start"], "end": run["end"]} for run in learning
    }
    for moment in ("start", "end"):
        seen = [run[moment]["images"] for run in learning]
        found["learning"][moment] = {"lowest": min(seen), "highest": max(seen)}
    wrong = [run["end"][kind] for run in learning for kind in ("blank", "swapped")]
    found["learning"]["without_images"] = {"lowest": min(wrong), "highest": max(wrong)}
    return found


def templates() -> dict[str, str]:
    """Return the text of each block by name."""
    _, *parts = re.split(r"^# (\w+)\n", TEMPLATES.read_text(encoding="utf-8"), flags=re.M)
    return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def fill(text: str, known: dict[str, Any]) -> str:
    """Fill a block with figures: `{loop>ratio:.2f}`, or `{loop>overhead_us/loop>codec_us:.1f}`."""

    def value(found: re.Match[str]) -> str:
        path, _, style = found[1].partition(":")
        first, _, second = path.partition("/")
        number = _look_up(known, first)
        return format(number / _look_up(known, second) if second else number, style)

    return re.sub(r"\{([^{}\n]+)\}", value, text)


def written(page: str, known: dict[str, Any], blocks: dict[str, str]) -> str:
    """Return a page's text with its blocks filled."""
    return _BLOCK.sub(
        lambda found: f"{found[1]}{fill(blocks[found[2]], known)}\n\n{found[4]}", page
    )


def take(name: str) -> None:
    """Update a benchmark's published figures from its new result.

    Raises:
        SystemExit: There is no result, or it lacks a key.
    """
    known: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    path = RESULTS / f"{name}.json"
    if name not in known or not path.is_file():
        raise SystemExit(f"no published figures or no result for {name!r}: {path}")
    result = json.loads(path.read_text(encoding="utf-8"))
    day = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC).date()
    kept = {key: value for key, value in known[name].items() if key != "recorded"}
    known[name] = {"recorded": str(day), **_taken(kept, result, name)}
    FIGURES.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def _taken(kept: Any, result: Any, place: str) -> Any:  # noqa: ANN401  # JSON of any shape
    if not isinstance(kept, dict):
        return result
    missing = [key for key in kept if key not in result]
    if missing:
        raise SystemExit(f"the result of {place} lacks {missing}")
    return {key: _taken(value, result[key], f"{place}.{key}") for key, value in kept.items()}


def _look_up(known: Any, path: str) -> Any:  # noqa: ANN401  # JSON of any shape
    """Follow a path such as `delta>templates>qwen3`."""
    for key in path.strip().split(">"):
        if key not in known:
            raise SystemExit(f"{TEMPLATES.name} names {path!r}, which is not a figure: got {key!r}")
        known = known[key]
    return known


def main() -> None:
    """Write or compare the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--take", nargs="+", default=[], metavar="NAME", help="new results")
    options = parser.parse_args()
    for name in options.take:
        take(name)
    known, blocks = figures(), templates()
    stale: list[str] = []
    used: set[str] = set()
    for name in PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        used |= {found[1] for found in _BLOCK.findall(page)}
        new = written(page, known, blocks)
        if new != page:
            stale.append(name)
            if not options.check:
                (ROOT / name).write_text(new, encoding="utf-8")
    if used != set(blocks):
        sys.exit(f"blocks without a page, or pages without a block: {sorted(used ^ set(blocks))}")
    if options.check and stale:
        sys.exit(f"figures are out of date in {stale}: run scripts/docs/figures.py")


if __name__ == "__main__":
    main()
