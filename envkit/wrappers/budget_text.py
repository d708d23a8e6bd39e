"""Keeps what an environment says within a budget, and says what it left out."""

import re
from collections.abc import Callable
from typing import Any, Final, cast

from envkit.env import Observation
from envkit.errors import ConfigurationError
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper

INFO_KEY: Final = "left_out_characters"
"""Key of info that says how many characters shorter an observation is; absent where it is whole."""
_TEMPLATE_TOKENS: Final = 16
"""What a chat template may put around a message, when a rollout says how much room there is."""
_CHARACTERS_PER_TOKEN: Final = 2
"""For an estimate without a tokenizer. English has about four characters a token, code and numbers
about two; a careful estimate cuts too much, and a bold one ends the episode."""

_GAP: Final = re.compile(r"\n\[\.\.\. (\d{1,9}) characters left out \.\.\.\]\n")

CountTokens = Callable[[str], int]


class BudgetText(EnvWrapper):
    """Cuts long observations in the middle.

    The beginning and the end stay, and a line in between tells the model how much is missing, so
    that it can ask for less. Images stay as they are. Where a rollout has too little room left
    for an observation, it is cut to half of that room, unless the environment's own `shorten` has a
    shorter form: the episode then goes on where it would have ended.
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
            max_characters: Most characters of one observation's text; None is unlimited.
            max_tokens: Most tokens of it, without those of the chat template; None is unlimited.
            count_tokens: Counts the tokens of a text, such as
                `lambda text: len(tokenizer.encode(text))`. None estimates two characters a token.

        Raises:
            ConfigurationError: A budget too small for the line that says what is missing.
        """
        super().__init__(
            env, max_characters=max_characters, max_tokens=max_tokens, count_tokens=count_tokens
        )
        self._count = count_tokens or _estimate
        least = len(_gap(10**6))
        if max_characters is not None and max_characters < least:
            raise ConfigurationError(
                f"max_characters must be at least {least}, got {max_characters}"
            )
        if max_tokens is not None and max_tokens < self._count(_gap(10**6)):
            raise ConfigurationError(
                f"max_tokens must be at least {self._count(_gap(10**6))}, got {max_tokens}"
            )
        self.max_characters, self.max_tokens = max_characters, max_tokens

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; a long first observation is cut."""
        observation, info = self.env.reset(seed=seed, options=options)
        shorter = self._within(observation)
        return shorter, _told(observation, shorter, info)

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply; a long answer is cut."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        shorter = self._within(observation)
        return shorter, reward, terminated, truncated, _told(observation, shorter, info)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return the environment's shorter form or a cut one; None if not even that fits."""
        inner = cast(
            "Observation | None", self.env.get_wrapper_attr("shorten")(observation, tokens)
        )
        if inner is not None:
            return self._within(inner)
        room = (tokens - _TEMPLATE_TOKENS) // 2  # the other half is for what comes after it
        if observation["images"] or self._count(_gap(len(observation["text"]))) > room:
            return None  # what an image takes is known to the model's processor alone
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
    """Return the text, or its beginning and end around a line that says what is missing.

    Args:
        text: To cut.
        budget: Most that `measure` may say of the result; at least that of the line alone.
        measure: Length of a text; longer texts must not measure less.
    """
    if measure(text) <= budget:
        return text
    low, high = 0, len(text) - 1  # characters kept; by bisection, as no tokenizer tells it
    while low < high:
        middle = (low + high + 1) // 2
        if measure(_around_gap(text, middle)) <= budget:
            low = middle
        else:
            high = middle - 1
    return _around_gap(text, low)


def _around_gap(text: str, kept: int) -> str:
    head = (2 * kept + 2) // 3  # the beginning says what the rest is
    end = len(text) - (kept - head)
    # What an earlier cut left out is missing here too; its line is within what goes now.
    earlier = sum(int(gap[1]) - len(gap[0]) for gap in _GAP.finditer(text, head, end))
    return text[:head] + _gap(end - head + earlier) + text[end:]


def _gap(missing: int) -> str:
    return f"\n[... {missing} characters left out ...]\n"


def _estimate(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
