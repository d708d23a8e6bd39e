"""The viewer of runs: its data, its front end, and the file that holds both."""

from envkit.viewer.single_file import write_diff, write_report

__all__ = ["write_diff", "write_report"]
