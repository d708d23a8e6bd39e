"""Hides what the text says about the last reply."""

from typing import Any

from envkit.env import Observation
from envkit.errors import ConfigurationError
from envkit.reply import CUT, CUT_NOTICE
from envkit.twins import FEEDBACK
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper


class HideFeedback(EnvWrapper):
    """Leaves the result of an action to the next picture.

    Feedback in words can replace sight: a policy that only reads "a wall is in the way" walks
    through small mazes. Without it, the model must compare pictures.
    """

    def __init__(self, env: AnyEnv, *, keeps_errors: bool = False) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env` that marks its feedback.
            keeps_errors: Still say why a reply held no valid action.

        Raises:
            ConfigurationError: The environment does not mark its feedback.
        """
        super().__init__(env, keeps_errors=keeps_errors)
        self._keeps_errors = keeps_errors
        if not getattr(self.inner, "marks_feedback", False):
            raise ConfigurationError(
                f"{self.inner_name} does not mark its feedback: HideFeedback needs an "
                f"environment with marks_feedback = True, which sets info[{FEEDBACK!r}]"
            )

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply and remove the feedback from the next observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        error = info.get("parse_error")
        feedback: list[str] = [info[FEEDBACK], CUT_NOTICE if error == CUT else ""]
        if any(feedback) and not (self._keeps_errors and error):
            text = observation["text"]
            for part in filter(None, feedback):
                text = text.replace(part, "", 1).strip()
            if text or observation["images"]:
                shown: Observation = {**observation, "text": text}
                return shown, reward, terminated, truncated, info
        return observation, reward, terminated, truncated, info
