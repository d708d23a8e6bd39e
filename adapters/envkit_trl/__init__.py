"""TRL: rollout function, trainer with images, async worker, and environments for its tool loop.

Importing this package imports neither TRL nor torch: those names load on first use. See
docs/trainers/trl.md.
"""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names

if TYPE_CHECKING:
    from envkit_trl.async_trainer import EnvAsyncGRPOTrainer
    from envkit_trl.dataset import PromptStyle, request_dataset, task_dataset
    from envkit_trl.factory import environment_factory, final_reply
    from envkit_trl.processor import build_processor, load_processor
    from envkit_trl.rollout import EnvRollout, make_rollout_func
    from envkit_trl.rows import env_reward
    from envkit_trl.trainer import EnvGRPOTrainer
    from envkit_trl.transfer import DiskWeightTransfer, EngineWeightTransfer
    from envkit_trl.worker import EnvRolloutWorker

__all__ = [
    "DiskWeightTransfer",
    "EngineWeightTransfer",
    "EnvAsyncGRPOTrainer",
    "EnvGRPOTrainer",
    "EnvRollout",
    "EnvRolloutWorker",
    "PromptStyle",
    "build_processor",
    "env_reward",
    "environment_factory",
    "final_reply",
    "load_processor",
    "make_rollout_func",
    "request_dataset",
    "task_dataset",
]

_LAZY = {
    "DiskWeightTransfer": ".transfer",
    "EngineWeightTransfer": ".transfer",
    "EnvAsyncGRPOTrainer": ".async_trainer",
    "EnvGRPOTrainer": ".trainer",
    "EnvRollout": ".rollout",
    "EnvRolloutWorker": ".worker",
    "PromptStyle": ".dataset",
    "build_processor": ".processor",
    "env_reward": ".rows",
    "environment_factory": ".factory",
    "final_reply": ".factory",
    "load_processor": ".processor",
    "make_rollout_func": ".rollout",
    "request_dataset": ".dataset",
    "task_dataset": ".dataset",
}

__getattr__, __dir__ = lazy_names(__name__, _LAZY, extra="trl")
