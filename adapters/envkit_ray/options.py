"""The options of Ray workers: `workers` and `player_options` of `RolloutConfig`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit import ranges
from envkit.errors import ConfigurationError
from envkit.rollout.config import RolloutConfig
from envkit.rollout.setting_types import built, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Where the workers run and what each reserves."""

    address: str | None = None
    """Address of the cluster, as HOST:PORT of its head node, or "auto" for one on this machine.
    None uses RAY_ADDRESS, and starts a local cluster if that is not set. If Ray is already
    running, as in a trainer, its cluster is used and an address is rejected."""
    num_cpus: float | None = None
    """CPUs that each worker reserves. None is 0 in a trainer's cluster, whose CPUs are usually all
    reserved, and on this machine alone; 1 on a cluster that `address` names."""
    max_attempts: int = 5
    """Attempts per episode if its workers are lost; after the last, the episode faults."""
    start_timeout_s: float = 180.0
    """Seconds for all workers to start, and for one to recover after all were lost."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Ray's `runtime_env` of the workers, such as {"env_vars": {"OMP_NUM_THREADS": "1"}}."""

    def __post_init__(self) -> None:
        """Reject invalid values.

        Raises:
            ConfigurationError: See the message.
        """
        check_fields(self, "player_options")
        ranges.at_least(0, **{"player_options.num_cpus": self.num_cpus})
        ranges.at_least(1, **{"player_options.max_attempts": self.max_attempts})
        ranges.positive(**{"player_options.start_timeout_s": self.start_timeout_s})
        if self.address is not None and self.address.startswith("ray://"):
            raise ConfigurationError(
                "player_options.address must be HOST:PORT of the cluster's head node, got "
                f"{self.address!r}: a Ray client cannot hold the workers. Start the run on a node "
                "of the cluster"
            )

    @classmethod
    def of(cls, config: RolloutConfig) -> "RayOptions":
        """Return the options in a configuration.

        Raises:
            ConfigurationError: An unknown key (with a suggestion), an invalid value, or no workers.
        """
        ranges.at_least(1, workers=config.workers)
        return built(cls, config.player_options, "player_options")
