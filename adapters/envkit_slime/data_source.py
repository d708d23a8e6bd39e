"""A data source over an environment's own tasks: `--data-source-path envkit_slime.DataSource`."""

import logging
import random
from argparse import Namespace
from pathlib import Path
from typing import Any, cast

from envkit.env import Env
from envkit.errors import ConfigurationError
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.seeds import derive_seed
from envkit.tasks import ENDLESS_INDEX_LIMIT
from envkit_slime.settings import Settings
from envkit_slime.upstream import require

logger = logging.getLogger("envkit.slime")

_FORMAT = 1
_STATE = ("sample_group_index", "sample_index")


class DataSource:
    """Groups of samples for an environment's tasks, on the trainer's own data source.

    It needs no `--prompt-data`. With a finite list of tasks, every task appears once per epoch, in
    an order set by `--rollout-shuffle` and the seed; else every group draws its own from the run's
    seed. Groups that a rollout returns (aborted, with their partial episodes) are served first and
    are part of the checkpoint.
    """

    trainer = "slime"
    """The package whose data source and `Sample` are used."""

    def __init__(self, args: Namespace) -> None:
        """Build the environment once, to get its tasks.

        Args:
            args: slime's arguments; `args.envkit` names the environment.

        Raises:
            ConfigurationError: No environment is named, or it cannot be created.
        """
        self.args = args
        settings = Settings.from_args(args)
        request = settings.rollout.request()
        if request is None:
            raise ConfigurationError(
                "envkit_slime.DataSource needs 'env_id' in the mapping 'envkit' of "
                "--custom-config-path"
            )
        self._request = request
        self._seed = settings.rollout.seed
        env = request.factory()()
        try:
            self._tasks = cast("Env", env.unwrapped).tasks
        finally:
            env.close()
        upstream = require(f"{self.trainer}.rollout.data_source").RolloutDataSourceWithBuffer
        self._source: Any = upstream(Namespace(**{**vars(args), "rollout_global_dataset": False}))

    def __len__(self) -> int:
        """Return the number of tasks per epoch; a very large number for endless ones."""
        size = None if self._tasks is None else self._tasks.size
        return ENDLESS_INDEX_LIMIT if size is None else size

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Return groups: returned ones first, then new ones."""
        groups: list[list[Any]] = self._source.get_samples(num_samples)
        for group in groups:
            if ENVKIT_COLUMN in group[0].metadata:
                continue  # a returned group
            request = self._request_of(group[0].group_index)
            for sample in group:
                sample.prompt = f"[{request.env_id}]"
                sample.metadata[ENVKIT_COLUMN] = request.to_column()
        return groups

    def add_samples(self, samples: list[list[Any]]) -> None:
        """Return groups to the buffer."""
        self._source.add_samples(samples)

    def get_buffer_length(self) -> int:
        """Return the number of waiting groups."""
        return self._source.get_buffer_length()

    @property
    def buffer(self) -> list[list[Any]]:
        """The waiting groups."""
        return self._source.buffer

    def save(self, rollout_id: int | str) -> None:
        """Write the position and the buffer next to slime's checkpoint; blocks."""
        path = self._path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {name: getattr(self._source, name) for name in _STATE}
        buffer = [[sample.to_dict() for sample in group] for group in self.buffer]
        partial = path.with_suffix(".partial")
        require("torch").save({"format": _FORMAT, **state, "buffer": buffer}, partial)
        partial.replace(path)

    def load(self, rollout_id: int | str | None = None) -> None:
        """Restore the state of `save`; without such a file, start from the beginning.

        Args:
            rollout_id: Which rollout's file to read.

        Raises:
            ConfigurationError: The file was written by a newer envkit.
        """
        if getattr(self.args, "load", None) is None:
            return
        path = self._path(self.args.load, rollout_id)
        if not path.exists():
            logger.info("%s does not exist; the data source starts from the beginning", path)
            return
        state = require("torch").load(path, weights_only=False)
        if state.get("format", 0) > _FORMAT:
            raise ConfigurationError(
                f"{path} has format {state['format']}, this envkit reads up to {_FORMAT}"
            )
        read = require(f"{self.trainer}.utils.types").Sample.from_dict
        for name in _STATE:
            setattr(self._source, name, state[name])
        self._source.buffer = [[read(sample) for sample in group] for group in state["buffer"]]

    def _path(self, root: str, rollout_id: object) -> Path:
        return Path(root) / "rollout" / f"envkit_data_source_{rollout_id}.pt"

    def _request_of(self, number: int) -> EpisodeRequest:
        """Return the request of a group; a pure function of its index and the seed."""
        size = None if self._tasks is None else self._tasks.size
        task = None
        if self._tasks is not None and size is not None:
            epoch, place = divmod(number, size)
            task = self._tasks.task(self._order(epoch, size)[place])
        return EpisodeRequest(
            env_id=self._request.env_id,
            env_kwargs=self._request.env_kwargs,
            task=task,
            seed=derive_seed("group", self._seed, number),
        )

    def _order(self, epoch: int, size: int) -> list[int]:
        order = list(range(size))
        if getattr(self.args, "rollout_shuffle", False):
            random.Random(derive_seed("order", self._seed, epoch)).shuffle(order)
        return order
