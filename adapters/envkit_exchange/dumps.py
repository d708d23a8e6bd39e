"""Trainers' debug dumps as trajectories."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from envkit.errors import ConfigurationError
from envkit.trajectory import Trajectory
from envkit_exchange.dump_slime import SlimeOptions, read_slime_dump
from envkit_exchange.dump_texts import read_skyrl_dump, read_trl_dump, read_verl_dump


class DumpFormat(StrEnum):
    """The trainer that wrote a dump."""

    SLIME = "slime"
    """`--save-debug-rollout-data`: ids, mask, log-probabilities, reward, text."""
    MILES = "miles"
    """As for slime."""
    VERL = "verl"
    """`trainer.rollout_data_dir`: text and score."""
    SKYRL = "skyrl"
    """`dumped_evals/`: text and score."""
    TRL = "trl"
    """`log_completions=True`: messages and rewards."""

    @property
    def has_ids(self) -> bool:
        """Whether the dump holds token ids, so its trajectories can be trained on."""
        return self in (DumpFormat.SLIME, DumpFormat.MILES)


def read_dump(
    path: Path, kind: DumpFormat, options: SlimeOptions | None = None
) -> Iterator[Trajectory]:
    """Yield a dump's samples as trajectories.

    A trajectory's `metadata["missing"]` lists missing fields.

    Args:
        path: The file.
        kind: The trainer that wrote it.
        options: How to read it; dumps without ids only use the reward's key.

    Raises:
        StorageError: The file is not such a dump.
        ConfigurationError: An option is missing or does not apply to the dump.
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
            f"a dump of {kind} holds only text and does not use {', '.join(named)}"
        )
