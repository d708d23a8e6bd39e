"""What the ids after an observation depend on, found by changing one thing at a time.

Besides plain changes, every word that the template itself compares with (a switch such as
"/no_think") is tried in the system prompt and in earlier turns.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from envkit.errors import TemplateError
from envkit.tokens.delta import DeltaRenderer, ToolSchemas
from envkit.tokens.rules import Dependency, RoleRule
from envkit.tokens.template import ChatTemplate, PlainMessage
from envkit.tokens.writer import CALL_ID

PROBE_TOOLS: list[dict[str, Any]] = [
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
_MOST_SWITCHES = 60


def find_dependencies(
    renderer: DeltaRenderer, rule: RoleRule, tools: ToolSchemas, notes: list[str]
) -> frozenset[Dependency]:
    """Return what the tail depends on; refused probes are noted."""
    return _Probe(renderer, rule, tools, notes).run()


def switches(template: ChatTemplate) -> list[str]:
    """Return the template's own string constants that a message could contain."""
    keys = {"role", "content", "user", "assistant", "system", "tool", "type", "text", "function"}
    words = sorted(text for text in template.constants - keys if 2 <= len(text.strip()) <= 40)
    return words[:_MOST_SWITCHES]


class _Probe:
    def __init__(
        self, renderer: DeltaRenderer, rule: RoleRule, tools: ToolSchemas, notes: list[str]
    ) -> None:
        self.renderer, self.rule, self.tools, self.notes = renderer, rule, tools, notes
        self.writer = renderer.writer
        self.observation = self.writer.observation(rule.role, "Oo0bs")
        self.reply = self.writer.reply(rule.variant, [("f", CALL_ID)])
        self.user = self.writer.say("user", "u")

    def run(self) -> frozenset[Dependency]:
        found: set[Dependency] = set()
        base = self._try([self.user], None, "without tools")
        if base is None:
            found.add(Dependency.TOOLS)
            base = self._try([self.user], self.tools or PROBE_TOOLS, "with tools")
        if base is None:
            return frozenset({Dependency.TOOLS, Dependency.HISTORY})
        used = None if Dependency.TOOLS not in found else (self.tools or PROBE_TOOLS)
        for tools in (PROBE_TOOLS, self.tools):
            if tools and self._differs(base, [self.user], tools, "tools"):
                found.add(Dependency.TOOLS)
        if any(self._differs(base, head, used, "a system prompt") for head in self._systems()):
            found.add(Dependency.SYSTEM)
        if any(self._differs(base, head, used, "earlier turns") for head in self._histories()):
            found.add(Dependency.HISTORY)
        if self.rule.role == "tool":
            found |= self._call_parts(base, used)
        return frozenset(found)

    def _systems(self) -> Iterator[list[PlainMessage]]:
        yield [self.writer.say("system", "s"), self.user]
        words = switches(self.renderer.template)
        if words:
            yield [self.writer.say("system", " ".join(words)), self.user]
        for word in words:
            yield [self.writer.say("system", word), self.user]

    def _histories(self) -> Iterator[list[PlainMessage]]:
        say = self.writer.say
        word, later = say("assistant", "w"), say("user", "u2")
        yield [self.user, word, later]
        yield [self.user, word, later, say("assistant", "w2"), say("user", "u3")]
        yield [say("system", "s"), self.user, word, later]
        yield [self.user, say("assistant", "<think>\nr\n</think>\n\nw"), later]
        names = [("f", "call00009")]
        if self.rule.role == "tool" and self.rule.variant.calls != "none":
            called = self.writer.reply(self.rule.variant, names)
        else:
            called = word
        answer = self.writer.result("zz", call_id="call00009")
        yield [self.user, called, answer, word, later]
        yield [self.user, called, answer]
        text = " ".join(switches(self.renderer.template))
        if text:
            yield [say("user", text), word, later]
            yield [self.user, say("assistant", text), later]
        yield from ([say("user", switch)] for switch in switches(self.renderer.template))

    def _call_parts(self, base: str, tools: ToolSchemas) -> set[Dependency]:
        """Return which parts of a call come back with its result."""
        found: set[Dependency] = set()
        for part, name, call_id in (
            (Dependency.CALL_NAME, "g", CALL_ID),
            (Dependency.CALL_ID, "f", "call00005"),
        ):
            reply = self.writer.reply(self.rule.variant, [(name, call_id)])
            if self._try([self.user], tools, "another call", reply) != base:
                found.add(part)
        return found

    def _differs(
        self, base: str, head: Sequence[PlainMessage], tools: ToolSchemas, what: str
    ) -> bool:
        tail = self._try(head, tools, what)
        return tail is not None and tail != base

    def _try(
        self,
        head: Sequence[PlainMessage],
        tools: ToolSchemas,
        what: str,
        reply: PlainMessage | None = None,
    ) -> str | None:
        messages = [*head, reply or self.reply, self.observation]
        try:
            text = self.renderer.template.render(messages, tools=tools)
            return text[self.writer.after_reply(text) :]
        except TemplateError as error:
            self.notes.append(f"{self.rule.role}, {what}: {error}")
            return None
