"""Wrappers by their command-line names."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, Final

from envkit.errors import ConfigurationError, EnvkitError, UnknownNameError, did_you_mean
from envkit.faults import FaultPlan
from envkit.secrets import stored
from envkit.wrappers.budget_text import BudgetText
from envkit.wrappers.curriculum import Curriculum
from envkit.wrappers.env_wrapper import AnyEnv
from envkit.wrappers.grid_overlay import GridOverlay
from envkit.wrappers.hide_feedback import HideFeedback
from envkit.wrappers.history_window import HistoryWindow
from envkit.wrappers.image_wrapper import BlankImage
from envkit.wrappers.inject_faults import InjectFaults
from envkit.wrappers.level_progress import LevelProgress
from envkit.wrappers.record_episode import RecordEpisode
from envkit.wrappers.resize_image import ResizeImage
from envkit.wrappers.shape_reward import RescaleReward
from envkit.wrappers.show_goal import ShowGoal
from envkit.wrappers.swap_image import SwapImage
from envkit.wrappers.text_twin import TextTwin

Wrap = Callable[[AnyEnv], AnyEnv]
"""Wraps an environment."""


def _curriculum(**arguments: Any) -> Wrap:  # noqa: ANN401  # those of two constructors
    own = {key: arguments.pop(key) for key in ("argument", "reward_threshold") if key in arguments}
    return partial(Curriculum, progress=LevelProgress(**arguments), **own)


def _inject_faults(*, delay_s: float = 0.05, **arguments: Any) -> Wrap:  # noqa: ANN401  # the plan's
    plan = FaultPlan(arguments.pop("rate", 0.1), **arguments)
    return partial(InjectFaults, plan=plan, delay_s=delay_s)


_TAKERS: Final[Mapping[str, tuple[type, ...]]] = {
    "blank-image": (BlankImage,),
    "budget-text": (BudgetText,),
    "curriculum": (Curriculum, LevelProgress),
    "grid-overlay": (GridOverlay,),
    "hide-feedback": (HideFeedback,),
    "history-window": (HistoryWindow,),
    "inject-faults": (InjectFaults, FaultPlan),
    "record-episode": (RecordEpisode,),
    "rescale-reward": (RescaleReward,),
    "resize-image": (ResizeImage,),
    "show-goal": (ShowGoal,),
    "swap-image": (SwapImage,),
    "text-twin": (TextTwin,),
}
"""Name -> the wrapper, and the class of the state that the environments of a rollout share. They
take the arguments."""
_SHARING: Final = {"curriculum": _curriculum, "inject-faults": _inject_faults}
WRAPPERS: Final[Mapping[str, Callable[..., Wrap]]] = MappingProxyType(
    {name: _SHARING.get(name, partial(partial, takers[0])) for name, takers in _TAKERS.items()}
)
"""Name -> a function that takes the wrapper's arguments and returns a `Wrap`. State that the
environments of a rollout share, such as a fault plan or curriculum progress, is created once."""

IMAGE_WRAPPERS: Final = ("blank-image", "grid-overlay", "resize-image", "swap-image")
"""Wrappers that have no effect unless an image is shown."""
TASK_WRAPPERS: Final = ("curriculum",)
"""Wrappers that choose other tasks for the same seeds."""


def wrapping(name: str, arguments: Mapping[str, Any]) -> Wrap:
    """Return the function that wraps an environment.

    Raises:
        UnknownNameError: No wrapper has the name.
        ConfigurationError: The wrapper does not accept the arguments.
    """
    if name not in WRAPPERS:
        raise UnknownNameError.suggest("wrapper", name, WRAPPERS)
    try:
        wrap = WRAPPERS[name](**arguments)
        if name not in _SHARING:
            inspect.signature(_TAKERS[name][0]).bind(None, **arguments)
    except TypeError as error:
        if isinstance(error, EnvkitError):
            raise
        raise _refusal(name, arguments, error) from error

    def checked(env: AnyEnv) -> AnyEnv:
        try:
            return wrap(env)
        except TypeError as error:
            if isinstance(error, EnvkitError) or not arguments:
                raise
            raise _refusal(name, arguments, error) from error

    return checked


class Wrapped:
    """Builds an environment in several wrappers.

    What its environments share, such as a curriculum's progress, exists once per process.
    """

    def __init__(self, build: Callable[[], AnyEnv], wraps: Mapping[str, Mapping[str, Any]]) -> None:
        """Choose the wrappers.

        Args:
            build: Builds the environment.
            wraps: Arguments of each wrapper by its name, the innermost first.

        Raises:
            UnknownNameError: No wrapper has a name.
            ConfigurationError: A wrapper does not accept its arguments.
        """
        self._build, self._wraps = build, wraps
        # Here and not at the first call: wrong arguments are rejected now.
        self._chosen = [wrapping(name, arguments) for name, arguments in wraps.items()]

    def __call__(self) -> AnyEnv:
        """Return a new environment in new wrappers."""
        return reduce(lambda env, wrap: wrap(env), self._chosen, self._build())

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._build, self._wraps)


def _refusal(name: str, arguments: Mapping[str, Any], error: TypeError) -> ConfigurationError:
    known = {
        argument
        for kind in _TAKERS[name]
        for argument in inspect.signature(kind).parameters
        if argument not in ("env", "plan", "progress")
    }
    meant = "".join(did_you_mean(one, known) for one in arguments if one not in known)
    return ConfigurationError(f"{name} cannot be built with {stored(arguments)}: {error}.{meant}")
