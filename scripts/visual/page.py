"""Write the table of the worlds into docs/environments/visual.md.

python scripts/visual/page.py            # write it
python scripts/visual/page.py --check    # fail if it is out of date
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from envkit_visual.catalogue import WORLDS
from envkit_visual.world import Domain

_DOCS: Final = Path(__file__).parents[2] / "docs" / "environments"
PAGE: Final = _DOCS / "visual.md"
_TABLE: Final = _DOCS / "visual" / "certificates.json"
_START: Final = "<!-- worlds: written by scripts/visual/page.py -->\n"
_END: Final = "<!-- /worlds -->\n"


def written() -> str:
    """Return the page with the table of today's worlds."""
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(_START)
    return f"{head}{_START}{table()}{rest[rest.index(_END) :]}"


def table() -> str:
    """Return the sections of the domains."""
    several = sum(world.is_multi_turn for world in WORLDS.values())
    text = f"\n{len(WORLDS)} worlds in {len(Domain)} domains, {several} of them of several turns.\n"
    worst = _worst()
    for domain in Domain:
        own = [world for world in WORLDS.values() if world.domain is domain]
        text += f"\n### {domain.capitalize()}\n\n"
        text += f"![{domain}: a row per world, a column per level](visual/{domain}.webp)\n\n"
        text += "| world | task | turns | levels | chance | best without sight |\n"
        text += "| --- | --- | --- | --- | --- | --- |\n"
        for world in own:
            turns = "several" if world.is_multi_turn else "one"
            values = ", ".join(map(str, world.levels))
            chance = f"{100 * world.chance:.3g}%" if world.chance else "0"
            text += (
                f"| `{world.name}` | {world.summary} | {turns} | {world.knob}: {values} | "
                f"{chance} | {worst.get(world.name, '')} |\n"
            )
    return text + "\n"


def _worst() -> dict[str, str]:
    """Return the highest measured success rate of a policy without sight, by world."""
    rows: list[dict[str, Any]] = json.loads(_TABLE.read_text()) if _TABLE.exists() else []
    best: dict[str, float] = {}
    for row in rows:
        rates = [solved / episodes for solved, episodes in row["solved"].values()]
        best[row["world"]] = max(best.get(row["world"], 0.0), *rates)
    return {name: f"{100 * rate:.1f}%" for name, rate in best.items()}


def main() -> int:
    """Write the page, or compare it."""
    page = written()
    if "--check" in sys.argv[1:]:
        return int(page != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
