"""Datasets and other tools' formats: tasks and trajectories out, trainers' debug dumps in."""

from envkit_exchange.dump_slime import SlimeOptions, read_slime_dump
from envkit_exchange.dump_texts import read_skyrl_dump, read_trl_dump, read_verl_dump
from envkit_exchange.dumps import DumpFormat, read_dump
from envkit_exchange.inspect_log import export_inspect
from envkit_exchange.solve_rates import SolveRates, TaskRate, solve_rates
from envkit_exchange.task_rows import (
    ROW_BUILDERS,
    TaskExample,
    TaskFormat,
    plain_row,
    skyrl_row,
    slime_row,
    trl_row,
    verl_row,
)
from envkit_exchange.tasks import TaskDraw, export_tasks
from envkit_exchange.trajectories import (
    ExportTally,
    Selection,
    TrajectoryFormat,
    chat_row,
    export_trajectories,
    full_row,
)

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
