"""Whether SkyRL's settings, envkit's and the model fit together, and what follows from them."""

import logging
from dataclasses import dataclass, replace
from typing import Any, Final

from PIL import Image as PilImage

from envkit.errors import ConfigurationError, TemplateError
from envkit.images import Image
from envkit.messages import message
from envkit.registration import spec
from envkit.rollout.engine import LogprobKind, Sampling
from envkit.rollout.limits import Limits
from envkit.tokens import ChatCodec
from envkit.trajectory.projection import RewardPlacement, Row
from envkit_skyrl.options import SkyRLOptions
from envkit_skyrl.rows import RowPlan
from envkit_skyrl.validation import Pictures

_LOG: Final = logging.getLogger(__name__)
_TENSORS: Final = frozenset({"pixel_values", "image_grid_thw"})
"""What SkyRL's trainer hands to a vision-language model."""
_BLANK: Final = Image.from_pil(PilImage.new("RGB", (56, 56), "white"))
"""Goes through the codec once, and stands in placeholder rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """What a generator needs to know once."""

    plan: RowPlan
    logprob_kind: LogprobKind


def prepare(
    generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
    codec: ChatCodec,
    options: SkyRLOptions,
    *,
    scalar_rewards: bool,
) -> RunSetup:
    """Return the setup of a run.

    Raises:
        ConfigurationError: A combination that SkyRL or the loop cannot honour; the message says
            which key to change.
    """
    _check(generator_cfg, codec, options, scalar_rewards=scalar_rewards)
    if options.rollout.env_id is not None:
        spec(options.rollout.env_id)  # a misspelt id is found before the first batch
    text_only = options.pictures is False or generator_cfg.inference_engine.language_model_only
    pictures = None if text_only else find_pictures(codec)
    if options.pictures and pictures is None:
        raise ConfigurationError(
            "envkit.pictures is true, but the model's template and processor do not give "
            f"{sorted(_TENSORS)}, which SkyRL's trainer takes"
        )
    if pictures is not None and generator_cfg.merge_stepwise_output:
        raise ConfigurationError(
            "generator.merge_stepwise_output refuses pictures; set it to false and envkit.merge "
            "to true, which joins the same rows with their pictures"
        )
    return RunSetup(
        plan=RowPlan(
            step_wise=generator_cfg.step_wise_trajectories,
            merge=options.merge,
            placement=options.reward_placement,
            scalar_rewards=scalar_rewards,
            mask_unfinished=generator_cfg.apply_overlong_filtering,
            no_reward_unfinished=generator_cfg.zero_reward_on_non_stop,
            filler_id=codec.stop_ids[0],
            placeholder=None if pictures is None else _placeholder(codec),
            pictures=pictures,
        ),
        logprob_kind=options.logprob_kind or configured_logprobs(generator_cfg),
    )


def _check(
    generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
    codec: ChatCodec,
    options: SkyRLOptions,
    *,
    scalar_rewards: bool,
) -> None:
    engine, step_wise = generator_cfg.inference_engine, generator_cfg.step_wise_trajectories
    in_turns = options.reward_placement is RewardPlacement.TURNS
    rewritten = codec.history == "rerender" and codec.rewrites_history
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
        "the last row's rewards only; set generator.step_wise_trajectories=false": (
            in_turns and step_wise
        ),
        "scalar rewards (trainer.algorithm.zero_variance_filter) need whole trajectories and "
        "envkit.reward_placement=last": scalar_rewards and (in_turns or step_wise),
        "envkit.history=rerender starts a new row where the template rewrites the history; set "
        "generator.step_wise_trajectories=true": rewritten and not step_wise,
    }
    found = [message for message, is_wrong in problems.items() if is_wrong]
    if found:
        raise ConfigurationError("; ".join(found))


def find_pictures(codec: ChatCodec) -> Pictures | None:
    """Return how the model takes pictures; None for a text model, and where SkyRL cannot train it.

    One blank picture goes through the codec's processor: that is what its tensors look like.
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
    return Pictures(
        token_id=codec.media_ids[0],
        patches_per_token=patches // features.token_count,
        patch_size=size,
    )


def _placeholder(codec: ChatCodec) -> Row:
    """Return a masked row with a picture, as the template writes one."""
    encoded = codec.encode_prompt([message("user", "", (_BLANK,))])
    return Row(
        prompt_ids=encoded.train_ids,
        response_ids=codec.stop_ids[:1],
        loss_mask=(0,),
        logprobs=(0.0,),
        images=encoded.images,
        features=encoded.features,
        reward=None,
        turns=(),
        is_last=True,
        is_placeholder=True,
    )


def configured_logprobs(generator_cfg: Any) -> LogprobKind:  # noqa: ANN401  # SkyRL's
    """Return which log-probabilities the servers that SkyRL starts report; vLLM's default is RAW.

    `engine_init_kwargs` reach vLLM's command line as they are (`build_vllm_cli_args`).
    """
    mode = dict(generator_cfg.inference_engine.engine_init_kwargs or {}).get("logprobs_mode")
    return LogprobKind.SAMPLED if mode == "processed_logprobs" else LogprobKind.RAW


def check_logprobs(kind: LogprobKind, sampling: Sampling, *, is_eval: bool) -> bool:
    """Return whether the server's log-probabilities are those of the sampled distribution.

    Raises:
        ConfigurationError: They are not, and the batch is trained on.
    """
    # At temperature 0 the ledger wants those at temperature 1, which the raw ones are.
    if kind is LogprobKind.SAMPLED or sampling.temperature in (0.0, 1.0) or is_eval:
        return kind is LogprobKind.SAMPLED or sampling.temperature in (0.0, 1.0)
    raise ConfigurationError(
        f"the server reports raw log-probabilities, which are not those of temperature "
        f"{sampling.temperature}; set generator.inference_engine.engine_init_kwargs.logprobs_mode="
        "processed_logprobs, or temperature 1. For servers that SkyRL did not start, say "
        "envkit.engine.logprob_kind=sampled once they are started like that"
    )


def make_limits(
    generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
    options: SkyRLOptions,
    sampling: Sampling,
    max_sequence_tokens: int | None,
) -> Limits:
    """Return the bounds of an episode: envkit's own where they are given, else SkyRL's.

    No row may be longer than what the trainer and the server take, since neither cuts it.
    """
    own = options.rollout.limits
    wanted = own.max_context_tokens
    if wanted is None and generator_cfg.max_input_length is not None:
        wanted = generator_cfg.max_input_length + sampling.max_new_tokens
    server: Any = generator_cfg.inference_engine.engine_init_kwargs or {}
    bounds = [
        bound
        for bound in (wanted, max_sequence_tokens, dict(server).get("max_model_len"))
        if bound is not None
    ]
    return replace(
        own,
        max_turns=own.max_turns or generator_cfg.max_turns,
        max_context_tokens=min(bounds, default=None),
    )
