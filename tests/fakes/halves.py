"""Run half of the cases of each slow test: which half, a seed decides.

`.ci/run` passes the commit as the seed, so that the cases of a few commits are all of them.
"""

import hashlib
from collections import defaultdict

import pytest


def add_half_option(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.getgroup("halves").addoption(
        "--half", metavar="SEED", help="of slow tests with several cases, run half of the cases"
    )


def halve(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect half of the cases of each slow test, rounded down."""
    seed = config.getoption("half")
    if seed is None:
        return
    cases: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item.nodeid)
    dropped: set[str] = set()
    for nodes in cases.values():
        nodes.sort(key=lambda node: hashlib.sha256(f"{seed} {node}".encode()).digest())
        dropped.update(nodes[: len(nodes) // 2])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in dropped])
    items[:] = [item for item in items if item.nodeid not in dropped]
