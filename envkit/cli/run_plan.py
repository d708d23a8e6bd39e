"""Plan of a run of `envkit rollout` or `envkit eval`: episodes, settings and run directory."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from envkit.cli.engines import EngineChoice
from envkit.cli.play_options import DEFAULT_CONCURRENCY, PlayOptions
from envkit.cli.trust import Confirmation, trust_options
from envkit.errors import BusyError, ConfigurationError, StorageError
from envkit.registration import make
from envkit.rollout.config import RolloutConfig
from envkit.rollout.host import EnvFactory
from envkit.rollout.plan import RunPlan, Shard
from envkit.rollout.request import EpisodeRequest, read_requests
from envkit.rollout.run_claim import RunClaim
from envkit.rollout.run_folder import RunFolder, is_taken
from envkit.rollout.run_settings import changed_settings, command_settings
from envkit.rollout.sources import FunctionSource
from envkit.secrets import stored

RUNS: Final = "runs"
"""Default folder of runs."""
SHARD: Final = "shard"
"""Setting of a run that plays one of several shards."""
WHERE: Final = (
    "concurrency",
    "config.player",
    "config.player_options",
    "config.workers",
    "engine.base_url",
    "tasks.file",
)
"""Settings that decide where and how fast a run plays, and may change when it is resumed."""


class Output(StrEnum):
    """Output at the end of a run."""

    TABLE = "table"
    JSON = "json"
    NOTHING = "nothing"
    """No output: the run is part of an evaluation, which prints its own."""


def task_hash(requests: Sequence[EpisodeRequest]) -> str:
    """Return a hash of the requests of a task file, so that a resumed run plays the same tasks."""
    lines = "\n".join(request.to_column() for request in requests)
    return hashlib.sha256(lines.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """A run as a command asks for it: what is played, how, with which engine, into which folder."""

    config: RolloutConfig
    choice: EngineChoice
    run: RunPlan
    task_file: Path | None = None
    """Where the tasks of `run` come from; None if they are drawn with the seed."""
    task_hash: str | None = None
    """The `task_hash` of that file."""
    wraps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Arguments of each wrapper by its key in `envkit.wrappers.WRAPPERS`, the innermost first."""
    sinks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of the sinks by name."""
    out: Path | None = None
    """None uses the first free folder of `runs/`."""
    overwrite: bool = False
    is_resumed: bool = False
    """Whether `out` holds an interrupted run of this plan."""
    resume_or_start: bool = False
    """Whether to resume the run in `out` if there is one; see `begun`."""
    retry_faults: bool = False
    """Whether a resumed run plays its faulted episodes again."""
    recorded: Mapping[str, Any] | None = None
    """Settings of the interrupted run that this plan was read from."""
    is_quiet: bool = False
    output: Output = Output.TABLE

    def __post_init__(self) -> None:
        groups = self.run.episodes // self.run.group_size
        self.run.shard.check(groups, self.config.tail)
        if self.run.tasks is not None and groups > len(self.run.tasks):
            raise ConfigurationError(
                f"every group needs a task, but {self.task_file} has only "
                f"{len(self.run.tasks)} for {groups} groups, got -n {self.run.episodes} "
                f"--group {self.run.group_size}"
            )
        if self.resume_or_start and (self.out is None or self.overwrite):
            raise ConfigurationError(
                "--resume-or-start resumes the run in --out DIR if there is one: add --out"
                if self.out is None
                else "--overwrite replaces a run and --resume-or-start resumes it: drop one"
            )

    @classmethod
    def of_options(
        cls,
        given: PlayOptions,
        config: RolloutConfig,
        choice: EngineChoice,
        run: RunPlan,
        **more: Any,  # noqa: ANN401  # fields of the plan
    ) -> "RolloutPlan":
        """Return the plan of a new run.

        Args:
            given: The options that `rollout` and `eval` share.
            config: The resulting settings.
            choice: The engine.
            run: The episodes; their concurrency is that of the options.
            more: The plan's other fields.

        Raises:
            ConfigurationError: Options conflict.
        """
        return cls(
            config=config,
            choice=choice,
            run=replace(run, concurrency=given.concurrency or DEFAULT_CONCURRENCY),
            wraps=given.wrappers(),
            resume_or_start=given.resume_or_start,
            is_quiet=given.quiet,
            **more,
        )

    @classmethod
    def resumed(
        cls, folder: Path, confirmation: Confirmation, *, base_url: str | None
    ) -> "RolloutPlan":
        """Return the plan of an interrupted run.

        Args:
            folder: The run's folder.
            confirmation: Confirms what the run names.
            base_url: New address of its server; None uses the recorded one.

        Raises:
            StorageError: The folder is not a run.
            ConfigurationError: Another version of envkit created the run, it was changed, or the
                run names something that is not confirmed.
        """
        recorded = command_settings(folder)
        settings = confirmation.confirm(folder, {"": recorded})[""]
        plan = cls.of_settings(settings, base_url=base_url)
        return replace(plan, out=folder, is_resumed=True, recorded=recorded)

    @classmethod
    def of_settings(
        cls, settings: Mapping[str, Any], *, base_url: str | None = None
    ) -> "RolloutPlan":
        """Return the plan from an earlier plan's `settings`.

        Args:
            settings: JSON data, which `Confirmation.confirm` returned.
            base_url: New address of its server; None uses the recorded one.

        Raises:
            DatasetError: The task file cannot be read.
            ConfigurationError: A request does not match the run, or the tasks changed.
        """
        plan = cls(
            config=RolloutConfig.from_mapping(settings["config"]),
            choice=EngineChoice(
                **{one.name: settings["engine"][one.name] for one in fields(EngineChoice)}
            ).at(base_url),
            run=RunPlan(
                episodes=settings["episodes"],
                group_size=settings["group_size"],
                concurrency=settings["concurrency"],
                shard=shard_of(settings),
            ),
            wraps={name: settings["wrap_kwargs"].get(name, {}) for name in settings["wrap"]},
        )
        if (tasks := settings["tasks"]) is None:
            return plan
        file = Path(str(tasks.get("file")))
        requests = read_requests(file, plan.env_id)
        if task_hash(requests) != tasks.get("sha256"):
            raise ConfigurationError(
                f"the tasks in {file} were changed after the run started, so its groups would "
                "play different tasks; restore the file, or start a new run"
            )
        return plan.with_tasks(file, requests)

    def with_tasks(self, file: Path, requests: Sequence[EpisodeRequest]) -> "RolloutPlan":
        """Return the plan with a task for each group.

        Args:
            file: The task file.
            requests: What `read_requests` found in it.

        Raises:
            ConfigurationError: There are more groups than tasks.
        """
        tasks, seeds = [one.task for one in requests], [one.seed for one in requests]
        return replace(
            self,
            run=replace(self.run, tasks=tasks, seeds=seeds),
            task_file=file.resolve(),
            task_hash=task_hash(requests),
        )

    @property
    def env_id(self) -> str:
        """The environment; empty if an evaluation has yet to choose one."""
        return self.config.env_id or ""

    @property
    def to_play(self) -> int:
        """Number of episodes of the shard."""
        return self.run.shard.share(self.run.episodes, self.run.group_size)

    def environment(self) -> str | EnvFactory:
        """Return the environment's id, or a source that builds it with its wrappers."""
        if not self.wraps:
            return self.env_id
        from envkit.wrappers import Wrapped

        build = Wrapped(partial(make, self.env_id, **self.config.env_kwargs), self.wraps)
        return FunctionSource(self.env_id, build)

    def settings(self) -> dict[str, Any]:
        """Return everything that determines the episodes, as JSON data without secrets."""
        settings = {
            "env_id": self.env_id,
            "config": self.config.to_mapping(),
            "engine": asdict(self.choice),
            "episodes": self.run.episodes,
            "group_size": self.run.group_size,
            "concurrency": self.run.concurrency,
            "tasks": None
            if self.task_file is None
            else {"file": str(self.task_file), "sha256": self.task_hash},
            **self.wrap_settings(),
            **({SHARD: str(self.run.shard)} if self.run.shard.count > 1 else {}),
        }
        return stored(settings)

    def wrap_settings(self) -> dict[str, Any]:
        """Return the names of the wrappers in order, and the arguments of those that have any."""
        given = {name: dict(arguments) for name, arguments in self.wraps.items() if arguments}
        return {"wrap": [*self.wraps], "wrap_kwargs": given}

    def resume_options(self) -> str:
        """Return the options that resuming the run needs besides its folder."""
        return trust_options([self.settings()])

    def begun(self, claim: RunClaim) -> "RolloutPlan":
        """Return the plan as resumed if it may resume and the claimed folder holds a run.

        Raises:
            StorageError: The folder holds trajectories that are not of a run.
            ConfigurationError: The run has other settings, another version of envkit created it, or
                it was changed.
        """
        if not (self.resume_or_start and claim.had_run):
            return self
        recorded = command_settings(claim.path)
        check_unchanged(claim.path, recorded, self.settings(), besides=WHERE)
        return replace(self, is_resumed=True, recorded=recorded)

    def open(self, claim: RunClaim) -> RunFolder:
        """Open the run's folder for writing.

        Args:
            claim: The result of `claim`.

        Raises:
            StorageError: The folder already holds a run, or cannot be written.
            ConfigurationError: The run cannot be resumed.
        """
        if self.is_resumed:
            return claim.resume(self.recorded, retry_faults=self.retry_faults)
        return claim.create(self.settings(), overwrite=self.overwrite)

    def claim(self) -> RunClaim:
        """Claim the run's folder: the given one, else the first free one named after the run.

        Raises:
            StorageError: The folder that `--out` names already holds a run, is a file, or is being
                written by another process.
        """
        if self.out is None:
            return self._claim_numbered()
        self.check_out()
        claim = RunClaim(self.out)
        if claim.had_run and not self._may_have_run:
            claim.close()
            raise _taken(self.out)
        return claim

    def check_out(self) -> None:
        """Check that `--out` is not a file and does not hold another run.

        Raises:
            StorageError: It is, or does.
        """
        if self.out is None:
            return
        if self.out.exists() and not self.out.is_dir():
            raise StorageError(f"--out must be a folder, got the file {str(self.out)!r}")
        if is_taken(self.out) and not self._may_have_run:
            raise _taken(self.out)

    @property
    def _may_have_run(self) -> bool:
        """Whether `out` may hold a run already."""
        return self.overwrite or self.is_resumed or self.resume_or_start

    def _claim_numbered(self) -> RunClaim:
        wrap = "".join(f"-{name}" for name in self.wraps)
        stem = f"{self.env_id.replace('/', '-')}{wrap}-{self.choice.label}-seed{self.config.seed}"
        shard = self.run.shard
        if shard.count > 1:
            stem += f"-shard{shard.index}of{shard.count}"
        if self.overwrite:
            return RunClaim(Path(RUNS) / stem)
        for folder in numbered_folders(stem):
            if is_taken(folder):
                continue
            try:
                claim = RunClaim(folder)
            # Another command has just taken this number.
            except BusyError:
                continue
            # Between the check and the claim, another command may have begun and ended a run there.
            if not claim.had_run:
                return claim
            claim.close()
        raise AssertionError("the numbers do not end")


def check_unchanged(
    folder: Path,
    recorded: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    besides: Sequence[str],
) -> None:
    """Check that --resume-or-start was given the settings of what a folder holds.

    Args:
        folder: The folder.
        recorded: Its settings.
        settings: The given ones.
        besides: As for `changed_settings`.

    Raises:
        ConfigurationError: They differ.
    """
    changed = changed_settings(recorded, settings, besides=besides)
    if changed:
        raise ConfigurationError(
            f"{folder} was begun with other settings, which --resume-or-start cannot change: "
            f"{'; '.join(changed)}. Repeat its options, or choose another --out"
        )


def shard_of(settings: Mapping[str, Any]) -> Shard:
    """Return the shard of a run's settings; a run of its own is the only one."""
    return Shard.parse(settings.get(SHARD) or str(Shard()))


def numbered_folders(stem: str) -> Iterator[Path]:
    """Yield the folders of `runs/` for a name: the plain name, then numbered ones.

    Args:
        stem: The name.
    """
    yield Path(RUNS) / stem
    for number in count(2):
        yield Path(RUNS) / f"{stem}-{number}"


def _taken(out: Path) -> StorageError:
    return StorageError(
        f"{out} already holds a run: choose another --out, complete it with --resume {out}, or add "
        "--overwrite"
    )
