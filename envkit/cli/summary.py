"""The end of a run: metrics, the check of its file, and the report."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envkit.cli.console import note, say, say_json
from envkit.cli.run_plan import Output
from envkit.files import replace_file
from envkit.sinks.jsonl import METRICS_FILE
from envkit.trajectory import verify_file
from envkit.trajectory.storage import FILE_NAME

if TYPE_CHECKING:
    from envkit.cli.run_digest import RunDigest

REPORT_FILE: Final = "report.html"
_PIPE_WIDTH: Final = 120
"""Columns of the table if output is not a terminal."""


def summarise(
    directory: Path,
    metrics: Mapping[str, float],
    *,
    output: Output,
    digest: "RunDigest | None" = None,
) -> bool:
    """Write metrics.json and report.html next to a run's trajectories, and show the figures.

    Args:
        directory: The run directory.
        metrics: The aggregated metrics.
        output: The output in addition to the files.
        digest: What was collected of the episodes while they were written; None reads the file.

    Returns:
        Whether the episodes pass their check.

    Raises:
        StorageError: A file cannot be read or written; none is half-written.
    """
    from envkit.viewer import write_report

    text = json.dumps(dict(metrics), indent=2)
    replace_file(directory / METRICS_FILE, text.encode() + b"\n")
    checked = verify_file(directory) if digest is None else digest.checked()
    paths = {
        "trajectories": str(directory / FILE_NAME),
        "metrics": str(directory / METRICS_FILE),
    }
    if checked.trajectories:
        report = directory / REPORT_FILE
        if digest is None:
            write_report(directory, report)
        else:
            digest.write_report(report)
        paths["report"] = str(report)
    if output is Output.JSON:
        say_json({"metrics": dict(metrics), "is_sound": checked.is_sound, "files": paths})
    elif output is Output.TABLE:
        _show(metrics)
        for name, path in paths.items():
            say(f"{name:>12}  {path}")
    if output is Output.TABLE:
        say(str(checked))
        if digest is not None and digest.is_from_memory:
            say(
                "each episode was checked once, as it was written or resumed; envkit verify "
                f"{directory} reads the file back"
            )
    elif output is Output.JSON or not checked.is_sound:
        note(str(checked))
    return checked.is_sound


def _show(metrics: Mapping[str, float]) -> None:
    from envkit.cli.rich_console import PrintableConsole
    from envkit.metrics import summary_table

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    PrintableConsole(width=width).print(summary_table(metrics))
