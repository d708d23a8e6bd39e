"""An envkit environment for slime's own interaction example, examples/geo3k_vlm_multi_turn.

Set `rollout_interaction_env_path: envkit_slime` in the example's YAML beside the mapping `envkit`.
The example's loop has limits that `envkit_slime.generate` has not; docs/trainers/slime.md lists
them.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, cast

from envkit.env import Env, Observation
from envkit.messages import images_of, message, text_of
from envkit_slime.rewards import reward_value
from envkit_slime.sample import Sample
from envkit_slime.settings import plan_episode


def build_env(sample: Any, args: Namespace) -> "InteractionEnv":  # noqa: ANN401  # slime's Sample
    """Build the sample's environment as the example's loop wants it.

    Args:
        sample: Says which environment and task, as for `generate`.
        args: slime's arguments.

    Raises:
        ConfigurationError: No environment is named, or the settings are wrong.
    """
    return InteractionEnv(sample, args)


class InteractionEnv:
    """`reset`, `step`, `format_observation` and `close` of the example's BaseInteractionEnv."""

    def __init__(self, sample: Sample, args: Namespace) -> None:
        plan = plan_episode(args, sample, {"max_new_tokens": 1}, evaluation=False)
        self._sample, self._args = sample, args
        self._seed, self._task = plan.seed, plan.request.task
        self._env = plan.request.factory()()
        self._total = 0.0

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Start the episode; the loop drops what this returns and shows the sample's prompt."""
        self._total = 0.0
        options = None if self._task is None else {"task": self._task}
        return self._env.reset(seed=self._seed, options=options)

    def step(self, response_text: str) -> tuple[Observation, bool, dict[str, Any]]:
        """Play a reply; the sum of the rewards goes into the sample, which the loop forgets."""
        observation, reward, terminated, truncated, info = self._env.step(response_text)
        self._total += float(reward)
        self._sample.reward = reward_value(self._args, self._total)
        return observation, bool(terminated or truncated), dict(info)

    def format_observation(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the message of an observation, with pictures as the example's processor wants."""
        env = cast("Env", self._env.unwrapped)
        entry = env.format_observation(cast("Observation", observation))
        pictures = images_of([entry])
        content: list[dict[str, Any]] = [
            *({"type": "image", "image": picture.pil()} for picture in pictures),
            {"type": "text", "text": text_of(entry)},
        ]
        plain = message("user", text_of(entry))
        return {**plain, "content": content if pictures else text_of(entry)}

    def close(self) -> None:
        """Close the environment; an episode that never took a step has reward 0."""
        if self._sample.reward is None:
            self._sample.reward = reward_value(self._args, self._total)
        self._env.close()
