"""Recorded trajectories: envkit's own and yours.

A folder of recordings is a run directory (`trajectories.jsonl` and `images/`) plus the outputs of
the image processor, so replaying needs no model. `scripts/record_conformance.py` writes the shipped
ones.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, cast
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from envkit.errors import ConfigurationError, StorageError
from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures
from envkit.tokens.joining import CONCATENATION, Joining
from envkit.trajectory import Segment, StopReason, Trajectory, TrajectoryWriter, read_trajectories
from envkit.trajectory.storage import trajectory_file
from envkit_conformance.delivered import Content

FEATURES_FILE: Final = "features.npz"
NAME_KEY: Final = "recording"
"""Metadata key: the recording's name, by default the episode's id."""
ABOUT_KEY: Final = "about"
"""Metadata key: one sentence about the recording."""
FILLER_KEY: Final = "filler_id"
"""Metadata key: the filler id for positions where no token was sampled."""
_COUNT: Final = "token_count"
_JOINING: Final = "joining"
"""Features that are not joined by concatenation along the first axis."""

Process = Callable[[Sequence[Image]], Sequence[ImageFeatures]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One trajectory that adapters are checked with."""

    name: str
    about: str
    trajectory: Trajectory
    filler_id: int
    contents: frozenset[Content]
    """What a trainer must be able to accept."""

    @property
    def has_features(self) -> bool:
        """Whether every image has its image processor outputs."""
        return all(len(s.features) == len(s.images) for s in self.trajectory.segments)


@cache
def shipped_recordings() -> tuple[Recording, ...]:
    """Return envkit's own recordings, cached."""
    return load_recordings(Path(__file__).parent / "recordings")


def load_recordings(
    directory: str | os.PathLike[str], *, process: Process | None = None
) -> tuple[Recording, ...]:
    """Read the recordings of a folder, or the trajectories of any run.

    Aborted trajectories are skipped: a trainer receives them only once resumed.

    Args:
        directory: A run directory or a trajectory file.
        process: Computes missing processor outputs, such as `ChatCodec.image_features`. None leaves
            them out; tensors are then not compared.

    Raises:
        StorageError: A file cannot be read.
        ConfigurationError: It holds nothing to check with.
    """
    file = trajectory_file(directory)
    kept = _read_features(file.with_name(FEATURES_FILE))
    recordings = tuple(
        _recording(_with_features(trajectory, kept, process))
        for trajectory in read_trajectories(file)
        if trajectory.stop_reason is not StopReason.ABORTED
    )
    if not recordings:
        raise ConfigurationError(
            f"{file} must hold at least one trajectory that was not aborted, got none"
        )
    return recordings


def save_recordings(trajectories: Iterable[Trajectory], directory: str | os.PathLike[str]) -> None:
    """Write trajectories with their features to a folder, replacing the recordings in it.

    Raises:
        StorageError: The folder cannot be written.
        ConfigurationError: An image has different features in two trajectories, so two processors
            made them; each processor's recordings need their own folder.
    """
    features: dict[str, ImageFeatures] = {}
    with TrajectoryWriter(directory, mode="overwrite") as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
            for segment in trajectory.segments:
                for image, made in zip(segment.images, segment.features, strict=False):
                    if not _equal(features.setdefault(image.sha256, made), made):
                        raise ConfigurationError(
                            f"image {image.sha256[:12]} has two kinds of features; record each "
                            "image processor in its own folder"
                        )
    columns: dict[str, NDArray[Any]] = {}
    for sha256, made in sorted(features.items()):
        columns[f"{sha256}.{_COUNT}"] = np.asarray(made.token_count)
        if not made.joining.is_plain:
            columns[f"{sha256}.{_JOINING}"] = np.asarray(made.joining.to_json())
        columns |= {f"{sha256}.{key}": array for key, array in sorted(made.tensors.items())}
    try:
        np.savez_compressed(Path(directory) / FEATURES_FILE, **columns)  # pyright: ignore[reportArgumentType]  # its stubs take a flag among the arrays
    except OSError as error:
        raise StorageError(f"cannot write {FEATURES_FILE} in {directory}: {error}") from error


def _recording(trajectory: Trajectory) -> Recording:
    data = trajectory.metadata
    name, about, filler = data.get(NAME_KEY), data.get(ABOUT_KEY), data.get(FILLER_KEY)
    return Recording(
        name=name if isinstance(name, str) else trajectory.episode_id,
        about=about if isinstance(about, str) else f"an episode of {trajectory.env_id}",
        trajectory=trajectory,
        filler_id=filler if isinstance(filler, int) else _any_id(trajectory),
        contents=_contents(trajectory),
    )


def _contents(trajectory: Trajectory) -> frozenset[Content]:
    """Return what a trainer must be able to accept for this trajectory."""
    found: set[Content] = set()
    if any(segment.images for segment in trajectory.segments):
        found.add(Content.IMAGES)
    if (
        trajectory.has_ledger
        and not trajectory.is_faulted
        and len(trajectory.steps(merge=True)) > 1
    ):
        found.add(Content.SEQUENCES)
    if not trajectory.has_ledger:
        found.add(Content.NO_LEDGER)
    return frozenset(found)


def _any_id(trajectory: Trajectory) -> int:
    """Return a token that the model's vocabulary certainly has."""
    ids = [segment.train_ids[-1] for segment in trajectory.segments if segment.train_ids]
    return ids[-1] if ids else 0


def _with_features(
    trajectory: Trajectory, kept: Mapping[str, ImageFeatures], process: Process | None
) -> Trajectory:
    def complete(segment: Segment) -> Segment:
        if not segment.images:
            return segment
        if all(image.sha256 in kept for image in segment.images):
            features = [kept[image.sha256] for image in segment.images]
        elif process is not None:
            features = process(segment.images)
        else:
            return segment
        return replace(segment, features=tuple(features))

    return replace(trajectory, segments=tuple(complete(s) for s in trajectory.segments))


def _read_features(file: Path) -> dict[str, ImageFeatures]:
    if not file.is_file():
        return {}
    columns: dict[str, dict[str, NDArray[Any]]] = {}
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            for key in cast("Mapping[str, Any]", stored):
                sha256, _, name = key.partition(".")
                array: NDArray[Any] = stored[key]
                array.flags.writeable = False  # every adapter receives the same array
                columns.setdefault(sha256, {})[name] = array
        counts = {sha256: int(tensors.pop(_COUNT)) for sha256, tensors in columns.items()}
        joinings = {
            sha256: Joining.from_json(str(tensors.pop(_JOINING)))
            for sha256, tensors in columns.items()
            if _JOINING in tensors
        }
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise StorageError(f"cannot read {file}: {error}") from error
    return {
        sha256: ImageFeatures(
            tensors=tensors, token_count=counts[sha256], joining=joinings.get(sha256, CONCATENATION)
        )
        for sha256, tensors in columns.items()
    }


def _equal(one: ImageFeatures, other: ImageFeatures) -> bool:
    return (
        (one.token_count, one.joining) == (other.token_count, other.joining)
        and set(one.tensors) == set(other.tensors)
        and all(np.array_equal(one.tensors[key], other.tensors[key]) for key in one.tensors)
    )
