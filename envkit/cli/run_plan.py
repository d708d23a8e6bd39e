"""What one `envkit rollout` does, and where it puts it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from envkit.cli.engines import EngineChoice
from envkit.cli.sinks import SinkChoice
from envkit.errors import ConfigurationError, StorageError
from envkit.registration import make
from envkit.rollout import FaultPolicy, Limits, RetryBudget, Sampling
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.trajectory.storage import FILE_NAME

_RUNS: Final = "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The options of a rollout, read and checked."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    choice: EngineChoice
    episodes: int
    group_size: int
    concurrency: int
    seed: int
    limits: Limits
    retries: RetryBudget
    sampling: Sampling
    on_fault: FaultPolicy
    wrap: str | None
    """A key of `envkit.wrappers.WRAPPERS`; None plays the environment as it is."""
    wrap_kwargs: Mapping[str, Any]
    """Arguments of the wrapper; empty without one."""
    sinks: SinkChoice
    out: Path | None
    """None takes the first free folder of `runs/`."""
    overwrite: bool
    is_quiet: bool
    as_json: bool

    def __post_init__(self) -> None:
        if self.episodes % self.group_size:
            raise ConfigurationError(
                f"-n counts episodes and must be a multiple of --group, got -n {self.episodes} "
                f"--group {self.group_size}"
            )
        if self.wrap_kwargs and self.wrap is None:
            raise ConfigurationError("--wrap-kwargs are those of a wrapper: add --wrap NAME")

    def environment(self) -> str | EnvFactory:
        """Return the environment's id, or what builds it in its wrapper."""
        if self.wrap is None:
            return self.env_id
        from envkit.wrappers import wrapping

        wrap = wrapping(self.wrap, self.wrap_kwargs)

        def build() -> AnyEnv:
            return wrap(make(self.env_id, **self.env_kwargs))

        build.__name__ = self.env_id  # what the records call the environment
        return build

    def config(self) -> dict[str, Any]:
        """Return what is played and how, as JSON data."""
        choice = self.choice
        return {
            "env_id": self.env_id,
            "env_kwargs": dict(self.env_kwargs),
            "engine": choice.label,
            "model": choice.model,
            "episodes": self.episodes,
            "group_size": self.group_size,
            "concurrency": self.concurrency,
            "seed": self.seed,
            "limits": asdict(self.limits),
            "retries": asdict(self.retries),
            "sampling": asdict(self.sampling),
            "on_fault": self.on_fault.value,
            "wrap": self.wrap,
            "wrap_kwargs": dict(self.wrap_kwargs),
        }

    def directory(self) -> Path:
        """Return the run directory: the one named, else one named after what is played.

        Raises:
            StorageError: The named one holds a run already, or is a file.
        """
        if self.out is not None:
            if self.out.exists() and not self.out.is_dir():
                raise StorageError(f"--out must be a folder, got the file {str(self.out)!r}")
            if _is_taken(self.out) and not self.overwrite:
                raise StorageError(
                    f"{self.out} holds a run already: name another --out, or add --overwrite"
                )
            return self.out
        wrap = "" if self.wrap is None else f"-{self.wrap}"
        stem = f"{self.env_id.replace('/', '-')}{wrap}-{self.choice.label}-seed{self.seed}"
        base = Path(_RUNS) / stem
        if self.overwrite or not _is_taken(base):
            return base
        number = 2
        while _is_taken(base.with_name(f"{stem}-{number}")):
            number += 1
        return base.with_name(f"{stem}-{number}")


def _is_taken(folder: Path) -> bool:
    file = folder / FILE_NAME
    return file.is_file() and file.stat().st_size > 0
