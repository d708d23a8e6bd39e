"""Requests of dataset rows: read from a row, or looked up by its prompt.

TRL passes only the prompt column to a `rollout_func`, so the request is looked up by its prompt in
the trainer's datasets.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from envkit.errors import ConfigurationError
from envkit.rollout.config import RolloutConfig
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest

_FIX = (
    f"build the dataset with envkit_trl.task_dataset, whose prompts are unique, and keep its "
    f"column {ENVKIT_COLUMN!r}"
)
_PROMPTS: Final = frozenset({"prompt", "environment"})
"""Columns that TRL itself needs: the prompt, and which of several factories plays the row."""


def row_request(row: Mapping[str, Any], config: RolloutConfig) -> EpisodeRequest:
    """Return what a dataset row asks for.

    A row of nothing but a prompt asks for a task that the environment draws: TRL needs a dataset
    even where no episode reads one.

    Args:
        row: A row of the dataset.
        config: Names the environment of rows without a request.

    Raises:
        ConfigurationError: The request cannot be read, or the row has other columns, which no
            episode reads, and the configuration does not say `draw_tasks`.
    """
    column = row.get(ENVKIT_COLUMN)
    given = {key for key, value in row.items() if value is not None}
    if column is None and given <= _PROMPTS:
        return EpisodeRequest.from_column(None, default=config.request())
    return config.row_request(column)


class RequestIndex:
    """The requests of datasets by their prompts."""

    def __init__(self, config: RolloutConfig) -> None:
        """Make an empty index.

        Args:
            config: Its environment is played if no dataset has requests, and fills in missing
                fields of requests.
        """
        self._config = config
        self._by_prompt: dict[str, EpisodeRequest] = {}

    def add(self, dataset: Any) -> None:  # noqa: ANN401  # of datasets, or rows, or None
        """Read a dataset's rows.

        Args:
            dataset: A Hugging Face dataset, a dictionary of them, rows, or None. A dataset without
                a column of requests adds nothing.

        Raises:
            ConfigurationError: Two rows have the same prompt but different requests, a request
                cannot be read, or no episode would read the dataset (`row_request`).
        """
        if dataset is None:
            return
        if isinstance(dataset, Mapping):
            for part in cast("Mapping[str, Any]", dataset).values():
                self.add(part)
            return
        for row in _rows(dataset, self._config):
            self._add_row(row)

    def find(self, prompt: object) -> EpisodeRequest:
        """Return the request of a prompt.

        Raises:
            ConfigurationError: No row has this prompt, and there is no default.
        """
        default = self._config.request()
        if not self._by_prompt and default is not None:
            return default
        found = self._by_prompt.get(canonical_prompt(prompt))
        if found is None:
            raise ConfigurationError(
                f"no dataset row with column {ENVKIT_COLUMN!r} has this prompt, and TRL "
                f"passes only prompts to a rollout_func; {_FIX}, or name env_id in the "
                f"configuration. Got {canonical_prompt(prompt):.200}"
            )
        return found

    def _add_row(self, row: Mapping[str, Any]) -> None:
        request = row_request(row, self._config)
        key = canonical_prompt(row.get("prompt"))
        if self._by_prompt.setdefault(key, request) != request:
            raise ConfigurationError(
                "two dataset rows have the same prompt but different requests, so a rollout_func "
                f"cannot distinguish them; {_FIX}. Got {key:.200}"
            )


def canonical_prompt(prompt: object) -> str:
    """Return a canonical text of a prompt.

    Null keys are dropped: datasets add them to make rows uniform.
    """
    return json.dumps(_plain(prompt), sort_keys=True, ensure_ascii=False, default=repr)


def _plain(value: Any) -> Any:  # noqa: ANN401  # any JSON
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return {key: _plain(entry) for key, entry in pairs if entry is not None}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(entry) for entry in cast("Sequence[Any]", value)]
    return value


def _rows(dataset: Any, config: RolloutConfig) -> Iterable[Mapping[str, Any]]:  # noqa: ANN401
    if not hasattr(dataset, "select_columns"):
        return dataset
    # None if a stream does not declare its columns
    columns: Sequence[str] | None = dataset.column_names
    if columns is not None and ENVKIT_COLUMN not in columns:
        if set(columns) - _PROMPTS:
            config.row_request(None)
        return ()
    if not hasattr(dataset, "__len__"):
        raise ConfigurationError(
            "a streamed dataset cannot be searched for prompts; pass its rows as rows= to "
            "make_rollout_func"
        )
    return dataset.select_columns(["prompt", ENVKIT_COLUMN])
