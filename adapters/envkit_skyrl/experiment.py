"""SkyRL's experiment with envkit's generator, and its configuration."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.tokens import ChatCodec, load_codec
from envkit_skyrl.contract import CONTRACT
from envkit_skyrl.generator import EnvGenerator
from envkit_skyrl.options import SkyRLOptions, import_all
from envkit_skyrl.trainer import EnvkitTrainer
from envkit_training.settings import refuse

CONTRACT.check()

from skyrl.backends.skyrl_train.inference_servers.utils import (  # noqa: E402  # after the check
    resolve_policy_model_name,
)
from skyrl.train.config import SkyRLTrainConfig  # noqa: E402
from skyrl.train.entrypoints.main_base import BasePPOExp  # noqa: E402

_LOG: Final = logging.getLogger(__name__)
_IMAGE_CACHE_GB: Final = 4
"""Host memory of each engine for processed images: vLLM's own default."""
_UNREAD: Final = (
    "batched",
    "use_conversation_multi_turn",
    "append_eos_token_after_stop_str_in_multi_turn",
)
"""Keys of `generator` that only SkyRL's own generators read."""


@dataclass
class EnvkitTrainConfig(SkyRLTrainConfig):
    """SkyRL's configuration with an additional section."""

    envkit: dict[str, Any] = field(default_factory=dict[str, Any])
    """See `SkyRLOptions` and `envkit.rollout.RolloutConfig`."""


class EnvkitExp(BasePPOExp):
    """SkyRL's experiment with envkit's generator, and a trainer that counts episodes."""

    def __init__(self, cfg: EnvkitTrainConfig) -> None:
        prepare_process(cfg)
        super().__init__(cfg)

    def get_generator(
        self,
        cfg: EnvkitTrainConfig,
        tokenizer: Any,  # noqa: ANN401  # a Hugging Face tokenizer
        inference_engine_client: Any,  # noqa: ANN401  # SkyRL's
    ) -> EnvGenerator:
        """Return envkit's generator."""
        del tokenizer  # the codec has its own
        return make_generator(cfg, inference_engine_client)

    def get_trainer(self, **parts: Any) -> EnvkitTrainer:  # noqa: ANN401  # SkyRL's objects
        """Return the trainer; see `EpisodeCredit`."""
        return EnvkitTrainer(**parts)


def make_generator(
    cfg: EnvkitTrainConfig,
    inference_engine_client: Any,  # noqa: ANN401  # SkyRL's
    *,
    codec: ChatCodec | None = None,
) -> EnvGenerator:
    """Return envkit's generator for a whole configuration.

    Args:
        cfg: SkyRL's with the `envkit` section.
        inference_engine_client: SkyRL's.
        codec: Codec of the policy's model; None loads it from `trainer.policy.model.path`. Workers
            load their own, so `envkit.workers` requires None.

    Raises:
        ConfigurationError: The settings are incompatible.
    """
    options = read_options(cfg)
    if cfg.generator.chat_template.name_or_path is not None:
        raise ConfigurationError(
            "generator.chat_template belongs to SkyRL's generator; give a template as "
            "envkit.template_kwargs.chat_template"
        )
    template_kwargs = {
        **(cfg.generator.chat_template_kwargs or {}),
        **options.rollout.template_kwargs,
    }
    step_wise = cfg.generator.step_wise_trajectories
    load = partial(
        load_codec,
        cfg.trainer.policy.model.path,
        template_kwargs=template_kwargs,
        history=options.rollout.codec_history,
    )
    return EnvGenerator(
        cfg.generator,
        inference_engine_client,
        load if codec is None else codec,
        options=options,
        policy_model_name=resolve_policy_model_name(cfg),
        max_sequence_tokens=cfg.trainer.algorithm.max_seq_len,
        scalar_rewards=bool(cfg.trainer.algorithm.zero_variance_filter) and not step_wise,
    )


def read_options(cfg: EnvkitTrainConfig) -> SkyRLOptions:
    """Return the validated `envkit` section.

    Raises:
        ConfigurationError: An unknown key, a wrong value, or settings of SkyRL that would count
            rows instead of episodes.
    """
    section = getattr(cfg, "envkit", None)
    if section is not None and not isinstance(section, Mapping):
        raise ConfigurationError(f"envkit must be a mapping, got {type(section).__name__}")
    options = SkyRLOptions.from_mapping(section)
    _check_algorithm(cfg, options)
    return options


def _check_algorithm(cfg: EnvkitTrainConfig, options: SkyRLOptions) -> None:
    algorithm, step_wise = cfg.trainer.algorithm, cfg.generator.step_wise_trajectories
    estimator, sampling = algorithm.advantage_estimator, algorithm.dynamic_sampling.type
    problems = {
        "envkit.turn_discount computes GRPO's advantages by turn; set "
        f"trainer.algorithm.advantage_estimator=grpo, got {estimator!r}": (
            options.turn_discount is not None and estimator != "grpo"
        ),
        # skyrl/train/utils/trainer_utils.py, handle_filter_sampling and handle_replace_sampling
        "SkyRL's dynamic sampling cuts a batch after train_batch_size * n_samples_per_prompt rows, "
        "and step-wise episodes have more; set trainer.algorithm.dynamic_sampling.type=null or "
        f"generator.step_wise_trajectories=false, got {sampling!r}": (
            sampling is not None and step_wise
        ),
        # skyrl/train/trainer.py, _normalize_advantages
        "trainer.algorithm.advantage_batch_normalize takes the mean over every position of every "
        "row, padding included, so it depends on how many rows an episode is; set it to false, or "
        "generator.step_wise_trajectories=false": (
            algorithm.advantage_batch_normalize and step_wise
        ),
        # Only last rows are summed: compute_advantages_and_returns in the same file.
        "trainer.algorithm.use_kl_in_reward penalizes an episode for the tokens of its last row "
        "alone; set it to false, or generator.step_wise_trajectories=false": (
            algorithm.use_kl_in_reward and step_wise
        ),
    }
    refuse(problems)


def prepare_config(cfg: EnvkitTrainConfig) -> None:
    """Check the `envkit` section, and set log-probabilities and image cache of SkyRL's servers.

    vLLM reports raw log-probabilities by default, which differ from the sampled ones at every
    temperature except 1. SkyRL turns off the cache of processed images, without which every request
    carries the tensors of all images so far. A `logprobs_mode` or `mm_processor_cache_gb` that the
    run sets is kept.

    Raises:
        ConfigurationError: The `envkit` section is wrong; detected before anything starts.
    """
    read_options(cfg)
    unread = unread_settings(cfg)
    if unread:
        _LOG.warning(
            "only SkyRL's own generator and environments read %s; configure the rollouts and "
            "environments in the section envkit",
            ", ".join(f"{key}={value!r}" for key, value in unread.items()),
        )
    engine = cfg.generator.inference_engine
    if not engine.external_proxy_url and not engine.external_server_urls:
        engine.engine_init_kwargs = {
            "logprobs_mode": "processed_logprobs",
            "mm_processor_cache_gb": _IMAGE_CACHE_GB,
            **(engine.engine_init_kwargs or {}),
        }


def unread_settings(cfg: EnvkitTrainConfig) -> dict[str, Any]:
    """Return the settings, by dotted key, that differ from SkyRL's and that nothing here reads.

    SkyRL's own scripts set some of them, so they are logged instead of refused.
    """
    default = SkyRLTrainConfig()
    generator = _changed("generator", cfg.generator, default.generator)
    return {
        **{key: generator[key] for name in _UNREAD if (key := f"generator.{name}") in generator},
        **_changed("environment", cfg.environment, default.environment),
    }


def _changed(name: str, value: Any, default: Any) -> dict[str, Any]:  # noqa: ANN401  # any fields
    """Return the fields that differ from the default, by dotted key."""
    if not is_dataclass(default):
        return {} if value == default else {name: value}
    found: dict[str, Any] = {}
    for entry in fields(default):
        key = entry.name
        found |= _changed(f"{name}.{key}", getattr(value, key), getattr(default, key))
    return found


def prepare_process(cfg: EnvkitTrainConfig) -> None:
    """Import the modules that register environments, in the trainer's process.

    Raises:
        ConfigurationError: A module of `envkit.imports` cannot be imported.
    """
    import_all(read_options(cfg).imports)
