"""Thoughts as a chat template opens and closes them."""

from collections.abc import Sequence
from typing import Final, Protocol

from envkit.reply import THOUGHTS

TAIL_IDS: Final = 24
"""Ids at the end of a prompt that hold the mark of a thought, and white space after it."""


class _Decoder(Protocol):
    def decode_all(self, token_ids: Sequence[int]) -> str: ...


def opened_thought(codec: _Decoder, prompt_ids: Sequence[int]) -> str | None:
    """Return the mark of the thought that a prompt ends with; None if it opened none.

    Args:
        codec: Decodes the ids.
        prompt_ids: The end of the prompt, at least `TAIL_IDS` ids of it.
    """
    text = codec.decode_all(list(prompt_ids)).rstrip()
    found = [mark for mark in THOUGHTS if text.endswith(mark)]
    return max(found, key=len, default=None)
