"""Check that SkyRL's settings, envkit's settings and the model are compatible."""

import logging
from dataclasses import replace
from typing import Any, Final

from PIL import Image as PilImage

from envkit.errors import ConfigurationError, TemplateError
from envkit.images import Image
from envkit.messages import message
from envkit.registration import spec
from envkit.rollout.engine import LogprobKind, Sampling
from envkit.rollout.limits import Limits
from envkit.tokens import ChatCodec
from envkit.trajectory.projection import Row, placeholder_row
from envkit_skyrl.options import SkyRLOptions
from envkit_skyrl.rows import RowPlan
from envkit_skyrl.validation import ImageSettings
from envkit_training.settings import refuse

_LOG: Final = logging.getLogger(__name__)
_TENSORS: Final = frozenset({"pixel_values", "image_grid_thw"})
"""Tensors that SkyRL's trainer passes to a vision-language model."""
_BLANK: Final = Image.from_pil(PilImage.new("RGB", (56, 56), "white"))
"""Image that probes the codec, and is used in placeholder rows."""


def prepare(
    generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
    codec: ChatCodec,
    options: SkyRLOptions,
    *,
    scalar_rewards: bool,
) -> RowPlan:
    """Return the plan for converting a run's trajectories to rows.

    Raises:
        ConfigurationError: A combination that SkyRL or the loop cannot honour; the message says
            which key to change.
    """
    if options.rollout.env_id is not None:
        spec(options.rollout.env_id)  # detects a misspelt id before the first batch
    text_only = options.images is False or generator_cfg.inference_engine.language_model_only
    images = None if text_only else find_images(codec)
    _check(generator_cfg, codec, options, scalar_rewards=scalar_rewards, has_images=bool(images))
    return RowPlan(
        step_wise=generator_cfg.step_wise_trajectories,
        merge=options.merge,
        placement=options.placement,
        scalar_rewards=scalar_rewards,
        mask_unfinished=generator_cfg.apply_overlong_filtering,
        no_reward_unfinished=generator_cfg.zero_reward_on_non_stop,
        filler_id=codec.stop_ids[0],
        placeholder=None if images is None else _placeholder(codec),
        image_settings=images,
    )


def _check(
    generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
    codec: ChatCodec,
    options: SkyRLOptions,
    *,
    scalar_rewards: bool,
    has_images: bool,
) -> None:
    engine, step_wise = generator_cfg.inference_engine, generator_cfg.step_wise_trajectories
    branching = options.rollout.branching_setting(codec)
    problems = {
        "envkit's generator returns no routed experts; set "
        "generator.inference_engine.enable_return_routed_experts=false": (
            engine.enable_return_routed_experts
        ),
        "envkit's generator returns no sample support; set "
        "generator.inference_engine.enable_return_sample_support_set=false": (
            engine.enable_return_sample_support_set
        ),
        "envkit.merge joins step-wise rows; set generator.step_wise_trajectories=true": (
            options.merge and not step_wise
        ),
        "envkit.reward_placement=turns needs whole trajectories: SkyRL's step-wise advantages read "
        "the last row's rewards only; set envkit.turn_discount to compare turns, or "
        "generator.step_wise_trajectories=false": (
            options.reward_placement == "turns" and step_wise
        ),
        "scalar rewards (trainer.algorithm.zero_variance_filter) need whole trajectories, "
        "envkit.reward_placement=last and no envkit.turn_discount": (
            scalar_rewards and (options.placement != "last" or step_wise)
        ),
        f"envkit.{branching} may split an episode into several rows; set "
        "generator.step_wise_trajectories=true": branching is not None and not step_wise,
        "envkit.images is true, but the model's template and processor do not give "
        f"{sorted(_TENSORS)}, which SkyRL's trainer needs": (
            options.images is True and not has_images
        ),
        "generator.merge_stepwise_output refuses images; set it to false and envkit.merge to "
        "true, which joins the same rows with their images": (
            has_images and generator_cfg.merge_stepwise_output
        ),
    }
    refuse(problems)


def find_images(codec: ChatCodec) -> ImageSettings | None:
    """Return the model's image settings; None for text, or if SkyRL cannot train its images.

    One blank image goes through the codec's processor to find the shape of its tensors.
    """
    if not codec.audit().supports_images:
        return None
    try:
        (features,) = codec.image_features([_BLANK])
    except TemplateError as error:
        _LOG.info("this run is text only: %s", error)
        return None
    shapes = {key: array.shape for key, array in features.tensors.items()}
    if _TENSORS.symmetric_difference(shapes) or len(shapes["pixel_values"]) != 2:
        _LOG.warning(
            "this run is text only: SkyRL's trainer takes %s with flat patches, %s gives %s",
            sorted(_TENSORS),
            features.joining.family,
            shapes,
        )
        return None
    patches, size = shapes["pixel_values"]
    return ImageSettings(
        token_id=codec.media_ids[0],
        patches_per_token=patches // features.token_count,
        patch_size=size,
    )


def _placeholder(codec: ChatCodec) -> Row:
    """Return a masked row with an image, as the template writes one."""
    encoded = codec.encode_prompt([message("user", "", (_BLANK,))])
    return replace(
        placeholder_row((), None, filler_id=codec.stop_ids[0]),
        prompt_ids=encoded.train_ids,
        images=encoded.images,
        features=encoded.features,
    )


def check_logprobs(
    generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
    options: SkyRLOptions,
    sampling: Sampling,
    *,
    is_eval: bool,
) -> bool:
    """Return whether the server's log-probabilities are those of the sampled distribution.

    Servers that SkyRL starts get `engine_init_kwargs` unchanged on vLLM's command line
    (`build_vllm_cli_args`); vLLM's default is the raw ones. At temperature 0 the ledger records
    those at temperature 1, which are the raw ones.

    Raises:
        ConfigurationError: They are not, and the batch is for training.
    """
    mode = dict(generator_cfg.inference_engine.engine_init_kwargs or {}).get("logprobs_mode")
    kind = options.server_logprobs or (
        LogprobKind.SAMPLED if mode == "processed_logprobs" else LogprobKind.RAW
    )
    is_exact = kind is LogprobKind.SAMPLED or sampling.temperature in (0.0, 1.0)
    if is_exact or is_eval:
        return is_exact
    raise ConfigurationError(
        f"the server reports raw log-probabilities, which are not those of temperature "
        f"{sampling.temperature}; set generator.inference_engine.engine_init_kwargs.logprobs_mode="
        "processed_logprobs, or temperature 1. For servers that SkyRL did not start, start them "
        "the same way and set envkit.engine.logprob_kind=sampled"
    )


def keeps_images(generator_cfg: Any) -> bool:  # noqa: ANN401  # SkyRL's GeneratorConfig
    """Return whether every server keeps processed images under their hash, for later requests.

    vLLM does with `mm_processor_cache_gb` above 0, which `prepare_config` sets, if one process
    receives all requests of an engine (vllm/multimodal/cache, 0.30 and 0.32): then the engine's
    own process has the cache.
    """
    engine = generator_cfg.inference_engine
    given = dict(engine.engine_init_kwargs or {})
    return (
        float(given.get("mm_processor_cache_gb") or 0) > 0
        and given.get("mm_processor_cache_type", "lru") == "lru"
        and int(given.get("api_server_count") or 1) == 1
        and engine.data_parallel_size == 1
        and not engine.enable_pd
    )


def make_limits(
    generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
    options: SkyRLOptions,
    sampling: Sampling,
    max_sequence_tokens: int | None,
) -> Limits:
    """Return the tighter of envkit's and SkyRL's limits of an episode.

    No row may exceed what the trainer and the server accept, since neither truncates.
    """
    longest = generator_cfg.max_input_length
    server = dict(generator_cfg.inference_engine.engine_init_kwargs or {}).get("max_model_len")
    return options.rollout.limits.tightest(
        Limits(
            max_turns=generator_cfg.max_turns,
            max_context_tokens=None if longest is None else longest + sampling.max_new_tokens,
        ),
        Limits(max_context_tokens=max_sequence_tokens),
        Limits(max_context_tokens=server),
    )
