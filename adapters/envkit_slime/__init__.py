"""envkit inside slime: environments as slime's generate function, data source, rewards and logs.

    --custom-generate-function-path envkit_slime.generate
    --custom-config-path run.yaml            # a mapping `envkit:` names environment and limits
    --data-source-path envkit_slime.DataSource               # for an environment's own tasks
    --custom-reward-post-process-path envkit_slime.post_process_rewards
    --custom-rollout-log-function-path envkit_slime.log_rollout_data

docs/trainers/slime.md has a complete run. slime is imported on first use.
"""

from envkit_slime.data_source import DataSource
from envkit_slime.generate import generate
from envkit_slime.metrics import episode_metrics, log_eval_rollout_data, log_rollout_data
from envkit_slime.rewards import (
    dynamic_filter,
    post_process_rewards,
    reward,
)
from envkit_slime.runtime import close_runtimes
from envkit_slime.settings import FanOut, Settings
from envkit_slime.stored import from_state, to_state

__all__ = [
    "DataSource",
    "FanOut",
    "Settings",
    "close_runtimes",
    "dynamic_filter",
    "episode_metrics",
    "from_state",
    "generate",
    "log_eval_rollout_data",
    "log_rollout_data",
    "post_process_rewards",
    "reward",
    "to_state",
]
