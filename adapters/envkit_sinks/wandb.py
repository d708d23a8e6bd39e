"""Log a run to Weights & Biases, offline without an API key; never prompts or waits."""

import netrc
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from envkit.errors import ConfigurationError, MissingDependencyError, ServiceError
from envkit.messages import text_of
from envkit.text import utf8
from envkit.trajectory.trajectory import Trajectory
from envkit_sinks.window import Window, episode_figures, shown_images

WandbMode = Literal["online", "offline", "disabled"]

_HOST: Final = "https://api.wandb.ai"
_COLUMNS: Final = (
    "episode_id",
    "env_id",
    "reward",
    "stop_reason",
    "turns",
    "last_reply",
)
_INIT_SECONDS: Final = 30.0
_STEP: Final = "step"
_EPISODE: Final = "episode/number"
_TABLE: Final = "shown_episodes"
_IMAGES: Final = "shown_images"


class WandbSink:
    """A separate W&B run, even if a trainer has its own run open.

    - `episode/...`: reward, turns, tokens, seconds and faulted of every episode, over
      `episode/number`;
    - every metric of `write_metrics`, over `step`; the last values become the run's summary;
    - `histogram/...` of the episodes since the last call, a table of the first `shown_episodes` of
      them, and `shown_images`, the last image of each.
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        directory: str | os.PathLike[str] | None = None,
        mode: WandbMode | None = None,
        shown_episodes: int = 16,
        run_id: str | None = None,
        start: int = 0,
    ) -> None:
        """Start a run, or continue one.

        Args:
            project: None uses WANDB_PROJECT, or else W&B's default.
            name: Display name of the run; None lets W&B choose.
            config: Settings of the run, as JSON data.
            directory: Parent of the folder `wandb`; None uses WANDB_DIR, or else the current
                folder.
            mode: None uses WANDB_MODE. If that is not set, the mode is "online" with an API key
                (WANDB_API_KEY or a netrc file) and "offline" without.
            shown_episodes: Rows of each step's table.
            run_id: W&B's id of the run. Online, a run with this id is continued; offline, `wandb
                sync` joins the folders of one id. None starts a run.
            start: Number of episodes that the run has; the next one gets the number after.

        Raises:
            MissingDependencyError: wandb is not installed.
            ConfigurationError: The mode is online, but there is no API key.
            ServiceError: The server does not answer.
        """
        try:
            self._wandb: Any = import_module("wandb")
        except ImportError as error:
            raise MissingDependencyError.for_extra("the sink for W&B", "wandb", "wandb") from error
        self.mode: Final = chosen_mode(mode)
        self._run: Any = self._started(project, name, dict(config or {}), directory, run_id)
        self._run.define_metric(_EPISODE, hidden=True)
        self._run.define_metric("episode/*", step_metric=_EPISODE)
        self._window = Window(shown_episodes=shown_episodes)
        self._over_steps: set[str] = set()
        self._count = start
        # W&B counts calls of `log`: at most three per episode so far. Online, its server knows.
        self._next_call = 3 * start if start and self.mode == "offline" else None
        self._is_closed = False

    @property
    def directory(self) -> Path:
        """Folder of the run; `wandb sync` uploads an offline one."""
        return Path(self._run.dir).parent

    def write(self, trajectory: Trajectory) -> None:
        """Add the figures of one episode."""
        self._count += 1
        self._window.add(trajectory)
        figures = {f"episode/{name}": value for name, value in episode_figures(trajectory).items()}
        self._log({_EPISODE: self._count, **figures})

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add metrics, and histograms and a table of the episodes since the last call."""
        at = self._count if step is None else step
        self._log_at(at, {**metrics, **self._shown()})

    def close(self) -> None:
        """Log remaining data and finish the run."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._window.count:
                self._log_at(self._count, self._shown())
        finally:
            self._run.finish()

    def _started(
        self,
        project: str | None,
        name: str | None,
        config: dict[str, Any],
        directory: str | os.PathLike[str] | None,
        run_id: str | None,
    ) -> Any:  # noqa: ANN401  # wandb's run
        settings = self._wandb.Settings(
            console="off",  # it would take over the terminal that shows progress
            silent=True,
            init_timeout=_INIT_SECONDS,
        )
        try:
            return self._wandb.init(
                project=project,
                name=name,
                config=config,
                # W&B itself would take the folder in which the process first used it.
                dir=str(directory or os.environ.get("WANDB_DIR") or Path.cwd()),
                mode=self.mode,
                id=run_id,
                resume="allow" if run_id and self.mode == "online" else None,
                reinit="create_new",
                settings=settings,
            )
        except self._wandb.Error as error:
            raise ServiceError(
                f"W&B failed to start a run ({error}); set WANDB_MODE=offline to keep it on this "
                "machine, and upload it later with `wandb sync`"
            ) from error

    def _log_at(self, step: int, values: Mapping[str, Any]) -> None:
        for name in values.keys() - self._over_steps:
            self._run.define_metric(name, step_metric=_STEP)
        self._over_steps |= values.keys()
        self._log({_STEP: step, **values})

    def _log(self, values: Mapping[str, Any]) -> None:
        self._run.log(values, step=self._next_call, commit=True)
        self._next_call = None

    def _shown(self) -> dict[str, Any]:
        """Return histograms and the table, and start the next step."""
        shown: dict[str, Any] = {
            f"histogram/{name}": self._wandb.Histogram(
                np_histogram=(list(histogram.counts), list(histogram.edges))
            )
            for name, histogram in self._window.histograms().items()
        }
        if self._window.shown:
            rows = [self._row(trajectory) for trajectory in self._window.shown]
            shown[_TABLE] = self._wandb.Table(columns=list(_COLUMNS), data=rows)
        if pictures := [p for trajectory in self._window.shown for p in self._picture(trajectory)]:
            shown[_IMAGES] = pictures  # not in the table, which would lose them offline
        self._window.restart()
        return shown

    def _picture(self, trajectory: Trajectory) -> list[Any]:
        """Return the last image of an episode, if it has any."""
        caption = f"{utf8(trajectory.episode_id)}: {trajectory.reward}, {trajectory.stop_reason}"
        return [
            self._wandb.Image(image.pil(), caption=caption)
            for image in shown_images(trajectory)[-1:]
        ]

    def _row(self, trajectory: Trajectory) -> list[Any]:
        return [
            utf8(trajectory.episode_id),
            trajectory.env_id,
            trajectory.reward,
            trajectory.stop_reason.value,
            trajectory.step_count,
            _last_reply(trajectory),
        ]


def _last_reply(trajectory: Trajectory) -> str | None:
    """Return the model's last reply, or None."""
    replies = [entry for entry in trajectory.messages if entry["role"] == "assistant"]
    return utf8(text_of(replies[-1])) if replies else None


def chosen_mode(mode: WandbMode | None) -> WandbMode:
    """Return the requested W&B mode, or else online if there is an API key.

    Raises:
        ConfigurationError: The mode is unknown, or online without an API key, which W&B would
            prompt for.
    """
    asked = mode or os.environ.get("WANDB_MODE")
    if asked is None:
        return "online" if has_api_key() else "offline"
    if asked not in ("online", "offline", "disabled"):
        raise ConfigurationError(f"W&B's mode must be online, offline or disabled, got {asked!r}")
    if asked == "online" and not has_api_key():
        raise ConfigurationError(
            "W&B online needs an API key: run `wandb login`, set WANDB_API_KEY, or set "
            "WANDB_MODE=offline"
        )
    return asked


def has_api_key() -> bool:
    """Return whether W&B finds a key without prompting, in the environment or a netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or _HOST).netloc
    named = os.environ.get("NETRC")
    files = [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for file in files:
        try:
            if netrc.netrc(str(file)).authenticators(host) is not None:
                return True
        except (OSError, netrc.NetrcParseError):  # no file, or one that W&B cannot read either
            continue
    return False
