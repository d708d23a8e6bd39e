"""Solvers, rewriters and a selector for any single-turn task: the environment `refine-v0`."""

from envkit.registration import EnvSpec
from envkit_refine.env import RefineEnv
from envkit_refine.prompts import read_choice

SPEC = EnvSpec(
    id="refine-v0",
    entry_point="envkit_refine:RefineEnv",
    description="Several agents: solvers answer, rewriters improve on them, a selector picks one.",
)

__all__ = ["SPEC", "RefineEnv", "read_choice"]
