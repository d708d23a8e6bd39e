"""slime's and miles' rollout dumps: `--save-debug-rollout-data`, a torch file of sample dicts.

The file is `{"rollout_id": ..., "samples": [Sample.to_dict(), ...]}` (slime:
slime/observability/rollout_data_utils.py, `save_debug_rollout_data`; fields: slime/utils/types.py;
miles: miles/ray/rollout/debug_data.py). The file is a pickle, which can run any code, so only plain
data is loaded unless the caller trusts it.
"""

import importlib
import json
import math
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from envkit.errors import ConfigurationError, FaultKind, MissingDependencyError, StorageError
from envkit.messages import Message, message
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.success import finite
from envkit.trajectory import FaultPlace, FaultRecord, StopReason, Trajectory
from envkit_exchange.dump_ledger import Columns, Decode, conversation, rebuild
from envkit_exchange.dump_texts import prompt_messages

_ENDS: Final = {
    "completed": StopReason.TERMINATED,
    "truncated": StopReason.RESPONSE_TOKENS,
    "aborted": StopReason.ABORTED,
    "pending": StopReason.ABORTED,
    "failed": StopReason.ENV_FAULT,
}
"""How episodes end, by slime's `Sample.Status`."""
_REQUEST_KEYS: Final = ("env_id", "env_kwargs", "task", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimeOptions:
    """How to read a dump."""

    name: str = "slime"
    """The trainer's name, for ids."""
    reward_key: str | None = None
    """Key of the reward if it is a mapping, as the run's `--reward-key`."""
    decode: Decode | None = None
    """Decodes each turn's text; None keeps the response as one text."""
    without_logprobs: bool = False
    """Accept samples without log-probabilities; they become nan, which `envkit verify` reports."""
    allow_pickle: bool = False
    """Load objects of any class, which runs code from the file."""


def read_slime_dump(path: Path, options: SlimeOptions) -> Iterator[Trajectory]:
    """Yield the samples of a dump as trajectories.

    Raises:
        StorageError: The file is not such a dump, or a sample lacks a field.
        ConfigurationError: A reward is a mapping and no key is given.
        MissingDependencyError: torch is not installed.
    """
    loaded = _load(path, allow_pickle=options.allow_pickle)
    held = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    samples: object = held.get("samples")
    if not isinstance(samples, list):
        raise StorageError(
            f"{path} must hold a mapping with a list 'samples', as --save-debug-rollout-data "
            f"writes it, got {_shape(cast('object', loaded))}"
        )
    rollout = held.get("rollout_id", 0)
    for number, sample in enumerate(cast("list[Any]", samples)):
        if not isinstance(sample, dict):
            raise StorageError(f"{path}: sample {number} must be a mapping, got {_shape(sample)}")
        try:
            yield _trajectory(cast("dict[str, Any]", sample), number, rollout, options)
        except (StorageError, ConfigurationError) as error:
            raise type(error)(f"{path}: sample {number}: {error}") from error


def _load(path: Path, *, allow_pickle: bool) -> Any:  # noqa: ANN401  # whatever the file holds
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            "reading a slime dump", "torch", "transformers"
        ) from error
    plain = [np.ndarray, np.dtype, _reconstruct(), *_dtypes()]
    try:
        with torch.serialization.safe_globals(plain):
            return torch.load(path, map_location="cpu", weights_only=not allow_pickle)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        if found is None:  # not an object that could be allowed: text, or another format
            raise StorageError(f"{path} is not a torch file, as slime writes its dumps") from error
        what = f"an object of {found[1]}"
        raise StorageError(
            f"{path} holds {what}; loading it runs code from the file. If you trust it, add "
            "--allow-pickle"
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, KeyError) as error:
        raise StorageError(f"{path} is not a readable torch file: {error}") from error


def _reconstruct() -> Any:  # noqa: ANN401  # private to numpy, but what every pickled array names
    return importlib.import_module("numpy._core.multiarray")._reconstruct


def _dtypes() -> list[type]:
    return [type(np.dtype(name)) for name in ("int32", "int64", "float32", "float64", "bool")]


def _trajectory(
    sample: Mapping[str, Any], number: int, rollout: object, options: SlimeOptions
) -> Trajectory:
    stop_reason = _stop_reason(sample)
    missing = [] if sample.get("rollout_log_probs") is not None else ["log-probabilities"]
    if sample.get("multimodal_inputs") or sample.get("multimodal_train_inputs"):
        missing.append("images")
    unscored = stop_reason.is_fault or stop_reason is StopReason.ABORTED
    reward = None if unscored else _reward(sample, options.reward_key)
    columns = _columns(sample, reward, stop_reason, options)
    ledger = rebuild(columns, options.decode)
    if not ledger.turns and not unscored:
        raise StorageError("the model sampled no token, but the status is not aborted or failed")
    metadata: dict[str, Any] = sample.get("metadata") or {}
    request = _request(metadata, options.name)
    turns: tuple[Message, ...]
    if options.decode is not None:
        turns = conversation(ledger, options.decode)
    else:
        turns = (message("assistant", str(sample.get("response") or "")),)
    fault = FaultRecord(
        where=FaultPlace.STEP,
        kind=FaultKind.PERMANENT,
        message=f"{options.name} calls it failed",
    )
    group = sample.get("group_index")
    return Trajectory(
        episode_id=f"{options.name}-{rollout}-{sample.get('index', number)}-{number}",
        env_id=request.env_id,
        seed=request.seed,
        task=request.task or {},
        group_id=None if group is None else f"{options.name}-{rollout}-{group}",
        segments=ledger.segments,
        turns=ledger.turns,
        messages=(*prompt_messages(sample.get("prompt")), *turns),
        reward=reward,
        stop_reason=stop_reason,
        fault=fault if stop_reason.is_fault else None,
        engine=options.name,
        metadata={
            "imported_from": options.name,
            "missing": missing,
            "status": _status(sample),
            "dropped_tokens": ledger.dropped_tokens,
            "removed": bool(sample.get("remove_sample")),
            "label": sample.get("label"),
        },
    )


def _columns(
    sample: Mapping[str, Any], reward: float | None, stop: StopReason, options: SlimeOptions
) -> Columns:
    tokens = tuple(int(token) for token in _list(sample, "tokens"))
    length = int(sample.get("response_length") or 0)
    if not 0 <= length <= len(tokens):
        raise StorageError(f"response_length must be from 0 to {len(tokens)}, got {length}")
    mask = sample.get("loss_mask")
    logprobs = sample.get("rollout_log_probs")
    if logprobs is None and length and not options.without_logprobs:
        raise StorageError(
            "rollout_log_probs are missing, so it cannot be trained on off-policy; add "
            "--without-logprobs to import the rest"
        )
    split = len(tokens) - length
    return Columns(
        prompt_ids=tokens[:split],
        response_ids=tokens[split:],
        # slime trains on every token of a sample without a mask (slime/ray/rollout.py).
        loss_mask=(1,) * length if mask is None else tuple(int(value) for value in mask),
        logprobs=(math.nan,) * length if logprobs is None else tuple(float(v) for v in logprobs),
        weight_versions=tuple(str(version) for version in sample.get("weight_versions") or ()),
        reward=reward,
        is_cut=stop is StopReason.RESPONSE_TOKENS,
    )


def _list(sample: Mapping[str, Any], name: str) -> list[Any]:
    value = sample.get(name)
    if value is None or not hasattr(value, "__iter__"):
        raise StorageError(f"{name!r} must be a list, got {_shape(value)}")
    return list(value)


def _status(sample: Mapping[str, Any]) -> str:
    status = sample.get("status")
    return str(getattr(status, "value", status))


def _stop_reason(sample: Mapping[str, Any]) -> StopReason:
    status = _status(sample)
    if status not in _ENDS:
        raise StorageError(f"status must be one of {sorted(_ENDS)}, got {status!r}")
    return _ENDS[status]


def _reward(sample: Mapping[str, Any], key: str | None) -> float:
    reward = sample.get("reward")
    if isinstance(reward, Mapping):
        rewards = cast("Mapping[str, Any]", reward)
        if key is None or key not in rewards:
            raise ConfigurationError(
                f"the reward is a mapping: choose one of {sorted(rewards)} with --reward-key, got "
                f"{key!r}"
            )
        reward = rewards[key]
    number = finite(reward)
    if number is None:
        raise StorageError(f"the reward must be a finite number, got {reward!r:.80}")
    return number


def _request(metadata: Mapping[str, Any], name: str) -> EpisodeRequest:
    """Return the sample's request, if its metadata has one."""
    column: object = metadata.get(ENVKIT_COLUMN)
    try:
        data: object = json.loads(column) if isinstance(column, str) else column
        told = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        known = {key: value for key, value in told.items() if key in _REQUEST_KEYS}
        return EpisodeRequest.from_column(known, default=EpisodeRequest(env_id=name))
    except (ValueError, RecursionError):  # another package's settings under the same key
        return EpisodeRequest(env_id=name)


def _shape(value: object) -> str:
    if isinstance(value, dict):
        return f"a mapping with {sorted(map(str, cast('dict[Any, Any]', value)))[:8]}"
    return type(value).__name__
