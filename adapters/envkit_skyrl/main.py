"""The training command: SkyRL's entry point with envkit's generator.

    python -m envkit_skyrl.main envkit.env_id=geo3k-v0 data.train_data='["train.parquet"]' ...

SkyRL's own command can use it too: `trainer.override_entrypoint=envkit_skyrl.main`.
"""

import sys
from typing import Any

from envkit_skyrl.contract import CONTRACT

CONTRACT.check()

import ray  # noqa: E402  # after the check
from skyrl.train.utils import validate_cfg  # noqa: E402
from skyrl.train.utils.utils import initialize_ray  # noqa: E402

from envkit_skyrl.experiment import EnvkitExp, EnvkitTrainConfig, prepare_config  # noqa: E402


def read_config(arguments: list[str]) -> EnvkitTrainConfig:
    """Return the configuration of a command line, checked by envkit and by SkyRL.

    Raises:
        ConfigurationError: The `envkit` section is wrong.
    """
    kept = [entry for entry in arguments if not entry.startswith("trainer.override_entrypoint=")]
    cfg: Any = EnvkitTrainConfig.from_cli_overrides(kept)
    prepare_config(cfg)
    validate_cfg(cfg)
    return cfg


@ray.remote(num_cpus=1)
def train(cfg: EnvkitTrainConfig) -> None:
    """Run the experiment in its own task, as SkyRL's entry point does."""
    EnvkitExp(cfg).run()


def main() -> None:
    """Train with the command line's settings."""
    cfg = read_config(sys.argv[1:])
    initialize_ray(cfg)
    task: Any = train
    ray.get(task.remote(cfg))


if __name__ == "__main__":
    main()
