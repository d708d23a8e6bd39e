"""Gymnasium wrappers, and a mixture of several environments.

A wrapper changes what a model sees or what a trainer gets. The wrapped environment keeps its tasks,
tools and capabilities.
"""

from envkit.wrappers.budget_text import BudgetText
from envkit.wrappers.curriculum import Curriculum
from envkit.wrappers.env_wrapper import EnvWrapper
from envkit.wrappers.image_wrapper import BlankImage, ImageWrapper
from envkit.wrappers.inject_faults import InjectFaults
from envkit.wrappers.level_progress import LevelProgress
from envkit.wrappers.mixture import Member, MixEnv
from envkit.wrappers.named import WRAPPERS, wrapping
from envkit.wrappers.record_episode import RecordEpisode
from envkit.wrappers.shape_reward import RescaleReward, ShapeReward
from envkit.wrappers.swap_image import SwapImage

__all__ = [
    "WRAPPERS",
    "BlankImage",
    "BudgetText",
    "Curriculum",
    "EnvWrapper",
    "ImageWrapper",
    "InjectFaults",
    "LevelProgress",
    "Member",
    "MixEnv",
    "RecordEpisode",
    "RescaleReward",
    "ShapeReward",
    "SwapImage",
    "wrapping",
]
