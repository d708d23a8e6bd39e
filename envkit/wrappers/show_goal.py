"""Shows a picture of the goal."""

from envkit.env import Observation
from envkit.errors import ConfigurationError
from envkit.twins import StatesGoal
from envkit.wrappers.env_wrapper import AnyEnv, ObservationWrapper

_TEXT = "The last picture shows the goal."


class ShowGoal(ObservationWrapper):
    """Adds a picture of the solved task after the pictures of an observation.

    A history policy that drops pictures may drop the goal's too: `every_turn` shows it again.
    """

    def __init__(self, env: AnyEnv, *, every_turn: bool = False) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env` that can draw its goal.
            every_turn: Show the goal with each observation; otherwise only with the first.

        Raises:
            ConfigurationError: The environment has no picture of its goal.
        """
        super().__init__(env, every_turn=every_turn)
        self._every_turn = every_turn
        if not (isinstance(self.inner, StatesGoal) and self.inner.has_goal_picture):
            raise ConfigurationError(
                f"{self.inner_name} has no picture of its goal: ShowGoal needs an "
                "environment that can draw one (envkit.twins.StatesGoal)"
            )
        self._goal: StatesGoal = self.inner

    def changed(self, observation: Observation, *, is_first: bool, is_last: bool) -> Observation:
        """Return the observation with the goal, if it is shown now."""
        if not is_first and (is_last or not self._every_turn):
            return observation
        text = " ".join(filter(None, (observation["text"], _TEXT)))
        images = (*observation["images"], self._goal.goal_picture())
        return {**observation, "text": text, "images": images}
