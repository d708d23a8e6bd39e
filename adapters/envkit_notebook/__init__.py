"""Widgets for JupyterLab, VS Code and Colab: play by hand, step through a record, branch it.

The widgets need the extra `notebook` (anywidget, which bundles its front end: nothing is installed
into JupyterLab). `Game` and `rerun` work without it.
"""

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.lazy import lazy_names

if TYPE_CHECKING:
    from envkit.rollout import Engine, Limits, Sampling
    from envkit.rollout.host import AnyEnv, EnvFactory
    from envkit.tasks import Task
    from envkit.tokens import ChatCodec
    from envkit.trajectory import Trajectory
    from envkit_notebook.branching import rerun
    from envkit_notebook.comparing import BranchWidget
    from envkit_notebook.game import Game
    from envkit_notebook.playing import PlayWidget
    from envkit_notebook.showing import ShowWidget, Source

__all__ = ["Game", "branch", "play", "rerun", "show"]

__getattr__, __dir__ = lazy_names(__name__, {"Game": ".game", "rerun": ".branching"})


def play(
    env: "str | AnyEnv | EnvFactory",
    *,
    seed: int | None = 0,
    task: "Task | None" = None,
    **kwargs: Any,  # noqa: ANN401  # whatever the constructor takes
) -> "PlayWidget":
    """Play an environment by hand, as the policy.

    Args:
        env: An id, an environment, or a function that builds one.
        seed: The same seed gives the same task; None draws one.
        task: Plays this task instead of the seed's.
        kwargs: Constructor arguments of the environment.

    Raises:
        MissingDependencyError: The extra `notebook` is not installed.
        UnknownNameError: No environment has that id.
        ConfigurationError: No event loop runs here.
    """
    _require_anywidget()
    from envkit_notebook.game import Game, factory_for
    from envkit_notebook.playing import PlayWidget
    from envkit_notebook.widget import require_loop

    require_loop("playing")
    title = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    return PlayWidget(Game(factory_for(env, **kwargs), seed=seed, task=task), title=title)


def show(source: "Source", index: int = 0, *, codec: "ChatCodec | None" = None) -> "ShowWidget":
    """Step through a recorded episode.

    Args:
        source: A trajectory, several such as the leaves of `play_tree`, a trajectory file or a run
            directory.
        index: Index of the episode among several, from 0; -1 is the last one.
        codec: Shows tokens as text; None uses the texts that a run stored, and ids without them.

    Raises:
        MissingDependencyError: The extra `notebook` is not installed.
        ConfigurationError: There is no such episode.
        StorageError: It cannot be read.
    """
    _require_anywidget()
    from envkit_notebook.showing import ShowWidget

    return ShowWidget(source, index, codec=codec)


def branch(
    trajectory: "Trajectory",
    turn: int = 0,
    reply: str | None = None,
    *,
    env: "str | AnyEnv | EnvFactory | None" = None,
    engine: "Engine | None" = None,
    codec: "ChatCodec | None" = None,
    limits: "Limits | None" = None,
    sampling: "Sampling | None" = None,
    **kwargs: Any,  # noqa: ANN401  # whatever the constructor takes
) -> "BranchWidget":
    """Change one reply of a recorded episode, play on from there, and see both branches.

    Args:
        trajectory: The recorded episode.
        turn: Index of the reply to change, from 0.
        reply: The new reply; None waits for the user to write it.
        env: Replaces the environment that the trajectory names.
        engine: Plays the rest, through the rollout's own loop; None lets a person play.
        codec: Codec of the model that the episode was recorded with; required with an engine.
        limits: Limits of an engine's branch, as for `envkit.rollout.play`.
        sampling: Sampling of an engine's branch, as for `envkit.rollout.play`.
        kwargs: Constructor arguments that the environment was recorded with.

    Raises:
        MissingDependencyError: The extra `notebook` is not installed.
        ConfigurationError: The episode cannot be branched there, an engine came without a codec,
            or no event loop runs here.
    """
    _require_anywidget()
    from envkit_notebook.branching import env_of, rerun
    from envkit_notebook.comparing import BranchWidget

    if engine is not None and codec is None:
        raise ConfigurationError("an engine needs the codec of its model: branch(..., codec=codec)")
    made, play_on = env_of(trajectory, env, **kwargs), None
    if engine is not None and codec is not None:
        play_on = partial(
            rerun, env=made, engine=engine, codec=codec, limits=limits, sampling=sampling
        )
    return BranchWidget(trajectory, turn, reply, env=made, codec=codec, rerun=play_on)


def _require_anywidget() -> None:
    if find_spec("anywidget") is None:
        raise MissingDependencyError.for_extra("a notebook widget", "anywidget", "notebook")
