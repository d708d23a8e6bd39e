"""Plan of an `envkit eval`: what it plays and how it counts, stored in `eval.json`."""

import contextlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import envkit
from envkit.cli.play_options import PlayOptions
from envkit.cli.run_plan import WHERE, Output, RolloutPlan, check_unchanged, numbered_folders
from envkit.cli.trust import Confirmation, trust_options
from envkit.errors import BusyError, ConfigurationError, StorageError
from envkit.files import remove_leftovers, replace_file, storage_errors
from envkit.folder_claim import FolderClaim
from envkit.registration import spec
from envkit.rollout.config import FaultPolicy
from envkit.rollout.run_folder import is_taken
from envkit.rollout.run_settings import command_settings
from envkit.viewer.documents import EVAL_FILE
from envkit_eval import TAGS, EvalRow, Price, check_pass_at, price_of, read_price
from envkit_eval.variants import VariantDifference, Wraps, check_tasks, folder_of, joined

LOCK_FILE: Final = ".eval.lock"
"""Locked while a command plays the evaluation; it remains if the command is killed."""
SCHEMA: Final = 2
"""Version of `eval.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How episodes are counted; does not affect what is played."""

    by: tuple[str, ...] = TAGS
    """Tags that results are grouped by."""
    pass_at: tuple[int, ...] = ()
    """Values of k; empty means 1, 2, 4, ... and all samples."""
    reward_threshold: float | None = None
    """Rewards from this on count as solved; None uses what the environments declare."""
    max_faults: float = 0.05
    """Maximum fraction of an environment's episodes that may fault, 0 to 1."""
    price: Price | None = None

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> "Counting":
        """Build from the form of `asdict`."""
        price = data["price"]
        return cls(
            by=tuple(data["by"]),
            pass_at=tuple(data["pass_at"]),
            reward_threshold=data["reward_threshold"],
            max_faults=data["max_faults"],
            price=None if price is None else price_of(price, EVAL_FILE),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """The runs of an evaluation, one per environment, in folders next to `eval.json`."""

    folder: Path
    runs: Mapping[str, RolloutPlan] = field(default_factory=dict[str, RolloutPlan])
    """Runs by folder name."""
    counting: Counting = field(default_factory=Counting)
    is_resumed: bool = False
    """Whether `eval.json` existed before this process."""

    @classmethod
    def read(
        cls,
        folder: Path,
        confirmation: Confirmation,
        *,
        base_url: str | None,
        is_quiet: bool,
        retry_faults: bool = False,
    ) -> "EvalPlan":
        """Return the plan of an existing evaluation, whose runs are resumed.

        Args:
            folder: Holds `eval.json`.
            confirmation: Confirms what the runs name.
            base_url: Current address of the server; None uses the recorded one.
            is_quiet: Whether to hide progress.
            retry_faults: Whether to play faulted episodes again.

        Raises:
            StorageError: The folder is not an evaluation.
            ConfigurationError: Another version of envkit made it, or a run names something that is
                not confirmed.
        """
        data = read_evaluation(folder)
        recorded = _recorded_runs(folder, data)
        known = {name: data["runs"][name] if one is None else one for name, one in recorded.items()}
        runs: dict[str, RolloutPlan] = {}
        for name, settings in confirmation.confirm(folder, known).items():
            runs[name] = replace(
                RolloutPlan.of_settings(settings, base_url=base_url),
                out=folder / name,
                is_resumed=recorded[name] is not None,
                recorded=recorded[name],
                is_quiet=is_quiet,
                output=Output.NOTHING,
                retry_faults=retry_faults,
            )
        counting = Counting.of_json(data["counting"])
        return cls(folder=folder, runs=runs, counting=counting, is_resumed=True)

    def resume_options(self) -> str:
        """Return the options that resuming the evaluation needs besides its folder."""
        return trust_options(run.settings() for run in self.runs.values())

    def continued(self) -> "EvalPlan":
        """Return the plan with what the folder holds of it, which must have the same settings.

        Raises:
            StorageError: The evaluation, or a run in the folder, cannot be read.
            ConfigurationError: The evaluation has other settings.
        """
        if not is_evaluation(self.folder):
            runs = {name: replace(run, resume_or_start=False) for name, run in self.runs.items()}
            return replace(self, runs=runs)
        data = read_evaluation(self.folder)
        recorded = _recorded_runs(self.folder, data)
        own = {name: run.settings() for name, run in self.runs.items()}
        besides = [f"{name}.{where}" for name in own.keys() | recorded.keys() for where in WHERE]
        begun = {name: one for name, one in recorded.items() if one is not None}
        for known in (data["runs"], {**data["runs"], **begun}):
            check_unchanged(self.folder, known, own, besides=besides)
        _check_first(self.folder, data["runs"], own)
        runs = {
            name: replace(
                run,
                resume_or_start=False,
                is_resumed=recorded[name] is not None,
                recorded=recorded[name],
            )
            for name, run in self.runs.items()
        }
        counting = Counting.of_json(data["counting"])
        return replace(self, runs=runs, counting=counting, is_resumed=True)

    def on_workers(self, given: PlayOptions) -> "EvalPlan":
        """Return the plan with the options for workers."""
        runs = {
            name: replace(run, config=given.on_workers(run.config))
            for name, run in self.runs.items()
        }
        return replace(self, runs=runs)

    def write(
        self,
        lines: Sequence[EvalRow] = (),
        compared: Sequence[VariantDifference] = (),
        *,
        is_complete: bool = False,
    ) -> dict[str, Any]:
        """Write `eval.json` and return what it holds.

        Args:
            lines: The figures so far.
            compared: What differs between variants.
            is_complete: Whether every run is complete.

        Raises:
            StorageError: It cannot be written.
        """
        document = {
            "schema": SCHEMA,
            "envkit": envkit.__version__,
            "is_complete": is_complete,
            "counting": asdict(self.counting),
            "lines": [line.to_json() for line in lines],
            "variants": [asdict(one) for one in compared],
            "runs": {name: plan.settings() for name, plan in self.runs.items()},
        }
        with storage_errors(f"cannot create {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / EVAL_FILE, json.dumps(document, indent=2).encode() + b"\n")
        return document


def read_evaluation(folder: Path) -> dict[str, Any]:
    """Return the contents of an `eval.json`.

    Raises:
        StorageError: The folder is not an evaluation.
        ConfigurationError: Another version of envkit made it.
    """
    file = folder / EVAL_FILE
    if not file.is_file():
        raise _not_evaluation(folder)
    try:
        data = cast("dict[str, Any]", json.loads(file.read_bytes()))
        schema, version = data["schema"], data["envkit"]
        is_whole = isinstance(data["runs"], dict) and isinstance(data["counting"], dict)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(f"{file} does not describe an evaluation: {error}") from error
    for name in data["runs"] if is_whole else ():
        if Path(name).name != name or not name:
            raise StorageError(
                f"{file} does not describe an evaluation: a run's folder must be in its own, "
                f"got {name!r:.80}"
            )
    if schema != SCHEMA or version != envkit.__version__ or not is_whole:
        raise ConfigurationError(
            f"{file} was made by envkit {version} (format {schema}); this is {envkit.__version__} "
            f"(format {SCHEMA}): use the version that made it, or start a new evaluation"
        )
    return data


def _recorded_runs(folder: Path, evaluation: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
    """Return the settings of an evaluation's runs by name; None for one that did not begin."""
    places = {name: folder / name for name in evaluation["runs"]}
    return {name: command_settings(p) if is_taken(p) else None for name, p in places.items()}


def _check_first(
    folder: Path, recorded: Mapping[str, Mapping[str, Any]], own: Mapping[str, Mapping[str, Any]]
) -> None:
    """Reject variants whose first is another one: it is what the others are compared with."""
    old, new = (
        {one["env_id"]: name for name, one in reversed(runs.items())}
        for runs in (dict(recorded), dict(own))
    )
    for env_id, name in new.items():
        if name != old[env_id]:
            raise ConfigurationError(
                f"{folder} compares its variants with {old[env_id]}, got {name} as the first: "
                "repeat its --vary, or choose another --out"
            )


def _not_evaluation(folder: Path) -> StorageError:
    return StorageError(f"{folder} is not the folder of an evaluation: it has no {EVAL_FILE}")


def is_evaluation(folder: Path) -> bool:
    """Return whether a folder holds an evaluation."""
    return (folder / EVAL_FILE).exists()


def new_evaluation(
    run: RolloutPlan,
    env_ids: Sequence[str],
    folder: Path,
    variants: Sequence[Wraps] = ({},),
) -> EvalPlan:
    """Return the plan of a new evaluation.

    Args:
        run: How every environment is played.
        env_ids: Environments; empty uses the run's own.
        folder: The evaluation's folder.
        variants: Wrappers of each variant, in addition to the run's own.

    Raises:
        UnknownNameError: No environment has the id.
        ConfigurationError: An id is repeated or names a folder, or settings conflict.
        StorageError: The folder already holds a run.
    """
    if run.config.on_fault is FaultPolicy.DROP_GROUP:
        raise ConfigurationError(
            "--on-fault drop_group would hide faulted episodes from the figures: use mask or retry"
        )
    if run.config.tail.cuts:
        raise ConfigurationError(
            "a tail that cuts long episodes would bias the figures; remove it: an evaluation plays "
            "every task"
        )
    named = list(env_ids) or ([run.env_id] if run.env_id else [])
    if not named:
        raise ConfigurationError("name an environment, or an evaluation with --resume")
    for env_id in named:
        _check_id(env_id, named)
    runs: dict[str, RolloutPlan] = {}
    for env_id in named:
        config = replace(run.config, env_id=env_id)
        for variant in variants:
            name = folder_of(env_id, variant, is_only=len(variants) == 1, taken=runs)
            wraps = joined(run.wraps, variant)
            if len(variants) > 1:
                check_tasks(wraps)
            runs[name] = replace(run, config=config, out=folder / name, wraps=wraps)
            runs[name].check_out()
    return EvalPlan(folder=folder, runs=runs)


def _check_id(env_id: str, named: Sequence[str]) -> None:
    if Path(env_id).is_dir():
        raise ConfigurationError(
            f"{env_id} is a folder, not an environment: complete an evaluation with "
            f"--resume {env_id}, or compare two with --paired"
        )
    if named.count(env_id) > 1:
        raise ConfigurationError(
            f"{env_id} is named twice: name each environment once; --group gives several "
            "episodes per task"
        )
    spec(env_id)  # rejects an unknown one, with a suggestion


@contextlib.contextmanager
def claimed(run: RolloutPlan) -> Generator[Path]:
    """Claim the folder of a new evaluation inside the block, and yield it.

    Args:
        run: Its `out` is the folder; None uses the next free one in `runs/`.

    Raises:
        StorageError: The folder already holds an evaluation, is a file, or is being written by
            another process.
    """
    if run.out is not None and run.out.exists() and not run.out.is_dir():
        raise StorageError(f"--out must be a folder, got the file {str(run.out)!r}")
    with ExitStack() as held:
        folder = _claim_numbered(run, held) if run.out is None else _claim(run.out, held)
        if is_evaluation(folder) and not (run.overwrite or run.resume_or_start):
            raise StorageError(
                f"{folder} already holds an evaluation: name another --out, complete it with "
                f"--resume {folder}, or add --overwrite"
            )
        yield folder


@contextlib.contextmanager
def claimed_again(folder: Path) -> Generator[None]:
    """Claim the folder of an existing evaluation inside the block.

    Raises:
        StorageError: The folder is not an evaluation, or is being written by another process.
    """
    if not is_evaluation(folder):
        raise _not_evaluation(folder)
    with ExitStack() as held:
        _claim(folder, held)
        yield


def _claim(folder: Path, held: ExitStack) -> Path:
    claim = FolderClaim(folder, LOCK_FILE)
    held.callback(claim.remove, also_found=True)
    remove_leftovers(folder)
    return folder


def _claim_numbered(run: RolloutPlan, held: ExitStack) -> Path:
    stem = f"eval-{run.choice.label}-seed{run.config.seed}"
    for folder in numbered_folders(stem):
        if run.overwrite:
            return _claim(folder, held)
        if is_evaluation(folder):
            continue
        with ExitStack() as tried, contextlib.suppress(BusyError):
            _claim(folder, tried)
            if not is_evaluation(folder):
                held.push(tried.pop_all())
                return folder
    raise AssertionError("the numbers do not end")


def counted_otherwise(
    plan: EvalPlan, changes: Mapping[str, Any], *, prices: Path | None
) -> EvalPlan:
    """Return the plan with changed counting.

    Args:
        plan: A new or an existing plan.
        changes: Fields of `Counting`; None keeps the plan's.
        prices: A file with the price of the plan's model; None keeps the plan's price.

    Raises:
        ConfigurationError: A k above the number of samples, or a file that is not one of prices.
        UnknownNameError: The file has no price for the model.
    """
    first = next(iter(plan.runs.values()))
    changed = {name: value for name, value in changes.items() if value is not None}
    if prices is not None:
        changed["price"] = read_price(prices, first.choice.model or first.choice.label)
    counting = replace(plan.counting, **changed)
    check_pass_at(counting.pass_at, first.run.group_size)
    return replace(plan, counting=counting)
