"""Limits how many pictures or turns the model still sees."""

from envkit.errors import ConfigurationError
from envkit.ranges import at_least
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper


class HistoryWindow(EnvWrapper):
    """Sets the environment's history policy, which a rollout uses unless its settings name one.

    VisGym found that models do worse with an unbounded history than with a window of a few turns.
    """

    def __init__(self, env: AnyEnv, *, images: int | None = None, turns: int | None = None) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            images: Latest pictures to keep. One more is shown before earlier ones become a short
                text, so that the context is not encoded again at each turn.
            turns: Latest turns to keep whole, and one more likewise. None for both keeps
                everything.

        Raises:
            ConfigurationError: A number is below 1, or both are given.
        """
        at_least(1, images=images, turns=turns)
        if images is not None and turns is not None:
            raise ConfigurationError(
                "HistoryWindow keeps the latest pictures or the latest turns, got both: drop one"
            )
        super().__init__(env, images=images, turns=turns)
        policy = None
        if turns is not None:
            policy = {"keep_last_turns": {"keep": turns, "drop_at": turns + 1}}
        if images is not None:
            policy = {"keep_last_images": {"keep": images, "drop_at": images + 1}}
        self.inner.history_policy = policy  # type: ignore[misc]  # each instance's own
