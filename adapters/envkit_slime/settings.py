"""Settings of a run and of a sample, read from slime's arguments and the sample.

A run's settings are the mapping `args.envkit`, which `--custom-config-path FILE.yaml` sets
(slime/utils/arguments.py: every key of the file becomes an attribute of the arguments). A sample's
own are `sample.metadata["envkit"]`.
"""

import json
from argparse import Namespace
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, cast

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.messages import text_of
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Sampling
from envkit.rollout.limits import Limits
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.rollout.setting_types import check_fields
from envkit.rollout.setup import EpisodeSpec
from envkit.rollout.sources import EnvSource
from envkit.seeds import derive_seed
from envkit_slime.sample import Sample
from envkit_training.settings import read_sampling as read_shared
from envkit_training.settings import with_task

_DROPPED: Final = ("skip_special_tokens", "no_stop_trim", "spaces_between_special_tokens")
"""Settings of the server's text, which is never read: envkit decodes the ids itself."""
_PLACES: Final = ("prompt", "label", "images")
_OWN: Final = ("fan_out", "task_fields", "record_dir", "max_server_aborts", "max_staleness")


class FanOut(StrEnum):
    """Number of samples per trajectory."""

    NONE = "none"
    """Always one, which every path of slime accepts."""
    SEQUENCES = "sequences"
    """One per segment between rewrites of the history by the chat template."""
    TURNS = "turns"
    """One for each model turn, with everything before it as its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run: `RolloutConfig` and what only this adapter knows."""

    rollout: RolloutConfig
    fan_out: FanOut = FanOut.NONE
    task_fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps a task's keys to the fields of the sample that fill them: "prompt", "label", "images" (a
    list of data URIs, since tasks are JSON) or "metadata.<key>". Empty uses the task of the
    metadata, or lets the environment draw one."""
    record_dir: str | None = None
    """Folder that every finished trajectory is appended to, for `envkit verify` and `envkit
    report`; None records nothing."""
    max_server_aborts: int = 16
    """Maximum resumes after the server itself aborts a request, as around a weight update; then it
    is a fault."""
    max_staleness: int | None = None
    """Maximum age of a trained reply's weights, in updates older than the newest here; older
    replies are masked. None trains on all."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: A value has the wrong type, or `task_fields` names another place.
        """
        check_fields(self, "envkit")
        for key, place in self.task_fields.items():
            if place not in _PLACES and not place.startswith("metadata."):
                raise ConfigurationError(
                    f"task_fields maps a task's key to one of {_PLACES} or 'metadata.<key>', "
                    f"got {key!r}: {place!r}"
                )

    @classmethod
    def from_args(cls, args: Namespace) -> "Settings":
        """Read `args.envkit`; without it every sample must name its environment.

        `template_kwargs` override `--apply-chat-template-kwargs`, key by key, and `seed` overrides
        `--rollout-seed`.

        Raises:
            ConfigurationError: It is not a mapping, or has unknown keys or wrong values.
        """
        given: object = getattr(args, "envkit", None)
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                "the key 'envkit' of --custom-config-path must be a mapping, "
                f"got {type(given).__name__}"
            )
        data = dict(cast("Mapping[str, Any]", given))
        own: dict[str, Any] = {key: data.pop(key) for key in _OWN if key in data}
        data.setdefault("seed", int(getattr(args, "rollout_seed", None) or 0))
        rollout = RolloutConfig.for_trainer(
            data, tail="--over-sampling-batch-size with --partial-rollout"
        )
        flag: Mapping[str, Any] = getattr(args, "apply_chat_template_kwargs", None) or {}
        rollout = replace(rollout, template_kwargs={**flag, **rollout.template_kwargs})
        return cls(rollout=rollout, **own)


def episode_of(
    args: Namespace,
    settings: Settings,
    sample: Sample,
    sampling_params: Mapping[str, Any],
    *,
    evaluation: bool,
) -> tuple[EnvSource, EpisodeSpec]:
    """Return the environment and the episode of a sample; a group's members have the same seed.

    Blocks while it encodes images: call it on a thread.

    Args:
        args: slime's arguments.
        settings: Those of the run.
        sample: Its metadata, prompt and label define the episode.
        sampling_params: As slime gives them; not changed.
        evaluation: Whether this is slime's evaluation.

    Raises:
        ConfigurationError: Metadata or sampling parameters that cannot be read, or no environment
            is named.
    """
    config = settings.rollout
    column, row_limits = _column(sample)
    if settings.task_fields or not _is_unread(args, sample, evaluation=evaluation):
        request = EpisodeRequest.from_column(column, default=config.request())
    else:
        request = config.row_request(None)
    if request.task is None and settings.task_fields:
        row = _fields(sample, settings.task_fields.values())
        request = with_task(request, row, settings.task_fields)
    limits = _limits(args, config, row_limits, sampling_params, evaluation=evaluation)
    group = None if evaluation or sample.group_index is None else sample.group_index
    kind, unit = ("sample", sample.index) if group is None else ("group", group)
    size = int(getattr(args, "n_samples_per_prompt", 1) or 1)
    if evaluation:
        size = _evaluation_size(args, request)
        kind, unit = "evaluation", None if sample.index is None else sample.index // size
    spec = EpisodeSpec(
        seed=derive_seed(kind, config.seed, unit) if request.seed is None else request.seed,
        task=request.task,
        group_id=None if group is None else str(group),
        member=0 if sample.index is None else sample.index % size,
        metadata={"sample_index": sample.index},
        limits=limits,
        sampling=config.sampling_over(read_sampling(args, sampling_params)),
    )
    return request.factory(), spec


def _evaluation_size(args: Namespace, request: EpisodeRequest) -> int:
    """Return the samples per evaluation prompt; their indices are consecutive.

    Raises:
        ConfigurationError: The datasets differ in it, so a prompt's members cannot be identified.
    """
    datasets: Any = getattr(args, "eval_datasets", None) or ()
    sizes = {int(one.n_samples_per_eval_prompt or 1) for one in datasets}
    # A sample does not name its dataset (slime/rollout/sglang_rollout.py, eval_rollout).
    if len(sizes) > 1 and request.seed is None and request.task is None:
        raise ConfigurationError(
            "all evaluation datasets must have the same n_samples_per_eval_prompt if their rows "
            f"name neither seed nor task, got {sorted(sizes)}; add a 'seed' to the rows"
        )
    return min(sizes, default=1)


def _is_unread(args: Namespace, sample: Sample, *, evaluation: bool) -> bool:
    """Return whether a dataset filled the sample, but without a request."""
    if not evaluation and not getattr(args, "prompt_data", None):
        return False
    is_filled = bool(sample.prompt) or sample.label is not None
    return is_filled and (sample.metadata or {}).get(ENVKIT_COLUMN) is None


def _column(sample: Sample) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sample's request and its own limits."""
    value: Any = (sample.metadata or {}).get(ENVKIT_COLUMN)
    try:
        data = dict(json.loads(value) if isinstance(value, str) else value or {})
        return data, dict(data.pop("limits", {}))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"metadata[{ENVKIT_COLUMN!r}] must be a JSON object, and so must its 'limits', "
            f"got {value!r:.80}"
        ) from error


def _limits(
    args: Namespace,
    config: RolloutConfig,
    row: dict[str, Any],
    params: Mapping[str, Any],
    *,
    evaluation: bool,
) -> Limits:
    """Return the tightest of the run's limits, the sample's own and those of slime's flags."""
    name = "eval_max_context_len" if evaluation else "rollout_max_context_len"
    own = RolloutConfig.from_mapping({"limits": row}).limits
    flags = Limits(
        # slime's response length bounds everything after the prompt, observations included, because
        # that is what a training row holds.
        max_response_tokens=params.get("max_new_tokens"),
        max_context_tokens=getattr(args, name, None),
    )
    return config.limits.tightest(own, flags)


def read_sampling(args: Namespace, params: Mapping[str, Any]) -> Sampling:
    """Return slime's sampling parameters as envkit's (slime/rollout/sglang_rollout.py).

    Raises:
        ConfigurationError: `max_new_tokens` is missing, or leaves no token.
    """
    left = {key: value for key, value in params.items() if key not in _DROPPED}
    tokens = left.pop("max_new_tokens", None)
    if not isinstance(tokens, int) or tokens < 1:
        raise ConfigurationError(
            f"sampling_params['max_new_tokens'] must be a positive number, got {tokens!r}"
        )
    named = read_shared(left, max_new_tokens=tokens, seed_key="sampling_seed")
    if not getattr(args, "use_rollout_routing_replay", False):
        return named
    return replace(named, extras={**named.extras, "return_routed_experts": True})


def _fields(sample: Sample, places: Collection[str]) -> dict[str, Any]:
    """Return what `task_fields` may name; images are encoded only for a task that takes them."""
    prompt = sample.prompt
    if not isinstance(prompt, str):
        prompt = text_of(prompt[-1]) if prompt else ""
    images = (sample.multimodal_inputs or {}).get("images") if "images" in places else None
    return {
        "prompt": prompt,
        "label": sample.label,
        "images": [Image.from_pil(picture).data_uri() for picture in images or ()],
        "metadata": sample.metadata,
    }
