"""Write the page of tested clients from the results of their runs.

    python scripts/docs/clients.py            # write docs/gateway-clients.md
    python scripts/docs/clients.py --check    # fail if the page differs

`make contract-clients CLIENT=name` writes one result to `scripts/contracts/clients/results`.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
CONTRACTS: Final = ROOT / "scripts" / "contracts"
RESULTS: Final = CONTRACTS / "clients" / "results"
PAGE: Final = ROOT / "docs" / "gateway-clients.md"
INTRODUCTION: Final = """\
# Tested clients

Each client plays its documented default loop through the [gateway](gateway.md), at the newest
version on a package index, with a model that follows a script. A run passes if each reply was
sampled from exactly the recorded tokens and no request was refused. `make contract-clients
CLIENT=name` runs one client in its own environment, and `python scripts/docs/clients.py` makes this
page of the results.

"Sequences" are training rows. An agent that rewrites its history starts one per step;
[this table](gateway.md#how-a-conversation-stays-exact) explains the reasons. "Untrained" tokens
were sampled for side requests and have mask 0.

"""
COLUMNS: Final = (
    *("client", "what it does", "dialect", "replies", "sequences"),
    *("why later ones start", "untrained"),
)


def pins() -> dict[str, tuple[str, ...]]:
    """Return the packages of each client, in the order of the page."""
    sys.path.insert(0, str(CONTRACTS))
    try:
        from matrix import MATRIX
    finally:  # its folders have the names of packages, such as skyrl
        sys.path.remove(str(CONTRACTS))
    return {name: client.packages for name, client in MATRIX.items()}


def results() -> dict[str, dict[str, Any]]:
    """Return the result of each client that has one."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }


def page() -> str:
    """Return the text of the page."""
    found = results()
    lines = [f"| {' | '.join(COLUMNS)} |\n", f"|{' --- |' * len(COLUMNS)}\n"]
    for name in pins():
        if name not in found:
            continue
        client = f"{name} {_version(found[name]['packages'][0])}"
        for row in _rows(found[name]["notes"]):
            lines.append(f"| {client} | {' | '.join(row)} |\n")
            client = ""
    return INTRODUCTION + "".join(lines)


def _version(package: str) -> str:
    return package.rpartition("==" if "==" in package else "@")[2]


def _rows(notes: list[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of a client, with dialects joined that have the same figures."""
    joined: dict[str, list[str]] = {}
    rows: dict[str, list[str]] = {}
    for note in notes:
        starts = Counter(note["starts"])
        why = ", ".join(f"`{one}` x{n}" if n > 1 else f"`{one}`" for one, n in starts.items())
        lost = ", ".join(f"{n}, `{one}`" for one, n in note["untrained"].items())
        figures = [str(note["replies"]), str(note["sequences"]), why or "-", lost or "-"]
        key = json.dumps([note["does"], figures])
        dialects = joined.setdefault(key, [])
        if note["dialect"] not in dialects:
            dialects.append(note["dialect"])
        rows[key] = [note["does"], ", ".join(dialects), *figures]
    return list(rows.values())


def main() -> None:
    """Write or compare the page."""
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
    if "--check" in sys.argv[1:]:
        if stale:
            sys.exit(f"{PAGE.name} is out of date: run scripts/docs/clients.py")
    elif stale:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
