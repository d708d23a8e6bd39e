"""Ends a training with verl's V1 trainer when an error would fail every episode.

V1 plays prompts in the background: it logs an exception of the loop, marks the prompt as failed and
goes on (verl/trainer/ppo/v1/agent_loop_tq.py, `_run_prompt`). Only an exception while it starts the
next prompts reaches the trainer. `generate_sequences` reads the worker's configuration, which the
loop shares, so a value that cannot be resolved raises there.
"""

from typing import Any, Final

from omegaconf import OmegaConf

from envkit.errors import EnvkitError

_RESOLVER: Final = "envkit_failure"
_KEY: Final = "actor_rollout_ref.rollout.calculate_log_probs"
"""Read by every call of `generate_sequences`, and by nothing else that the loop uses."""
_errors: Final[list[EnvkitError]] = []


def refuse_next(config: Any, error: EnvkitError) -> None:  # noqa: ANN401  # verl's DictConfig
    """Let the worker's next `generate_sequences` raise an error.

    Args:
        config: The worker's whole configuration; changed in place.
        error: Why no further episode may start.
    """
    _errors[:] = [error]
    OmegaConf.register_new_resolver(_RESOLVER, _raise, replace=True)
    OmegaConf.update(config, _KEY, f"${{{_RESOLVER}:}}", force_add=True)


def _raise() -> None:
    raise _errors[0]
