"""Convert TRL's training arguments to envkit's sampling and limits."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from envkit.errors import ConfigurationError
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Sampling
from envkit.rollout.limits import Limits
from envkit.seeds import derive_seed
from envkit_training.settings import check_discount

_LOG: Final = logging.getLogger(__name__)

TAIL_SETTING: Final = "TRL's AsyncGRPOTrainer, whose max_staleness bounds the age of samples"
"""TRL's alternative to `RolloutConfig.tail`."""


_UNREAD: Final[Mapping[str, object]] = {
    "use_vllm": False,
    "min_p": None,
    "repetition_penalty": 1.0,
    # TRL counts a completion as truncated if its last token is not an end token.
    "mask_truncated_completions": False,
    "generation_kwargs": None,
    "cache_implementation": None,
    "max_tool_calling_iterations": None,
    "use_transformers_continuous_batching": False,
    "fork_threshold_tokens": 1024,
}
"""Arguments that only TRL's own generation reads, with their defaults (trl 1.16, GRPOConfig and
AsyncGRPOConfig)."""
_WORKER: Final[Mapping[str, tuple[object, str]]] = {
    "max_inflight_tasks": (-1, "groups_at_once"),
    "queue_maxsize": (1024, "buffer_rows"),
    "request_timeout": (600, "the engine's timeout"),
    "log_completions": (False, "EnvRolloutWorker's metrics, or a recorded run"),
}
"""Arguments that only TRL's own worker reads: default, and what replaces each."""


class TrainingArguments(Protocol):
    """Fields read from GRPOConfig and AsyncGRPOConfig."""

    temperature: float
    top_p: float
    top_k: int
    max_completion_length: int


def check_arguments(args: Any, *, who: str, has_codec: bool) -> None:  # noqa: ANN401
    """Reject arguments that envkit's rollouts cannot honour.

    Args:
        args: GRPOConfig or AsyncGRPOConfig.
        who: Names the adapter in the message.
        has_codec: Whether the caller passed a codec, which owns the template's arguments.

    Raises:
        ConfigurationError: One is set; the message names all of them.
    """
    values = {name: getattr(args, name, default) for name, default in _UNREAD.items()}
    wrong = {name: value for name, value in values.items() if value != _UNREAD[name]}
    if wrong:
        raise ConfigurationError(
            f"{who} plays episodes with envkit's engine and loop, which do not read "
            f"{', '.join(wrong)}, got {wrong}; omit these. Sampling and limits belong in the "
            "rollout's configuration"
        )
    if has_codec and getattr(args, "chat_template_kwargs", None):
        raise ConfigurationError(
            f"{who} renders with the codec that you give, got chat_template_kwargs="
            f"{args.chat_template_kwargs}; give the codec these as template_kwargs instead"
        )


def warn_of_worker_arguments(args: Any) -> None:  # noqa: ANN401
    """Log the arguments of TRL's own worker, which change nothing in envkit's.

    Args:
        args: AsyncGRPOConfig, before its trainer is made, which sets one of them itself.
    """
    for name, (default, instead) in _WORKER.items():
        value = getattr(args, name, default)
        if value != default:
            _LOG.warning("%s=%r has no effect here: use %s", name, value, instead)


def check_turn_credit(args: Any, discount: float, *, has_reward_funcs: bool) -> None:  # noqa: ANN401
    """Reject options that per-turn advantages cannot honour.

    Args:
        args: GRPOConfig.
        discount: Discount of later turns' rewards.
        has_reward_funcs: Whether rewards come from functions instead of the environment.

    Raises:
        ConfigurationError: The discount is out of range, or an option needs one advantage for an
            episode, or whole groups in one process.
    """
    check_discount(discount)
    rows = args.per_device_train_batch_size * args.steps_per_generation
    refused: Mapping[str, bool] = {
        "reward_funcs": has_reward_funcs,
        "use_liger_kernel": bool(args.use_liger_kernel),
        f"scale_rewards={args.scale_rewards!r}": args.scale_rewards not in ("group", "none"),
        f"{rows} rows of a process in groups of {args.num_generations}": bool(
            rows % args.num_generations
        ),
    }
    wrong = [name for name, is_set in refused.items() if is_set]
    if wrong:
        raise ConfigurationError(
            "turn_discount compares the environment's rewards of turns within groups, each in one "
            f"process, got {wrong}; change these or omit turn_discount"
        )


def rollout_settings(
    args: TrainingArguments, config: RolloutConfig
) -> tuple[RolloutConfig, Sampling]:
    """Return the configuration with the trainer's limits, and the sampling.

    TRL does not bound our completions, so `max_completion_length` becomes a limit.

    Raises:
        ConfigurationError: A key is unknown, or the temperature differs from the trainer's.
    """
    sampling = config.sampling_over(
        Sampling(
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k or None,
            max_new_tokens=args.max_completion_length,
            seed=derive_seed("sampling", config.seed),
        )
    )
    if sampling.temperature != args.temperature:
        raise ConfigurationError(
            "the trainer computes log-probabilities at args.temperature, so the rollouts "
            f"must sample at it, got {args.temperature} and {sampling.temperature}"
        )
    limits = Limits(max_response_tokens=args.max_completion_length)
    return replace(config, limits=config.limits.tightest(limits)), sampling
