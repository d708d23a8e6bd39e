"""Endings of families without an ending action: plain text."""

from typing import Final

from envkit_actions.action import Action, ActionKind, Status

DONE: Final = "DONE"
"""The task is done."""
FAIL: Final = "FAIL"
"""The task cannot be done. Both words are OSWorld's (xlang-ai/OSWorld, desktop_env)."""

_STATUS: Final = {DONE: Status.SUCCESS, FAIL: Status.FAILURE}
_WORDS: Final = {status: word for word, status in _STATUS.items()}


def closing_of(text: str) -> Action:
    """Return the ending that a text means: one of the two words, or else an answer."""
    status = _STATUS.get(text)
    if status is None:
        return Action(kind=ActionKind.ANSWER, text=text)
    return Action(kind=ActionKind.TERMINATE, status=status)


def closing_text(action: Action) -> str | None:
    """Return the text for an ending, or None if there is none."""
    if action.kind is ActionKind.TERMINATE:
        return _WORDS[action.status]
    is_answer = action.kind is ActionKind.ANSWER and closing_of(action.text) == action
    return action.text if is_answer else None
