"""What SkyRL asks for: one sample for each entry of a generator's input."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from envkit.errors import ConfigurationError
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.rollout.setup import GroupStart
from envkit.seeds import derive_seed
from envkit_skyrl.contracts import GeneratorInput, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One episode that SkyRL asks for."""

    group: str
    """The prompt's id; samples of one prompt are compared."""
    member: int
    trajectory_id: TrajectoryId | None
    request: EpisodeRequest | ConfigurationError
    """The error where the dataset's row cannot be read."""
    seed: int
    """Of the environment, equal in a group."""
    start: GroupStart
    """Shared by a group, whose members must start from the same observation."""
    episode_id: str
    """Also the session at the server: unique, because a prompt comes back in every epoch."""


@dataclass(frozen=True, slots=True)
class _Groups:
    starts: dict[str, GroupStart] = field(default_factory=dict[str, GroupStart])

    def start(self, group: str) -> GroupStart:
        return self.starts.setdefault(group, GroupStart())


def read_samples(
    batch: GeneratorInput, *, default: EpisodeRequest | None, seed: int, is_eval: bool
) -> list[Sample]:
    """Return the samples of an input, in its order.

    Args:
        batch: SkyRL's input. Each entry of `env_extras` may hold the request under `ENVKIT_COLUMN`.
        default: What rows leave out.
        seed: Of the run.
        is_eval: Evaluation counts its prompts from 0 as training does, and gets seeds of its own.

    Raises:
        ConfigurationError: The input has no prompt, or columns of different lengths.
    """
    count = len(batch["prompts"])
    extras = batch.get("env_extras") or [None] * count
    ids = batch.get("trajectory_ids") or [None] * count
    if not count or len(extras) != count or len(ids) != count:
        raise ConfigurationError(
            "a generator's input needs one env_extras and one trajectory id for each prompt, got "
            f"{count} prompts, {len(extras)} env_extras and {len(ids)} trajectory ids"
        )
    groups = _Groups()
    phase = ("eval",) if is_eval else ()
    return [
        _sample(place, extra, identity, default, (seed, *phase), groups)
        for place, (extra, identity) in enumerate(zip(extras, ids, strict=True))
    ]


def _sample(
    place: int,
    extra: Any,  # noqa: ANN401  # a dataset's row
    identity: TrajectoryId | None,
    default: EpisodeRequest | None,
    seed: Iterable[object],
    groups: _Groups,
) -> Sample:
    group = f"row-{place}" if identity is None else identity.instance_id
    member = 0 if identity is None else identity.repetition_id
    column = extra.get(ENVKIT_COLUMN) if isinstance(extra, dict) else None
    request: EpisodeRequest | ConfigurationError
    try:
        request = EpisodeRequest.from_column(column, default=default)
        own = request.seed
    except ConfigurationError as error:
        request, own = error, None
    return Sample(
        group=group,
        member=member,
        trajectory_id=identity,
        request=request,
        seed=derive_seed("group", *seed, group) if own is None else own,
        start=groups.start(group),
        episode_id=f"{group}_{member}-{uuid.uuid4().hex[:8]}",
    )
