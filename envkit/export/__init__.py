"""Datasets: tasks and trajectories as files."""

from envkit.export.solve_rates import SolveRates, TaskRate, solve_rates
from envkit.export.task_rows import (
    ROW_BUILDERS,
    TaskExample,
    TaskFormat,
    plain_row,
    skyrl_row,
    slime_row,
    trl_row,
    verl_row,
)
from envkit.export.tasks import TaskDraw, export_tasks
from envkit.export.trajectories import ExportTally, TrajectoryFormat, export_trajectories
from envkit.export.trajectory_rows import Selection, chat_row, full_row

__all__ = [
    "ROW_BUILDERS",
    "ExportTally",
    "Selection",
    "SolveRates",
    "TaskDraw",
    "TaskExample",
    "TaskFormat",
    "TaskRate",
    "TrajectoryFormat",
    "chat_row",
    "export_tasks",
    "export_trajectories",
    "full_row",
    "plain_row",
    "skyrl_row",
    "slime_row",
    "solve_rates",
    "trl_row",
    "verl_row",
]
