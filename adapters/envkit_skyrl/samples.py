"""Read SkyRL's requests: one sample per entry of a generator's input."""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.errors import ConfigurationError
from envkit.messages import text_of
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.rollout.setup import EpisodeSpec, GroupStart
from envkit.seeds import derive_seed
from envkit_skyrl.options import SkyRLOptions
from envkit_skyrl.validation import TrajectoryId
from envkit_training.settings import with_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One episode that SkyRL requests."""

    trajectory_id: TrajectoryId | None
    request: EpisodeRequest | ConfigurationError
    """The error if the dataset row cannot be read."""
    spec: EpisodeSpec
    """Its group is the prompt, whose samples are compared. Its id is also the session id at the
    server: unique, because prompts repeat in every epoch."""


def read_samples(batch: Mapping[str, Any], options: SkyRLOptions, *, is_eval: bool) -> list[Sample]:
    """Return the samples of an input, in its order.

    Args:
        batch: SkyRL's input. Each entry of `env_extras` may hold the request under `ENVKIT_COLUMN`.
        options: Defaults for rows, the seed of the run, and the fields of a row's task.
        is_eval: Evaluation counts its prompts from 0 as training does, and gets its own seeds.

    Raises:
        ConfigurationError: The input has no prompt, or columns of different lengths.
    """
    prompts = batch["prompts"]
    extras = batch.get("env_extras") or [None] * len(prompts)
    ids = batch.get("trajectory_ids") or [None] * len(prompts)
    if not prompts or {len(extras), len(ids)} != {len(prompts)}:
        raise ConfigurationError(
            "a generator's input needs one env_extras and one trajectory id for each prompt, got "
            f"{len(prompts)} prompts, {len(extras)} env_extras and {len(ids)} trajectory ids"
        )
    starts: defaultdict[str, GroupStart] = defaultdict(GroupStart)
    run = (options.rollout.seed, *(("eval",) if is_eval else ()))
    samples: list[Sample] = []
    for place, (prompt, extra, identity) in enumerate(zip(prompts, extras, ids, strict=True)):
        group = f"row-{place}" if identity is None else identity.instance_id
        member = 0 if identity is None else identity.repetition_id
        seed = derive_seed("group", *run, group)
        task: Mapping[str, Any] | None = None
        request: EpisodeRequest | ConfigurationError
        try:
            request = _request(prompt, extra or {}, options)
            seed = seed if request.seed is None else request.seed
            task = request.task
        except ConfigurationError as error:
            request = error
        spec = EpisodeSpec(
            seed=seed,
            task=task,
            episode_id=f"{group}_{member}-{uuid.uuid4().hex[:8]}",
            group_id=group,
            group_start=starts[group],
            member=member,
        )
        samples.append(Sample(trajectory_id=identity, request=request, spec=spec))
    return samples


def _request(prompt: Any, extra: Mapping[str, Any], options: SkyRLOptions) -> EpisodeRequest:  # noqa: ANN401  # a conversation
    column: object = extra.get(ENVKIT_COLUMN)
    if not options.task_fields:
        return options.rollout.row_request(column)
    request = EpisodeRequest.from_column(column, default=options.rollout.request())
    return with_task(request, {**extra, "prompt": _parts(prompt)}, options.task_fields)


def _parts(prompt: Sequence[Any]) -> dict[str, Any]:
    """Return a prompt's last text, and all its images as data URIs."""
    parts = [
        part
        for message in prompt
        for part in (message["content"] if isinstance(message["content"], list) else ())
    ]
    return {
        "text": text_of(prompt[-1]) if prompt else "",
        "images": [part["image_url"]["url"] for part in parts if part["type"] == "image_url"],
    }
