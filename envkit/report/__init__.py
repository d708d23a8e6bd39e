"""The report of a run as one self-contained HTML file."""

from envkit.report.page import write_report

__all__ = ["write_report"]
