"""Gymnasium wrappers, and a mixture of several environments.

A wrapper changes what a model sees or what a trainer gets. The wrapped environment keeps its tasks,
tools and capabilities.
"""

from envkit.wrappers.budget_text import BudgetText
from envkit.wrappers.curriculum import Curriculum
from envkit.wrappers.env_wrapper import EnvWrapper
from envkit.wrappers.grid_overlay import GridOverlay
from envkit.wrappers.hide_feedback import HideFeedback
from envkit.wrappers.history_window import HistoryWindow
from envkit.wrappers.image_wrapper import BlankImage, ImageWrapper
from envkit.wrappers.inject_faults import InjectFaults
from envkit.wrappers.level_progress import LevelProgress
from envkit.wrappers.mixture import Member, MixEnv
from envkit.wrappers.named import WRAPPERS, Wrapped, wrapping
from envkit.wrappers.record_episode import RecordEpisode
from envkit.wrappers.resize_image import ResizeImage
from envkit.wrappers.shape_reward import RescaleReward, ShapeReward
from envkit.wrappers.show_goal import ShowGoal
from envkit.wrappers.swap_image import SwapImage
from envkit.wrappers.text_twin import TextTwin, TwinPlace

__all__ = [
    "WRAPPERS",
    "BlankImage",
    "BudgetText",
    "Curriculum",
    "EnvWrapper",
    "GridOverlay",
    "HideFeedback",
    "HistoryWindow",
    "ImageWrapper",
    "InjectFaults",
    "LevelProgress",
    "Member",
    "MixEnv",
    "RecordEpisode",
    "RescaleReward",
    "ResizeImage",
    "ShapeReward",
    "ShowGoal",
    "SwapImage",
    "TextTwin",
    "TwinPlace",
    "Wrapped",
    "wrapping",
]
