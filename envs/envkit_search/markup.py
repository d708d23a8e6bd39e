"""Sanitise text that must not contain markup: retrieved documents and quoted model output.

A page can contain anything, including `</information>` and `<|im_end|>`. External text is escaped
here before it enters an observation, so it cannot close its block, open another, or become a
special token of a chat template.
"""

import re
from typing import Final

_NAMES: Final = "think|search|information|answer|tool_call|tool_response|tools?|function|parameter"
# Bounded repetitions: two unbounded ones around an optional slash would take quadratic time.
_OPENING: Final = re.compile(
    rf"<(?=[A-Za-z/!|\uff5c]|\s{{1,8}}/?\s{{0,8}}(?:{_NAMES})\b)"
    r"|\[(?=/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|ARGS|INST|IMG)\b)",
    re.IGNORECASE,
)
_NOT_TEXT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ENTITIES: Final = {"<": "&lt;", "[": "&#91;"}


def plain(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text on one line, without control characters.

    Line breaks become spaces, so one document cannot pass as two, and lone surrogates become
    U+FFFD, because tokenizers reject them.
    """
    head = text[: 4 * limit]  # white space collapses, so a bounded prefix suffices
    flat = " ".join(_NOT_TEXT.sub(" ", _SURROGATE.sub("\ufffd", head)).split())
    return flat[:limit].rstrip()


def escape(text: str) -> str:
    """Escape everything in a text that looks like a tag or a special token."""
    return _OPENING.sub(lambda found: _ENTITIES[found.group()], text)
