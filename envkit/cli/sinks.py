"""Options for sinks of a rollout in addition to its run directory."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from envkit.errors import ConfigurationError

if TYPE_CHECKING:
    from envkit.rollout import RolloutState
    from envkit.sinks import GuardedSinks, Sink

_PANEL: Final = "Sinks"

TensorBoardDir = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard", metavar="DIR", help="Write TensorBoard's files.", rich_help_panel=_PANEL
    ),
]
WithWandb = Annotated[
    bool,
    typer.Option("--wandb", help="Log to W&B; offline without an API key.", rich_help_panel=_PANEL),
]
WandbProject = Annotated[
    str | None,
    typer.Option("--wandb-project", metavar="NAME", help="W&B's project.", rich_help_panel=_PANEL),
]
ParquetFile = Annotated[
    Path | None,
    typer.Option(
        "--parquet", metavar="FILE", help="Write one row per episode.", rich_help_panel=_PANEL
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Serve Prometheus metrics on 127.0.0.1; 0 takes a free port.",
        rich_help_panel=_PANEL,
    ),
]
WithOtel = Annotated[
    bool,
    typer.Option("--otel", help="Send OpenTelemetry spans; see OTEL_*.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkChoice:
    """The requested sinks."""

    tensorboard: Path | None = None
    """Directory of the event files; None for no TensorBoard."""
    wandb: bool = False
    wandb_project: str | None = None
    """None takes W&B's own default."""
    parquet: Path | None = None
    """None for no parquet file."""
    metrics_port: int | None = None
    """None serves nothing; 0 takes a free port."""
    otel: bool = False

    def __post_init__(self) -> None:
        if self.wandb_project is not None and not self.wandb:
            raise ConfigurationError("--wandb-project is that of a W&B run: add --wandb")

    def open(
        self,
        *,
        name: str,
        config: Mapping[str, Any],
        state: "RolloutState",
        overwrite: bool,
        tell: Callable[[str], None] | None,
    ) -> "GuardedSinks":
        """Open the sinks; one that cannot be opened closes the others.

        Args:
            name: Name of the run.
            config: What is played and how, for W&B.
            state: The rollout's progress, for Prometheus.
            overwrite: Replace a parquet file that is there.
            tell: Receives lines: where to look, and failures of sinks; None when quiet.

        Raises:
            MissingDependencyError: An extra is not installed.
            ConfigurationError: The port is taken, or W&B cannot start.
            StorageError: A file or a folder cannot be written.
        """
        from envkit.sinks import GuardedSinks, OpenTelemetrySink, ParquetSink, TensorBoardSink

        opened: dict[str, Sink] = {}
        with ExitStack() as undo:

            def keep(kind: str, sink: "Sink") -> None:
                opened[kind] = sink
                undo.callback(sink.close)

            # Cheap sinks that may fail come first.
            if self.metrics_port is not None:
                keep("prometheus", _prometheus(self.metrics_port, state, tell))
            if self.parquet is not None:
                keep("parquet", ParquetSink(self.parquet, overwrite=overwrite))
            if self.tensorboard is not None:
                keep("tensorboard", TensorBoardSink(self.tensorboard))
            if self.otel:
                keep("opentelemetry", OpenTelemetrySink())
            if self.wandb:
                keep("wandb", _wandb(self.wandb_project, name, config, tell))
            undo.pop_all()
        return GuardedSinks(opened, tell=tell)


def _prometheus(port: int, state: "RolloutState", tell: Callable[[str], None] | None) -> "Sink":
    from envkit.sinks import PrometheusSink

    sink = PrometheusSink(port=port, in_flight=lambda: state.in_flight, asked=lambda: state.total)
    if tell is not None:
        tell(f"metrics: {sink.url}")
    return sink


def _wandb(
    project: str | None, name: str, config: Mapping[str, Any], tell: Callable[[str], None] | None
) -> "Sink":
    from envkit.sinks import WandbSink

    sink = WandbSink(project=project, name=name, config=config)
    if tell is not None and sink.mode == "offline":
        tell(f"W&B offline; upload it with: wandb sync {sink.directory}")
    return sink
