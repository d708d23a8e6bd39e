"""The record of an episode: its token ledger, its turns, their proof and their storage."""

from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.checks import Problem, Rule, check_trajectory
from envkit.trajectory.ledger import Ledger
from envkit.trajectory.projection import MergeTally, merge_rows, step_rows, whole_row
from envkit.trajectory.row import RewardPlacement, Row
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.storage import (
    StoredLine,
    TrajectoryWriter,
    load,
    read_lines,
    read_trajectories,
    save,
)
from envkit.trajectory.trajectory import FaultRecord, Trajectory
from envkit.trajectory.turn import TurnRecord
from envkit.trajectory.verify import VerifyReport, check_certificate, verify_file

__all__ = [
    "Certificate",
    "FaultRecord",
    "Ledger",
    "MergeTally",
    "Problem",
    "RewardPlacement",
    "Row",
    "Rule",
    "Segment",
    "SegmentKind",
    "StopReason",
    "StoredLine",
    "Trajectory",
    "TrajectoryWriter",
    "TurnRecord",
    "VerifyReport",
    "certify",
    "check_certificate",
    "check_trajectory",
    "load",
    "merge_rows",
    "read_lines",
    "read_trajectories",
    "save",
    "step_rows",
    "verify_file",
    "whole_row",
]
