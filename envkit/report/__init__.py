"""The report of a run, and the comparison of two, as one self-contained HTML file each."""

from envkit.report.diff import write_diff
from envkit.report.page import write_report

__all__ = ["write_diff", "write_report"]
