"""Truncates observations to a budget and marks the omitted part."""

import re
from collections.abc import Callable
from typing import Any, Final

from envkit.env import Observation
from envkit.ranges import at_least
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper

INFO_KEY: Final = "left_out_characters"
"""Key of info with the number of omitted characters; absent if the observation is complete."""
_TEMPLATE_TOKENS: Final = 16
"""Tokens reserved for the chat template around a message."""
_CHARACTERS_PER_TOKEN: Final = 2
"""For estimates without a tokenizer. English has about four characters per token, code and numbers
about two. A low value cuts too much; a high one lets the episode end."""

_GAP: Final = re.compile(r"\n\[\.\.\. (\d{1,9}) characters left out \.\.\.\]\n")

CountTokens = Callable[[str], int]


class BudgetText(EnvWrapper):
    """Cuts long observations in the middle.

    The beginning and end are kept, with a line between them that says how much is missing. The
    model can then ask for less. Images are unchanged. If an observation does not fit the remaining
    context, it is cut to half of that room unless the environment's own `shorten` returns a shorter
    form. The episode then continues instead of ending.
    """

    def __init__(
        self,
        env: AnyEnv,
        *,
        max_characters: int | None = 8000,
        max_tokens: int | None = None,
        count_tokens: CountTokens | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            max_characters: Limit on the text of one observation; None means no limit.
            max_tokens: The same limit in tokens, excluding the chat template; None means no limit.
            count_tokens: Counts the tokens of a text, such as
                `lambda text: len(tokenizer.encode(text))`. None assumes two characters per token.

        Raises:
            ConfigurationError: A budget is too small for the line that marks the cut.
        """
        super().__init__(
            env, max_characters=max_characters, max_tokens=max_tokens, count_tokens=count_tokens
        )
        self._count = count_tokens or _estimate
        gap = _gap(10**6)
        at_least(len(gap), max_characters=max_characters)
        at_least(self._count(gap), max_tokens=max_tokens)
        self.max_characters, self.max_tokens = max_characters, max_tokens

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; a long first observation is cut."""
        observation, info = self.env.reset(seed=seed, options=options)
        shorter = self._within(observation)
        return shorter, _told(observation, shorter, info)

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply; a long observation is cut."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        shorter = self._within(observation)
        return shorter, reward, terminated, truncated, _told(observation, shorter, info)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return the environment's shorter form or a cut one; None if neither fits."""
        inner = self.inner_shorten(observation, tokens)
        if inner is not None:
            return self._within(inner)
        room = (tokens - _TEMPLATE_TOKENS) // 2  # the other half is for later turns
        if observation["images"] or self._count(_gap(len(observation["text"]))) > room:
            return None  # only the model's processor knows an image's tokens
        return {**observation, "text": cut(observation["text"], room, self._count)}

    def _within(self, observation: Observation) -> Observation:
        text = observation["text"]
        if self.max_characters is not None:
            text = cut(text, self.max_characters, len)
        if self.max_tokens is not None:
            text = cut(text, self.max_tokens, self._count)
        return observation if text == observation["text"] else {**observation, "text": text}


def _told(whole: Observation, shorter: Observation, info: dict[str, Any]) -> dict[str, Any]:
    missing = len(whole["text"]) - len(shorter["text"])
    return {**info, INFO_KEY: missing} if missing else info


def cut(text: str, budget: int, measure: Callable[[str], int]) -> str:
    """Return the text, or its two ends around a line that says how much is missing.

    Args:
        text: The text to cut.
        budget: Maximum measured length of the result; at least that of the line alone.
        measure: Returns the length of a text; must not decrease for longer texts.
    """
    if measure(text) <= budget:
        return text
    low, high = 0, len(text) - 1  # characters kept, found by bisection
    while low < high:
        middle = (low + high + 1) // 2
        if measure(_around_gap(text, middle)) <= budget:
            low = middle
        else:
            high = middle - 1
    return _around_gap(text, low)


def _around_gap(text: str, kept: int) -> str:
    head = (2 * kept + 2) // 3  # the beginning usually describes the rest
    end = len(text) - (kept - head)
    # Add the omissions of earlier cuts; their lines are inside the part removed now.
    earlier = sum(int(gap[1]) - len(gap[0]) for gap in _GAP.finditer(text, head, end))
    return text[:head] + _gap(end - head + earlier) + text[end:]


def _gap(missing: int) -> str:
    return f"\n[... {missing} characters left out ...]\n"


def _estimate(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
