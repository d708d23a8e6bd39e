"""UI-TARS 1.0 and 1.5: `Thought: ...` and `Action: click(start_box='(x,y)')`.

After bytedance/UI-TARS, codes/ui_tars/{prompt,action_parser}.py, where a scroll is five clicks of
the wheel and a wait five seconds. 1.0 counts thousandths, 1.5 pixels of the resized image. Places
come as `(x,y)`, `[x1,y1,x2,y2]` (its middle), `<point>x y</point>` and between box marks.

A model has one `Vocabulary` for a computer and one for a phone (in `ui_tars_mobile`). GLM-4.5V's
words (in `glm`) have the same form.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from envkit.smart_resize import SmartResize
from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.code_reply import Code, CodeFamily
from envkit_actions.fields import Fields
from envkit_actions.malformed import MalformedActionError, quoted
from envkit_actions.parsed import Reading
from envkit_actions.python_calls import read_calls
from envkit_actions.spaces import UI_TARS_RESIZE, SpaceKind
from envkit_actions.writing import Place, Writing

WAIT_SECONDS: Final = 5.0
_ACTION: Final = re.compile(r"^[ \t]*Action:[ \t]*", re.MULTILINE)
_LOOSE_TEXT: Final = re.compile(
    r"(?P<head>(?:type|finished)\(\s*content)\s*=\s*(?P<quote>['\"])(?P<text>.*)(?P=quote)\s*\)",
    re.DOTALL,
)


class Word(NamedTuple):
    """One action word and how its arguments are read."""

    parameters: tuple[str, ...]
    """Argument names, in order."""
    read: Callable[[Fields], Action]


class PlaceForm(NamedTuple):
    """How a vocabulary writes places."""

    name: str
    """Argument of an action at one place."""
    start: str
    end: str
    """The arguments of a drag."""
    template: str
    """Format string for x and y."""

    def argument(self, name: str, place: Place) -> str:
        """Return the argument `name` for a place."""
        return f"{name}='{self.template.format(*place)}'"


Writer = Callable[[Writing, PlaceForm], str]


def _extract(body: str) -> Code:
    found = _ACTION.search(body)
    if found is None:
        return Code(body.strip(), "")
    thought = body[: found.start()].strip().removeprefix("Thought:").strip()
    return Code(body[found.end() :].strip(), thought)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The action words of one kind of device."""

    prompt: str
    """Describes the reply format and the words; has `{width}` and `{height}`."""
    words: Mapping[str, Word]
    form: PlaceForm
    clicks: Mapping[tuple[ActionKind, Button], str]
    """Words of clicks without further arguments."""
    writers: Mapping[ActionKind, Writer]
    extract: Callable[[str], Code] = _extract
    """Finds the calls in a reply."""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Unsupported action words of the source: word -> why, and what to do instead."""


class WordFamily(CodeFamily):
    """A model whose reply is words of a vocabulary, called with arguments."""

    marks = ("Action:", "Thought:")
    wait_seconds = WAIT_SECONDS

    def __init__(
        self,
        name: str,
        kind: SpaceKind,
        vocabulary: Vocabulary,
        *,
        resize: SmartResize | None = UI_TARS_RESIZE,
    ) -> None:
        super().__init__(name, counts=kind, resize=resize)
        self.prompt, self._vocabulary = vocabulary.prompt, vocabulary

    def _extract(self, body: str) -> Code:
        return self._vocabulary.extract(body)

    def _read(self, source: str, reading: Reading) -> None:
        words, refused = self._vocabulary.words, self._vocabulary.refused
        for call in read_calls(source, _LOOSE_TEXT):
            if call.name in refused:
                raise MalformedActionError(f"{call.name}: {refused[call.name]}")
            word = words.get(call.name)
            if word is None:
                raise MalformedActionError(
                    f"there is no action {quoted(call.name)}; the actions are {', '.join(words)}"
                )
            Fields(call.bind(word.parameters), reading, call.name).read(word.read)

    def _write(self, writing: Writing) -> list[str]:
        action, form = writing.action, self._vocabulary.form
        word = self._vocabulary.clicks.get((action.kind, action.button))
        if word is not None:
            writing.plain(button=True)
            return [f"{word}({form.argument(form.name, writing.point())})"]
        write = self._vocabulary.writers.get(action.kind)
        if write is None:
            raise writing.refusal(f"its actions are {', '.join(self._vocabulary.words)}")
        return [write(writing, form)]

    def _joined(self, parts: Sequence[str]) -> str:
        """Return the actions after `Action:`, separated by empty lines, without a thought."""
        return "Action: " + "\n\n".join(parts)
