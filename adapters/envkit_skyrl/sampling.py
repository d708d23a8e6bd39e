"""Convert SkyRL's sampling parameters, which are vLLM's, to envkit's `Sampling` and back."""

from collections.abc import Mapping
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.rollout.engine import Sampling
from envkit_training.settings import read_sampling

_BAN_BIAS: Final = -100.0
"""The lowest bias that vLLM accepts; it gives a token probability 0."""


def to_sampling(params: Mapping[str, Any]) -> Sampling:
    """Return the sampling of a trainer's parameters; unknown ones become extras.

    Args:
        params: As SkyRL's `get_sampling_params_for_backend` returns them.

    Raises:
        ConfigurationError: More than one sample per request: SkyRL repeats prompts instead.
    """
    if (params.get("n") or 1) > 1:
        raise ConfigurationError(
            f"sampling parameter n must be 1, got {params['n']}; SkyRL repeats each prompt "
            "generator.n_samples_per_prompt times instead"
        )
    own = {key: value for key, value in params.items() if key not in ("n", "logprobs")}
    tokens = own.pop("max_tokens", None)
    default = Sampling().max_new_tokens
    return read_sampling(own, max_new_tokens=default if tokens is None else int(tokens))


def to_params(sampling: Sampling) -> dict[str, Any]:
    """Return vLLM's parameters.

    The tokens of a stop string and the log-probability of every sampled token are always requested:
    the ledger records everything sampled.
    """
    params: dict[str, Any] = {
        **sampling.extras,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "logprobs": 1,
        "include_stop_str_in_output": True,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_ids),
    }
    if sampling.stop:  # vLLM looks for it in text without special tokens, SkyRL's default
        params["skip_special_tokens"] = False
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    if sampling.banned_ids:
        bans = {str(token): _BAN_BIAS for token in sampling.banned_ids}
        params["logit_bias"] = {**(params.get("logit_bias") or {}), **bans}
    return params
