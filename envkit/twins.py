"""What an environment offers to the wrappers that change what the model sees of it."""

from typing import Final, Protocol, runtime_checkable

from envkit.images import Image

FEEDBACK: Final = "feedback"
"""Key of a step's info: the part of the observation's text that answers the last reply, "" without
any. An environment that sets it at every step has `marks_feedback = True`."""


@runtime_checkable
class StatesTwin(Protocol):
    """An environment that can say in words what its picture shows."""

    @property
    def has_text_twin(self) -> bool:
        """Whether it can in this configuration."""
        ...

    def text_twin(self) -> str:
        """Return what the current picture shows, in words."""
        ...


@runtime_checkable
class StatesGoal(Protocol):
    """An environment that can draw its goal."""

    @property
    def has_goal_picture(self) -> bool:
        """Whether it can in this configuration."""
        ...

    def goal_picture(self) -> Image:
        """Return a picture of the solved task."""
        ...
