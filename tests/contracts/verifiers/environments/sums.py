"""Procedural questions: the library's own bridge to reasoning-gym, one turn."""

from importlib import import_module
from typing import Any

from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv

vf: Any = import_module("verifiers")  # this folder has the library's name for type checkers


def load_environment(gym: str = "chain_sum", seed: int = 0) -> Any:
    env: Any = ReasoningGymEnv(gym=gym, num_train_examples=20, num_eval_examples=5, seed=seed)
    return env
