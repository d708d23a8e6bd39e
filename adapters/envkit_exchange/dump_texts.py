"""Dumps that hold only text: verl's, SkyRL's and TRL's.

Decoding lost the ids, so these trajectories can be read, reported and compared by reward. envkit
never retokenizes them for training.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, StorageError
from envkit.messages import Message, Role, message
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.success import finite
from envkit.trajectory import StopReason, Trajectory, TurnRecord
from envkit_exchange.dump_ledger import UNKNOWN
from envkit_exchange.tables import arrow

MISSING: Final = ("ids", "loss mask", "log-probabilities", "images")
_ROLES: Final[tuple[Role, ...]] = ("system", "user", "assistant", "tool")


def read_verl_dump(path: Path) -> Iterator[Trajectory]:
    """Yield the lines of a file of `trainer.rollout_data_dir` or `trainer.validation_data_dir`.

    A line has `input`, `output`, `gts`, `score`, `step` and what the reward function added
    (verl/trainer/ppo/ray_trainer.py, `_write_generations`).

    Raises:
        StorageError: The file is not such a dump.
    """
    for number, row in _json_lines(path, ("input", "output", "score")):
        step, where = row.get("step", 0), f"{path}, line {number}"
        text = _text(row, "input", where)
        yield _trajectory(
            episode_id=f"verl-{step}-{number}",
            group_id=f"verl-{step}-{_digest(text)}",
            request=EpisodeRequest(env_id="verl"),
            messages=(message("user", text), message("assistant", _text(row, "output", where))),
            reward=_number(row["score"], "score", where),
            metadata={k: v for k, v in row.items() if k not in ("input", "output")},
        )


def read_skyrl_dump(path: Path) -> Iterator[Trajectory]:
    """Yield the lines of a data source's file in `dumped_evals/`.

    A line has `input_prompt`, `output_response`, `score`, `stop_reason`, `env_class`, `env_extras`
    and `data_source` (skyrl/train/utils/trainer_utils.py, `dump_per_dataset_eval_results`).

    Raises:
        StorageError: The file is not such a dump; `aggregated_results.jsonl` next to it has no
            responses.
    """
    for number, row in _json_lines(path, ("input_prompt", "output_response", "score")):
        where = f"{path}, line {number}"
        column: object = _mapping(row.get("env_extras")).get(ENVKIT_COLUMN)
        env_class = str(row.get("env_class") or "skyrl")
        score: object = row["score"]
        scores = cast("list[object]", score) if isinstance(score, list) else [score]
        text = _text(row, "input_prompt", where)
        reply = _text(row, "output_response", where)
        yield _trajectory(
            episode_id=f"skyrl-{number}",
            group_id=f"skyrl-{_digest(text)}",
            request=EpisodeRequest.from_column(column, default=EpisodeRequest(env_id=env_class)),
            messages=(message("user", text), message("assistant", reply)),
            reward=math.fsum(_number(value, "score", where) for value in scores),
            is_cut=str(row.get("stop_reason")) == "length",
            metadata={"stop_reason": row.get("stop_reason"), "data_source": row.get("data_source")},
        )


def read_trl_dump(path: Path, *, reward_key: str | None = None) -> Iterator[Trajectory]:
    """Yield the rows of a `completions/completions_NNNNN.parquet` of `log_completions=True`.

    A row has `step`, `prompt`, `completion`, `advantage` and a column per reward function
    (trl/trainer/grpo_trainer.py, `log`).

    Args:
        path: The file.
        reward_key: The reward's column; None uses the only one.

    Raises:
        StorageError: The file is not such a dump.
        ConfigurationError: Several numeric columns could be the reward.
        MissingDependencyError: pyarrow is not installed.
    """
    rows = _parquet_rows(path)
    if not rows or not {"prompt", "completion"} <= set(rows[0]):
        found = sorted(rows[0]) if rows else "no row"
        raise StorageError(f"{path} must have the columns prompt and completion, got {found}")
    key = _reward_column(rows, reward_key)
    for number, row in enumerate(rows):
        completion = prompt_messages(row["completion"], role="assistant")
        prompt = prompt_messages(row["prompt"])
        value = row[key]
        step = row.get("step", 0)
        yield _trajectory(
            episode_id=f"trl-{step}-{number}",
            group_id=f"trl-{step}-{_digest(repr(prompt))}",
            request=EpisodeRequest.from_column(
                row.get(ENVKIT_COLUMN), default=EpisodeRequest(env_id="trl")
            ),
            messages=(*prompt, *completion),
            # None in TRL means a rollout that could not be scored.
            reward=None if value is None else _number(value, key, f"{path}, line {number}"),
            metadata={"step": step, "advantage": row.get("advantage")},
        )


def prompt_messages(prompt: object, *, role: Role = "user") -> tuple[Message, ...]:
    """Return a dump's prompt as messages, without images, which dumps omit.

    Args:
        prompt: Text, or a list of messages in any of the trainers' forms.
        role: Role for a prompt that is text.
    """
    if not isinstance(prompt, Sequence) or isinstance(prompt, str):
        return (message(role, str(prompt)),) if prompt else ()
    found: list[Message] = []
    for entry in cast("Sequence[Any]", prompt):
        said = _mapping(entry) or {"content": entry}
        name: object = said.get("role")
        spoken = name if name in _ROLES else role
        found.append(message(spoken, _content(said.get("content"))))
    return tuple(found)


def _content(content: object) -> str:
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [_mapping(part) for part in cast("Sequence[object]", content)]
        return "".join(str(part.get("text") or "") for part in parts)
    return "" if content is None else str(content)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _trajectory(
    *,
    episode_id: str,
    group_id: str,
    request: EpisodeRequest,
    messages: tuple[Message, ...],
    reward: float | None,
    metadata: Mapping[str, Any],
    is_cut: bool = False,
) -> Trajectory:
    name = episode_id.partition("-")[0]
    said = [str(entry["content"]) for entry in messages if entry["role"] == "assistant"]
    stop = StopReason.RESPONSE_TOKENS if is_cut else StopReason.TERMINATED
    turn = TurnRecord(
        turn=0,
        prompt_tokens=0,
        response_text="\n".join(said),
        reward=reward,
        finish_reason="length" if is_cut else UNKNOWN,
    )
    return Trajectory(
        episode_id=episode_id,
        env_id=request.env_id,
        seed=request.seed,
        task=request.task or {},
        group_id=group_id,
        segments=(),
        turns=(turn,),
        messages=messages,
        reward=reward,
        stop_reason=StopReason.ABORTED if reward is None else stop,
        engine=name,
        metadata={"imported_from": name, "missing": list(MISSING), **metadata},
    )


def _json_lines(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, _json_row(line, needed, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def _json_row(line: str, needed: tuple[str, ...], where: str) -> dict[str, Any]:
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise StorageError(f"{where} must be a JSON object, got {type(row).__name__}")
    found = cast("dict[str, Any]", row)
    absent = [name for name in needed if name not in found]
    if absent:
        raise StorageError(
            f"{where} must have {list(needed)}, got {sorted(found)} without {absent}"
        )
    return found


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    pa = arrow()
    try:
        return pa.parquet.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{path} is not a readable parquet file: {error}") from error


def _reward_column(rows: Sequence[Mapping[str, Any]], key: str | None) -> str:
    others = {"step", "prompt", "completion", "advantage"}
    found = [
        name
        for name in rows[0]
        if name not in others
        and all(row[name] is None or isinstance(row[name], float) for row in rows)
    ]
    if key is None and len(found) == 1:
        return found[0]
    if key not in rows[0] or key is None:
        raise ConfigurationError(
            f"the reward may be any of {found}: choose its column with --reward-key, got {key!r}"
        )
    return key


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        raise StorageError(f"{where}: {key!r} must be a string, got {value!r:.80}")
    return value


def _number(value: object, key: str, where: str) -> float:
    number = finite(value)
    if number is None:
        raise StorageError(f"{where}: {key!r} must be a finite number, got {value!r:.80}")
    return number


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
