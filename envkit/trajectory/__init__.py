"""The record of an episode: token ledger, turns, certificate, checks and storage."""

from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.checks import Problem, Rule, check_trajectory
from envkit.trajectory.fork import fork_before
from envkit.trajectory.ledger import Ledger
from envkit.trajectory.projection import MergeTally, RewardPlacement, Row, merge_rows
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.sequence import Branch, Origin, TokenSequence
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.storage import (
    PreparedTrajectory,
    StoredEpisode,
    StoredLine,
    TrajectoryWriter,
    load,
    read_index,
    read_lines,
    read_trajectories,
    save,
)
from envkit.trajectory.success import success_of, threshold_of
from envkit.trajectory.trajectory import (
    REWARD_THRESHOLD,
    Trajectory,
    TurnRecord,
    call_rows,
    step_rows,
    whole_row,
)
from envkit.trajectory.verify import VerifyReport, check_certificate, verify_file

__all__ = [
    "REWARD_THRESHOLD",
    "Branch",
    "Certificate",
    "FaultPlace",
    "FaultRecord",
    "Ledger",
    "MergeTally",
    "Origin",
    "PreparedTrajectory",
    "Problem",
    "RewardPlacement",
    "Row",
    "Rule",
    "Segment",
    "SegmentKind",
    "StopReason",
    "StoredEpisode",
    "StoredLine",
    "TokenSequence",
    "Trajectory",
    "TrajectoryWriter",
    "TurnRecord",
    "VerifyReport",
    "call_rows",
    "certify",
    "check_certificate",
    "check_trajectory",
    "fork_before",
    "load",
    "merge_rows",
    "read_index",
    "read_lines",
    "read_trajectories",
    "save",
    "step_rows",
    "success_of",
    "threshold_of",
    "verify_file",
    "whole_row",
]
