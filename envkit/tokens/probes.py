"""Conversations that prove a rule: all pairs of factors that may affect the text after a reply.

Factors are the system prompt, the tools, the earlier rounds, the form of the last reply and what
follows it. Every course of earlier rounds occurs with and without a system prompt, each with or
without tools. The forms of replies and observations rotate, so every pair of them occurs. Words
that the template compares text with (a switch such as "/no_think") are tried in the system prompt
and in an earlier user message. Those that change a render are also tried in user messages, replies
and tool results, before one and before two more turns, because a template may look for them in the
whole conversation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Final

from envkit.errors import TemplateError
from envkit.tokens.digest import Words
from envkit.tokens.rules import LATE_SYSTEM, RoleRule, Variant
from envkit.tokens.template import ChatTemplate, PlainMessage, ToolSchemas
from envkit.tokens.writer import PLAIN_REPLY, Writer

MARKER: Final = "Rm7Kq"
NOTE: Final = "Sy3Nt."
"""A system message after the first message."""
PROBE_TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string", "description": "x"}},
                "required": ["a"],
            },
        },
    }
]
_NASTY: Final = "  \n\tedges \u00e9 \u4e16\u754c \U0001f680 <b>&\"'</b> {{ x }} \\n\r\n "
_OBSERVED: Final = ("Sure?", _NASTY, '{"temp": "\u00e9", "a": [1]}', "\nline\n")
_THOUGHT: Final = "<think>\nhm, 2+2\n</think>\n\n"
_MAX_SWITCHES: Final = 80
_NEUTRAL: Final = "Qy4Jt"
_EARLIER: Final = {"user": 0, "assistant": 1, "tool": 2}
"""Place of the message with a switch, by role."""
# A course is the rounds before the last reply; a round is a reply's form and what follows it.
_COURSES: Final = tuple(
    tuple(course.split())
    for course in (
        "",
        "call/t",
        "text/t",
        "text/u",
        "call/u",
        "call/t text/u",
        "text/u call/t",
        "text/t text/t",
        "text/t call/u",
        "call/t text/t",
        "calls/tt",
        "call/tu text/u",
        "thinkcall/t think/u",
        "call/t text/u saycall/t text/u call/t",
        "think/u text/u",
        "text/u think/u text/u",
        "text/t text/u text/t think/u",
    )
)
_LONG: Final = tuple(
    tuple(course.split())
    for course in (
        "call/t " * 12,
        "text/t " * 12,
        "text/u " * 12,
        "call/t calls/tt text/u call/t " * 3,
        "text/t text/u think/u text/t call/u " * 3,
        "thinkcall/t saycall/t text/u calls/tt call/tu " * 3,
    )
)
_LONG_IMAGES: Final = (("text/i", "text/u", "text/ii", "call/t") * 3,)
_FOLLOWERS: Final = {"user": ("u", "uu"), "tool": ("t", "tu", "tt", "tuu")}
_WITH_SYSTEM: Final = {
    "user": ("s", "su", "us", "/s u", "text/us u"),
    "tool": ("ts", "tsu", "/s t", "call/ts t"),
}
"""Followers with a system message, and courses with one before a follower."""
_MIXED: Final = {"user": (), "tool": ("tut", "tutu")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A conversation up to a marked reply, and what follows it."""

    history: list[PlainMessage]
    observations: list[PlainMessage]
    tools: ToolSchemas
    form: str
    """Form of the last reply."""
    follower: str
    """Kind of the messages after it."""

    @property
    def earlier_images(self) -> int:
        """Number of images in the history."""
        contents: list[Any] = [entry.get("content") for entry in self.history]
        lists: list[list[dict[str, Any]]] = [c for c in contents if type(c) is list]
        return sum(part["type"] == "image" for parts in lists for part in parts)


class Cases:
    """Writes the conversations for the rules of one template."""

    def __init__(
        self, template: ChatTemplate, writer: Writer, tools: ToolSchemas, calls: Variant | None
    ) -> None:
        """Set how to write conversations.

        Args:
            template: Its words are tried as switches.
            writer: Writes content.
            tools: The codec's tools; None uses the tools of the probes.
            calls: How to write structured calls; None if the template has no way.
        """
        self.writer, self.tools, self.calls = writer, tools or PROBE_TOOLS, calls
        self.template = template

    def of(self, rule: RoleRule, *, images: bool = False) -> Iterator[Case]:
        """Yield the conversations for a rule; with `images`, only those that have images."""
        if images:
            yield from self._with_images(rule)
            return
        forms = _forms(rule)
        followers = _FOLLOWERS[rule.role]
        kinds = [(form, followers[0]) for form in forms]
        kinds += [(forms[-1], follower) for follower in followers[1:]]
        for form, follower in kinds:
            yield self._case((), form, follower, 0, system=None, tools=None)
        for number, course in enumerate(_COURSES):
            for system in (None, "Be terse."):
                turn = 2 * number + (system is not None)
                form = forms[(turn // 2 + number) % len(forms)]
                follower = followers[turn % len(followers)]
                tools = self.tools if (number + (system is not None)) % 2 else None
                yield self._case(course, form, follower, turn, system=system, tools=tools)
        yield from self._switched(rule)
        for role, word in self._heeded:
            course = self._course(role)
            for others in ((), ("text/u",)):
                yield self._saying(role, word, (course, *others), rule)

    def beside(self, rule: RoleRule) -> Iterator[tuple[str, list[Case]]]:
        """Yield forms of conversations that some agents send, each with the cases that prove it."""
        kinds = [(one, (one,)) for one in _MIXED[rule.role]]
        for name, followers in [(LATE_SYSTEM, _WITH_SYSTEM[rule.role]), *kinds]:
            cases: list[Case] = []
            for written in followers:
                course, _, follower = written.rpartition(" ")
                for form, head, tools in product(
                    _forms(rule), (None, "Be terse."), (None, self.tools)
                ):
                    steps = (course,) if course.partition("/")[0] else ()
                    case = self._case(steps, form, follower, 2, system=head, tools=tools)
                    if course and not steps:
                        case.history.insert(1 + (head is not None), self.writer.say("system", NOTE))
                    cases.append(case)
            if cases:
                yield name, cases

    def long(self, rule: RoleRule, *, images: bool) -> Iterator[Case]:
        """Yield conversations of many turns, in which no two texts are equal."""
        forms, followers = _forms(rule), _FOLLOWERS[rule.role]
        for number, course in enumerate([*_LONG, *(_LONG_IMAGES if images else ())]):
            for system in (None, "Be terse."):
                form, follower = forms[number % len(forms)], followers[number % len(followers)]
                tools = self.tools if (number + (system is None)) % 2 else None
                yield _numbered(self._case(course, form, follower, 0, system=system, tools=tools))
        for role, word in self._heeded:
            course = (*(self._course(role),) * 4, *("text/u",) * 6)
            for turn in (0, 2):
                case = self._case(course, forms[0], followers[0], 0, system=None, tools=None)
                entry = _numbered(case).history[_EARLIER[role] + 2 * turn]
                entry["content"] = self.writer.content(word)
                yield case

    @cached_property
    def words(self) -> Words:
        """The words in earlier messages that may change what follows, but not keys and types."""
        likely = {word for word in switches(self.template) if not word.isidentifier()}
        return Words(likely | {word for _, word in self._heeded})

    def other_settings(self, case: Case) -> Iterator[Case]:
        """Yield the other combinations of a case with and without a system prompt and tools."""
        has_system = case.history[0]["role"] == "system"
        rest = case.history[has_system:]
        for system in (False, True):
            head = [self.writer.say("system", "Be terse.")] if system else []
            for tools in (None, self.tools):
                if (system, tools) != (has_system, case.tools):
                    yield replace(case, history=[*head, *rest], tools=tools)

    def _switched(self, rule: RoleRule) -> Iterator[Case]:
        every = switches(self.template)
        words = [word for word in every if not word.isidentifier()]  # those are keys and types
        if rule.role != "user" or rule.variant is not PLAIN_REPLY:  # tags are tried there alone
            words = [word for word in words if word[0] not in "<["]
        form, follower = _forms(rule)[0], _FOLLOWERS[rule.role][0]
        for word in [" ".join(every), *words] if every else []:
            yield self._case((), form, follower, 0, system=word, tools=None)
            case = self._case((), form, follower, 0, system=None, tools=None)
            case.history[0] = self.writer.say("user", word)
            yield case
        if every:  # in a reply, since a model may write the template's own marks
            said = " ".join(every)
            case = self._case(("text/u",), form, follower, 0, system=None, tools=None)
            case.history[1] = self.writer.say("assistant", said)
            yield case
            if rule.variant is PLAIN_REPLY:
                case = self._case((), form, follower, 0, system=None, tools=None)
                case.history[-1] = self.writer.say("assistant", f"{said} It is four. {MARKER}")
                yield case

    def said_last(self, rule: RoleRule) -> Iterator[Case]:
        """Yield conversations whose last reply, without a marker, is a word that a render heeds."""
        follower = _FOLLOWERS[rule.role][0]
        for role, word in self._heeded:
            if role == "assistant" and rule.variant is PLAIN_REPLY:
                case = self._case((), "text", follower, 0, system=None, tools=None)
                case.history[-1] = self.writer.say("assistant", word)
                yield case

    @cached_property
    def _heeded(self) -> list[tuple[str, str]]:
        """Roles and words that change a render of an earlier message beyond the word itself."""
        found: list[tuple[str, str]] = []
        for role in _EARLIER:
            for tools in (None, self.tools):
                plain = self._without(role, _NEUTRAL, tools)
                found += [
                    (role, word)
                    for word in _with_pairs(switches(self.template))
                    if plain is not None and self._without(role, word, tools) not in (plain, None)
                ]
        return list(dict.fromkeys(found))

    def _without(self, role: str, word: str, tools: ToolSchemas) -> str | None:
        """Render a conversation with a word said earlier, and return the text without the word."""
        course = (self._course(role), "text/u", "text/u")
        case = self._saying(role, word, course, None, system=None if tools else "Be terse.")
        try:
            text = self.template.render([*case.history, *case.observations], tools=tools)
        except TemplateError:
            return None
        return text.replace(word.strip(), "")

    def _course(self, role: str) -> str:
        if role != "tool":
            return "text/u"
        return "text/t" if self.calls is None else "call/t"

    def _saying(
        self,
        role: str,
        word: str,
        course: Sequence[str],
        rule: RoleRule | None,
        *,
        system: str | None = None,
    ) -> Case:
        """Return a conversation in which an early message of a role is a word."""
        form = "text" if rule is None else _forms(rule)[0]
        follower = "u" if rule is None else _FOLLOWERS[rule.role][0]
        case = self._case(course, form, follower, 0, system=system, tools=None)
        place = _EARLIER[role] + (system is not None)
        case.history[place] = {**case.history[place], "content": self.writer.content(word)}
        return case

    def _with_images(self, rule: RoleRule) -> Iterator[Case]:
        form, follower = _forms(rule)[0], _FOLLOWERS[rule.role][0]
        observed = (follower, "i", "ii") if rule.role == "user" else (follower,)
        for course in (("text/i",), ("text/ii", "text/u"), ("text/u", "text/i", "text/i")):
            for last in observed:
                yield self._case(course, form, last, 0, system=None, tools=None)

    def _case(
        self,
        course: Sequence[str],
        form: str,
        follower: str,
        turn: int,
        *,
        system: str | None,
        tools: ToolSchemas,
    ) -> Case:
        say = self.writer.say
        history = [] if system is None else [say("system", system)]
        history.append(say("user", "Weather?"))
        for number, said in enumerate(course):
            earlier, followed = said.split("/")
            history.append(self._reply(earlier, 2 * number, marker=""))
            history += self._observed(earlier, followed, 2 * number, "zz")
        last = 2 * len(course)
        history.append(self._reply(form, last, marker=MARKER))
        text = _OBSERVED[turn % len(_OBSERVED)]
        return Case(
            history=history,
            observations=self._observed(form, follower, last, text),
            tools=tools,
            form=form,
            follower=follower,
        )

    def _reply(self, form: str, number: int, *, marker: str) -> PlainMessage:
        if "call" not in form or self.calls is None:
            thought = _THOUGHT if form == "think" else ""
            return self.writer.say("assistant", f"{thought}It is four. {marker}".strip())
        text = {"thinkcall": _THOUGHT, "saycall": "Let me look."}.get(form, "")
        if self.calls.content == "mark":
            text += marker or "w"
        calls = [("f", f"call{number + i:05d}") for i in range(1 + (form == "calls"))]
        return self.writer.calling(self.calls, calls, text=text, argument=marker or "x")

    def _observed(self, form: str, followed: str, number: int, text: str) -> list[PlainMessage]:
        seen: list[PlainMessage] = []
        for place, kind in enumerate(followed):
            if kind == "t":
                second = place and form == "calls"
                seen.append(self.writer.result(text, call_id=f"call{number + bool(second):05d}"))
            elif kind == "s":
                seen.append(self.writer.say("system", NOTE))
            elif kind == "i":
                parts = [{"type": "image"}, {"type": "text", "text": text or "x"}]
                seen.append({"role": "user", "content": parts})
            else:
                seen.append(self.writer.say("user", text))
        return seen


def _numbered(case: Case) -> Case:
    """Return a case with a number after every earlier text."""
    for number, entry in enumerate(case.history[:-1]):
        _append(entry, f" n{number}")
    return case


def _append(entry: PlainMessage, text: str) -> None:
    """Add a text to a message, unless it is empty."""
    content: Any = entry.get("content")
    if isinstance(content, list):
        content[-1]["text"] += text
    elif content:
        entry["content"] = content + text


def _forms(rule: RoleRule) -> tuple[str, ...]:
    if rule.variant is PLAIN_REPLY:
        return "text", "think"
    return "call", "thinkcall", "saycall", "calls"


def switches(template: ChatTemplate) -> list[str]:
    """Return the strings that the template compares text with."""
    keys = {"role", "content", "user", "assistant", "system", "tool", "type", "text", "function"}
    words = [word for word in template.compared - keys if 2 <= len(word.strip()) <= 80]
    words.sort(key=lambda word: (word.isidentifier(), word))
    return words[:_MAX_SWITCHES]


def _with_pairs(words: Sequence[str]) -> list[str]:
    """Return words, and each pair of tags around a text."""
    pairs = [(word, f"</{word[1:]}") for word in words if word[0] == "<"]
    return [*words, *(f"{opening}x{end}" for opening, end in pairs if end in words)]
