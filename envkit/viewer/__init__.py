"""The run viewer: its data, its front end, and the self-contained report."""

from envkit.viewer.evaluation_file import write_evaluation
from envkit.viewer.single_file import write_diff, write_report

__all__ = ["write_diff", "write_evaluation", "write_report"]
