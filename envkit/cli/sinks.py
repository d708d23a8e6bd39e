"""Options for sinks that a rollout writes in addition to its run directory."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from envkit.errors import ConfigurationError
from envkit.plugins import load_plugin

if TYPE_CHECKING:
    from envkit.sinks import GuardedSinks, Received, Sink, SinkRun

GROUP: Final = "envkit.sinks"
"""Entry-point group of sinks, which are called with the option's value and the run."""
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
        help="Serve Prometheus metrics on 127.0.0.1; 0 uses a free port.",
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
    """None uses W&B's default."""
    parquet: Path | None = None
    """None for no parquet file."""
    metrics_port: int | None = None
    """None serves no metrics; 0 uses a free port."""
    otel: bool = False

    def __post_init__(self) -> None:
        if self.wandb_project is not None and not self.wandb:
            raise ConfigurationError("--wandb-project needs W&B: add --wandb")

    def open(self, run: "SinkRun") -> "GuardedSinks":
        """Open the sinks; if one fails, close the others.

        Raises:
            MissingDependencyError: An extra is not installed.
            ConfigurationError: The port is in use, or W&B cannot start.
            StorageError: A file or a folder cannot be written.
        """
        from envkit.sinks import GuardedSinks

        wanted: dict[str, object] = {  # sinks that fail fast come first
            "prometheus": self.metrics_port,
            "parquet": self.parquet,
            "tensorboard": self.tensorboard,
            "opentelemetry": self.otel or None,
            "wandb": (self.wandb_project or "") if self.wandb else None,
        }
        asked = {kind: value for kind, value in wanted.items() if value is not None}
        opened: dict[str, Sink] = {}
        received = {  # each command rewrites a parquet file
            kind: _received(kind, value, run) for kind, value in asked.items() if kind != "parquet"
        }
        with ExitStack() as undo:
            for kind, value in asked.items():
                this = replace(run, received=received.get(kind))
                opened[kind] = load_plugin(GROUP, kind, kind="sink")(value, this)
                undo.callback(opened[kind].close)
            undo.pop_all()
        return GuardedSinks(opened, received=received, tell=run.tell)


def _received(kind: str, value: object, run: "SinkRun") -> "Received":
    """Return what a sink has received.

    A run may be in several folders of TensorBoard. The names of its files there end with the key of
    their record.
    """
    from envkit.rollout.run_folder import RECEIVED_FILE
    from envkit.sinks import Received

    board = value if isinstance(value, Path) else None
    label = f"-{quote(value, safe='')}" if isinstance(value, str) and value else ""
    number = 0
    while True:
        name = RECEIVED_FILE.format(kind + (label if board is None else f"-{number}"))
        received = Received(run.directory / name, is_new=not run.is_resumed)
        if board is None or not received.count or any(board.glob(f"*.{received.key}")):
            return received
        number += 1
