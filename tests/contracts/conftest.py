"""What the contract tests of most projects have in common."""

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from fakes.gradients import Compared, Comparison, GradientPath

HERE: Final = Path(__file__).parent
WITHOUT: Final = {"slime"}
"""Folders whose tests carry their own markers."""
COMPARED: Final = pytest.StashKey[list[Any]]()
"""The gradients of this run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with their project, and let it warn: only our own warnings are errors."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        project = item.path.relative_to(HERE).parts[0]
        if project not in WITHOUT:
            item.add_marker(getattr(pytest.mark, project))
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:.*envkit"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make envkit's plugins known, such as the gateway, as its installation does."""
    from fakes.installed import install_metadata

    monkeypatch.syspath_prepend(str(install_metadata(tmp_path)))


@pytest.fixture(scope="session")
def compared(request: pytest.FixtureRequest) -> "Compared":
    """Compare paths with the plain formula; the end of the run shows the table."""
    from fakes.gradients import compare_paths

    shown = request.config.stash.setdefault(COMPARED, [])

    def compare(paths: "Iterable[GradientPath]") -> "list[Comparison]":
        found = list(compare_paths(paths))
        shown.extend(found)
        return found

    return compare


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Show the table of the gradients that the run compared."""
    found = config.stash.get(COMPARED, [])
    if not found:
        return
    from fakes.gradients.table import show

    with contextlib.redirect_stdout(io.StringIO()) as shown:
        show(found)
    terminalreporter.section("gradients beside the plain formula")
    terminalreporter.write(shown.getvalue())
