"""Geometry problems with diagrams: the environment `geo3k-v0`."""

from typing import Final

from envkit.registration import EnvSpec
from envkit_geo3k.dataset import DatasetSource, load_tasks
from envkit_geo3k.env import Geo3kEnv
from envkit_geo3k.families import FAMILIES
from envkit_geo3k.grading import Grade, How, Rounding, grade
from envkit_geo3k.policies import noisy_oracle, oracle
from envkit_geo3k.source import ProceduralSource

__all__ = [
    "FAMILIES",
    "SPEC",
    "DatasetSource",
    "Geo3kEnv",
    "Grade",
    "How",
    "ProceduralSource",
    "Rounding",
    "grade",
    "load_tasks",
    "noisy_oracle",
    "oracle",
]

SPEC: Final = EnvSpec(
    id="geo3k-v0",
    entry_point="envkit_geo3k.env:Geo3kEnv",
    description="Geometry problems with drawn diagrams, a scoring tool and a magnifier.",
    reward_threshold=1.0,
)
