"""Read verl's configuration for an episode (verl 0.9.1, trainer/config/ppo_trainer.yaml)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.rollout.engine import Sampling
from envkit.rollout.limits import Limits
from envkit_training.settings import read_sampling
from envkit_verl.ignored import check_ignored

SGLANG: Final = "sglang"
VLLM: Final = "vllm"
TURNS: Final = "envkit_turns"
"""Name of the estimator of `envkit_verl.advantages`."""
_ESTIMATORS_OF_ROWS: Final = ("grpo", "gae", "reinforce_plus_plus")
"""Estimators without group statistics, and GRPO, for which V1 counts only the last row of an
episode. The others but GRPO get each row with the episode's reward at its end, so they agree with
one row only without a discount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlSettings:
    """The parts of verl's configuration that bound or weight an episode."""

    prompt_length: int
    """Maximum prompt tokens of a row; verl never truncates a longer one."""
    response_length: int
    """Maximum response tokens of a row, including observations."""
    max_model_len: int | None
    """The server's context length; None means the model's own."""
    max_turns: int | None
    """The tighter of `multi_turn.max_assistant_turns` and `multi_turn.max_user_turns` + 1."""
    backend: str
    """`rollout.name`: "vllm", "sglang" or another."""
    keeps_routing: bool = False
    """Whether trainer and server replay routed experts, so that every row needs the column."""
    estimator: str = "grpo"
    """`algorithm.adv_estimator`."""
    is_scaled: bool = True
    """`algorithm.norm_adv_by_std_in_grpo`."""
    loss_agg_mode: str = "token-mean"
    """`actor_rollout_ref.actor.loss_agg_mode`."""
    has_scale_factor: bool = False
    """Whether `actor_rollout_ref.actor.loss_scale_factor` is set."""
    has_discount: bool = False
    """Whether `algorithm.gamma` or `algorithm.lam` is below 1."""

    has_kl_penalty: bool = False
    """`algorithm.use_kl_in_reward`."""

    @classmethod
    def from_config(cls, config: Any) -> "VerlSettings":  # noqa: ANN401  # OmegaConf's node
        """Read the trainer's configuration.

        Raises:
            ConfigurationError: Log-probabilities would not be those of the sampled distribution, or
                a setting would have no effect.
        """
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        _check_logprobs(rollout)
        check_ignored(config)
        turns = rollout.get("multi_turn", {}) or {}
        return cls(
            prompt_length=int(rollout.prompt_length),
            response_length=int(rollout.response_length),
            max_model_len=_positive(rollout.get("max_model_len")),
            max_turns=_max_turns(turns),
            backend=str(rollout.get("name", "")),
            keeps_routing=bool(rollout.get("enable_rollout_routing_replay", False)),
            estimator=str(config.algorithm.adv_estimator),
            is_scaled=bool(config.algorithm.get("norm_adv_by_std_in_grpo", True)),
            loss_agg_mode=str(actor.loss_agg_mode),
            has_kl_penalty=bool(config.algorithm.get("use_kl_in_reward", False)),
            has_scale_factor=actor.get("loss_scale_factor") is not None,
            has_discount=any(config.algorithm.get(name, 1.0) != 1.0 for name in ("gamma", "lam")),
        )

    def why_one_row(self, *, is_v1: bool) -> str | None:
        """Return why an episode must be one row, and what to set; None if several are allowed.

        Its weight in the loss and in its group must be that of one row.
        """
        estimator, mode = self.estimator, self.loss_agg_mode
        rules = {
            "verl's V0 worker takes one; use trainer.use_v1=true": not is_v1,
            "actor.loss_agg_mode=seq-mean-token-mean weighs each row like an episode; use "
            "token-mean, or seq-mean-token-sum-norm with actor.loss_scale_factor": (
                mode == "seq-mean-token-mean"
            ),
            "actor.loss_agg_mode=seq-mean-token-sum-norm divides each micro-batch by its own "
            "padded width; set actor.loss_scale_factor, or use token-mean": (
                mode == "seq-mean-token-sum-norm" and not self.has_scale_factor
            ),
            f"algorithm.adv_estimator={estimator} compares rows, not episodes; use one of "
            f"{list(_ESTIMATORS_OF_ROWS)}": estimator not in _ESTIMATORS_OF_ROWS,
            f"algorithm.adv_estimator={estimator} discounts from the end of each row; set "
            "algorithm.gamma=1 and algorithm.lam=1, or algorithm.adv_estimator=grpo": (
                estimator != "grpo" and self.has_discount
            ),
            "algorithm.use_kl_in_reward penalizes each row for its own tokens; set it to false": (
                self.has_kl_penalty
            ),
        }
        return next((rule for rule, is_broken in rules.items() if is_broken), None)

    def limits(self, own: Limits) -> Limits:
        """Return the tighter of the run's own limits and verl's.

        The engine bounds a row's prompt separately: it is known only after `reset`.
        """
        context = self.prompt_length + self.response_length
        if self.max_model_len is not None:
            # SGLang's server reserves one token (async_sglang_server.py:588 of verl 0.9.1).
            context = min(context, self.max_model_len - (self.backend == SGLANG))
        return own.tightest(
            Limits(
                max_turns=self.max_turns,
                max_response_tokens=self.response_length,
                max_context_tokens=context,
            )
        )

    def sampling(self, parameters: Mapping[str, Any], *, priority: int = 0) -> Sampling:
        """Convert verl's sampling parameters of one sample; the limits clamp its reply.

        Args:
            parameters: The worker's arguments to `run`: no token budget, and top_k -1 for all.
            priority: Request priority, used by vLLM's scheduler; 0 for none.
        """
        sampling = read_sampling(parameters, max_new_tokens=self.response_length)
        if not priority or self.backend != VLLM:
            return sampling
        return replace(sampling, extras={**sampling.extras, "priority": priority})


def _check_logprobs(rollout: Any) -> None:  # noqa: ANN401  # OmegaConf's node
    mode = rollout.get("logprobs_mode", "processed_logprobs") or "processed_logprobs"
    temperature = float(rollout.get("temperature", 1.0))
    if (
        rollout.get("calculate_log_probs", False)
        and rollout.get("name") == VLLM
        and not str(mode).startswith("processed")
        and temperature != 1.0
    ):
        raise ConfigurationError(
            f"rollout.logprobs_mode is {mode!r}: vLLM then reports log-probabilities of the "
            f"unscaled distribution, which at temperature {temperature} is not the sampled one; "
            "set rollout.logprobs_mode=processed_logprobs"
        )


def _max_turns(turns: Any) -> int | None:  # noqa: ANN401  # OmegaConf's node
    """Return the most replies; verl's tool loop also ends after a number of observations."""
    replies, observations = (
        _positive(turns.get(name)) for name in ("max_assistant_turns", "max_user_turns")
    )
    if observations is None:
        return replies
    return observations + 1 if replies is None else min(replies, observations + 1)


def _positive(value: Any) -> int | None:  # noqa: ANN401  # any YAML scalar
    return int(value) if value is not None and int(value) > 0 else None
