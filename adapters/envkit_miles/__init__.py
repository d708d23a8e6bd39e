"""envkit inside miles: environments as miles' generate function, in both forms.

    --custom-generate-function-path envkit_miles.generate
    --custom-config-path run.yaml            # a mapping `envkit:` names environment and limits

miles is a fork of slime with a different `Sample` and call convention for generate functions;
everything else is in `envkit_slime`. docs/trainers/miles.md has a complete run.
"""

from envkit_miles.data_source import DataSource
from envkit_miles.generate import MilesForm, generate, generate_slime_form
from envkit_slime.metrics import log_eval_rollout_data, log_rollout_data
from envkit_slime.rewards import post_process_rewards, reward

__all__ = [
    "DataSource",
    "MilesForm",
    "generate",
    "generate_slime_form",
    "log_eval_rollout_data",
    "log_rollout_data",
    "post_process_rewards",
    "reward",
]
