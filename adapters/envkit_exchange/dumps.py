"""Trainers' debug dumps as trajectories."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from envkit.errors import ConfigurationError
from envkit.trajectory import Trajectory
from envkit_exchange.dump_slime import SlimeOptions, read_slime_dump
from envkit_exchange.dump_texts import read_skyrl_dump, read_trl_dump, read_verl_dump


class DumpFormat(StrEnum):
    """Whose dump it is."""

    SLIME = "slime"
    """`--save-debug-rollout-data`: ids, mask, log-probabilities, reward, text."""
    MILES = "miles"
    """The same."""
    VERL = "verl"
    """`trainer.rollout_data_dir`: text and score."""
    SKYRL = "skyrl"
    """`dumped_evals/`: text and score."""
    TRL = "trl"
    """`log_completions=True`: messages and rewards."""

    @property
    def has_ids(self) -> bool:
        """Whether the dump holds token ids, so that its trajectories can be trained on."""
        return self in (DumpFormat.SLIME, DumpFormat.MILES)


def read_dump(
    path: Path, kind: DumpFormat, options: SlimeOptions | None = None
) -> Iterator[Trajectory]:
    """Yield what a dump holds as trajectories.

    What it does not hold is listed in a trajectory's `metadata["missing"]`.

    Args:
        path: The file.
        kind: Who wrote it.
        options: How it is read; only the reward's key matters for dumps without ids.

    Raises:
        StorageError: It is no such dump.
        ConfigurationError: An option that the dump needs, or does not know.
        MissingDependencyError: The package that reads it is not installed.
    """
    given = options or SlimeOptions()
    if kind.has_ids:
        return read_slime_dump(path, given)
    _refuse_options(kind, given)
    if kind is DumpFormat.VERL:
        return read_verl_dump(path)
    if kind is DumpFormat.SKYRL:
        return read_skyrl_dump(path)
    return read_trl_dump(path, reward_key=given.reward_key)


def _refuse_options(kind: DumpFormat, options: SlimeOptions) -> None:
    wrong = {
        "--model": options.decode is not None,
        "--without-logprobs": options.without_logprobs,
        "--allow-pickle": options.allow_pickle,
        "--reward-key": options.reward_key is not None and kind is not DumpFormat.TRL,
    }
    named = [name for name, is_given in wrong.items() if is_given]
    if named:
        raise ConfigurationError(
            f"a dump of {kind} holds text alone and has no use for {', '.join(named)}"
        )
