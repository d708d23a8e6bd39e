"""Datasets: tasks, trajectories and logs out, trainers' dumps in."""

from envkit.export.dump_slime import SlimeOptions, read_slime_dump
from envkit.export.dump_texts import read_skyrl_dump, read_trl_dump, read_verl_dump
from envkit.export.dumps import DumpFormat, read_dump
from envkit.export.inspect_log import export_inspect
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
    "DumpFormat",
    "ExportTally",
    "Selection",
    "SlimeOptions",
    "SolveRates",
    "TaskDraw",
    "TaskExample",
    "TaskFormat",
    "TaskRate",
    "TrajectoryFormat",
    "chat_row",
    "export_inspect",
    "export_tasks",
    "export_trajectories",
    "full_row",
    "plain_row",
    "read_dump",
    "read_skyrl_dump",
    "read_slime_dump",
    "read_trl_dump",
    "read_verl_dump",
    "skyrl_row",
    "slime_row",
    "solve_rates",
    "trl_row",
    "verl_row",
]
