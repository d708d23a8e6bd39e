"""Count what a test run skipped, print the commands that add it, and pass the list on.

`.ci/run` uses the options: the tests that a bare machine skipped are the only ones to run again.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

ADD_IT_WITH: Final = " is missing; add it with: "
"""Separates what is missing from the command, in the reason of a skipped test."""
SHOWN: Final = 8
"""Lines of the table; the reasons that share the last line have no command."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("skipped tests")
    group.addoption(
        "--write-skipped", type=Path, metavar="FILE", help="write skipped tests and reasons as JSON"
    )
    group.addoption(
        "--only-skipped",
        type=Path,
        metavar="FILE",
        help="run only the tests in a FILE that --write-skipped wrote",
    )
    group.addoption(
        "--most-skipped", type=int, metavar="N", help="fail if more than N tests are skipped"
    )


class SkippedTests:
    """The plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.reasons: dict[str, str] = {}
        """Of each skipped test, or of a file that was skipped as a whole."""
        self.reported: set[str] = set()
        given: Path | None = config.getoption("only_skipped")
        self.wanted: set[str] | None = None if given is None else set(read_skipped(given))
        self.most: int | None = config.getoption("most_skipped")

    # ---- choosing

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Do not import files without a wanted test."""
        if self.wanted is None or collection_path.suffix != ".py":
            return None
        if not collection_path.name.startswith("test_"):
            return None
        files = {node.partition("::")[0] for node in self.wanted}
        return None if self._node_of(collection_path) in files else True

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the wanted tests."""
        if self.wanted is None:
            return
        kept = [item for item in items if self._is_wanted(item.nodeid)]
        dropped = [item for item in items if not self._is_wanted(item.nodeid)]
        items[:] = kept
        if dropped:
            self.config.hook.pytest_deselected(items=dropped)

    def _node_of(self, path: Path) -> str:
        return path.relative_to(self.config.rootpath).as_posix()

    def _is_wanted(self, node: str) -> bool:
        return self.wanted is None or bool({node, node.partition("::")[0]} & self.wanted)

    # ---- counting

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test's outcome; a worker's tests are reported here too."""
        self.reported.add(report.nodeid)
        if report.skipped and not hasattr(report, "wasxfail"):
            self.reasons[report.nodeid] = _reason(report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that was skipped as a whole."""
        if report.skipped:
            self.reported.add(report.nodeid)
            self.reasons[report.nodeid] = _reason(report.longrepr)

    @property
    def absent(self) -> list[str]:
        """Wanted tests that do not exist here."""
        files = {node.partition("::")[0] for node in self.reported}
        return sorted((self.wanted or set()) - self.reported - files)

    @property
    def has_too_many(self) -> bool:
        return self.most is not None and len(self.reasons) + len(self.absent) > self.most

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the list, and fail if it is too long."""
        if hasattr(self.config, "workerinput"):
            return
        target: Path | None = self.config.getoption("write_skipped")
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps({"skipped": self.reasons}, indent=1, sort_keys=True))
        if self.has_too_many and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        write = terminalreporter.write_line
        if self.reasons:
            terminalreporter.section(f"skipped: {count(self.reasons)}")
            for line in table(self.reasons):
                write(line)
        for node in self.absent:
            write(f"does not exist here: {node}")
        if self.has_too_many:
            write(f"at most {self.most} tests may be skipped or absent here", red=True)
            for node, reason in sorted(self.reasons.items()):
                write(f"  {node}: {reason}")


def read_skipped(path: Path) -> dict[str, str]:
    """Read a file that `--write-skipped` wrote: test -> reason."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["skipped"])
    except (OSError, ValueError, KeyError) as error:
        raise pytest.UsageError(
            f"--only-skipped must name a file of --write-skipped, got {path}: {error}"
        ) from error


def table(reasons: dict[str, str]) -> list[str]:
    """Return lines with a number of tests, what they need, and the command that adds it."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for node, reason in reasons.items():
        name, _, command = reason.partition(ADD_IT_WITH)
        groups.setdefault((name, command), {})[node] = reason
    ordered = sorted(groups.items(), key=lambda group: (not group[0][1], -len(group[1])))
    rows = [(count(nodes), name, command) for (name, command), nodes in ordered]
    if len(rows) > SHOWN:
        rest = [nodes for _, nodes in ordered[SHOWN - 1 :]]
        merged = {node: reason for nodes in rest for node, reason in nodes.items()}
        rows[SHOWN - 1 :] = [(count(merged), f"{len(rest)} other reasons: pytest -rs", "")]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [
        f"{number:<{widths[0]}}  {name:<{widths[1]}}  {command}".rstrip()
        for number, name, command in rows
    ]


def count(nodes: Iterable[str]) -> str:
    """Return "3 tests, 1 file"; how many tests a skipped file has is unknown."""
    kinds = Counter("test" if "::" in node else "file" for node in nodes)
    parts = [f"{kinds[kind]} {kind}{'s' * (kinds[kind] != 1)}" for kind in ("test", "file")]
    return ", ".join(part for part in parts if not part.startswith("0 "))


def _reason(longrepr: Any) -> str:
    text = longrepr[2] if isinstance(longrepr, (tuple, list)) else str(longrepr)
    return " ".join(str(text).removeprefix("Skipped: ").split())
