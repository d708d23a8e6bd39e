"""Shows the state in words, beside the picture or instead of it."""

from enum import StrEnum

from envkit.env import Observation
from envkit.errors import ConfigurationError
from envkit.ranges import one_of
from envkit.twins import StatesTwin
from envkit.wrappers.env_wrapper import AnyEnv, ObservationWrapper


class TwinPlace(StrEnum):
    """Where the words go."""

    BESIDE = "beside"
    """After the text, as a caption of the picture."""
    INSTEAD = "instead"
    """In place of the picture."""


class TextTwin(ObservationWrapper):
    """Adds what the picture shows in words.

    A policy that succeeds with the words and fails with the picture has a problem of perception,
    not of planning (VisGym, VAGEN).
    """

    def __init__(self, env: AnyEnv, *, place: str = TwinPlace.BESIDE) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env` with a text twin.
            place: A `TwinPlace`.

        Raises:
            ConfigurationError: The environment has no text twin, or the place is unknown.
        """
        super().__init__(env, place=place)
        self._place = TwinPlace(one_of("place", place, TwinPlace))
        if not (isinstance(self.inner, StatesTwin) and self.inner.has_text_twin):
            raise ConfigurationError(
                f"{self.inner_name} has no text twin: TextTwin needs an environment that "
                "says in words what its picture shows (envkit.twins.StatesTwin)"
            )
        self._twin: StatesTwin = self.inner

    def changed(self, observation: Observation, *, is_first: bool, is_last: bool) -> Observation:
        """Return the observation with the words."""
        del is_first, is_last
        text = "\n\n".join(filter(None, (observation["text"], self._twin.text_twin())))
        images = observation["images"] if self._place is TwinPlace.BESIDE else ()
        return {**observation, "text": text, "images": images}
