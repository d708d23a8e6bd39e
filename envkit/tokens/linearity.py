"""Test whether a full render keeps the model's replies, comparing ids.

A ledger is append-only if the ids of every prompt start with the ids of the previous prompt and its
reply. Templates break that by stripping earlier reasoning, by writing an empty thought that
disappears later, or by moving the system prompt.
"""

from collections.abc import Mapping, Sequence

from envkit.errors import TemplateError
from envkit.tokens.delta import DeltaRenderer
from envkit.tokens.probes import PROBE_TOOLS
from envkit.tokens.rules import Linearity, RoleRule
from envkit.tokens.template import PlainMessage, ToolSchemas

_OPENING = "<think>\n"
_THOUGHT = "hm, 2+2\n</think>\n\nIt is four."


def measure_linearity(
    renderer: DeltaRenderer, rules: Mapping[str, RoleRule], tools: ToolSchemas
) -> Linearity:
    """Render short conversations and test whether each prompt continues the previous one."""
    return _Measure(renderer, rules, tools).run()


class _Measure:
    def __init__(
        self, renderer: DeltaRenderer, rules: Mapping[str, RoleRule], tools: ToolSchemas
    ) -> None:
        self.template, self.writer = renderer.template, renderer.writer
        self.rules, self.tools = rules, tools
        self.user = self.writer.say("user", "u")
        prompt = self.template.render([self.user], tools=tools)
        self.opened = prompt.rstrip().endswith(_OPENING.rstrip())

    def run(self) -> Linearity:
        later, result = self.writer.say("user", "u2"), self.writer.result("21")
        say = self.writer.say
        thought = say("assistant", _THOUGHT if self.opened else _OPENING + _THOUGHT)
        word = thought if self.opened else say("assistant", "It is four.")
        edges = say("assistant", " It is four. \n")
        beside = self._keeps_after_tool([self._call("Let me look."), result])
        call = self._call("")
        # A template that drops any text next to a call is reported as such, not as stripping
        # reasoning. No white space at the edges: a template may trim replies but keep reasoning.
        thinking = self._call(_OPENING + "hm\n</think>\n\nLet me look.") if beside else thought
        return Linearity(
            plain_then_user=self._keeps([word, later, word, later]),
            thinking_then_user=self._keeps([thought, later, thought, later]),
            plain_then_tool=self._keeps_after_tool([call, result, word, later])
            and self._keeps_after_tool([word, result]),
            thinking_then_tool=self._keeps_after_tool([thinking, result])
            and self._keeps_after_tool([thought, result]),
            thinking_tool_then_user=self._keeps_after_tool([thinking, result, thought, later]),
            text_beside_call=beside,
            edge_spaces=self._keeps([edges, later]),
        )

    def _call(self, text: str) -> PlainMessage:
        rule = self.rules.get("tool")
        if rule is None or rule.variant.calls == "none":
            return self.writer.say("assistant", text or "w")
        as_text = rule.variant.arguments == "text"
        made: PlainMessage = {"role": "assistant"}
        if text or rule.variant.content != "absent":
            made["content"] = self.writer.content(text)
        made["tool_calls"] = [self.writer.call("f", "call00000", {"q": "x"}, as_text=as_text)]
        return made

    def _keeps_after_tool(self, rest: Sequence[PlainMessage]) -> bool:
        return "tool" not in self.rules or self._keeps(rest)

    def _keeps(self, rest: Sequence[PlainMessage]) -> bool:
        """Return whether prompts only grow, with and without a system prompt and tools."""
        system = self.writer.say("system", "Be terse.")
        return all(
            self._grows([*head, self.user, *rest], tools)
            for head, tools in (([], self.tools), ([system], self.tools or PROBE_TOOLS))
        )

    def _grows(self, messages: Sequence[PlainMessage], tools: ToolSchemas) -> bool:
        """Return whether each prompt continues the previous prompt and its reply.

        It is also true if the template rejects these messages, since nothing then differs.
        """
        before: str | None = None
        reply = ""
        for index, entry in enumerate([*messages, {"role": "assistant"}]):
            if entry["role"] != "assistant":
                continue
            try:
                prompt = self.template.render(messages[:index], tools=tools)
            except TemplateError:
                return True
            if before is not None and not self._continues(before, reply, prompt):
                return False
            before, reply = prompt, self._said(entry)
        return True

    def _continues(self, before: str, reply: str, prompt: str) -> bool:
        ids, longer = self.template.encode(before), self.template.encode(prompt)
        if longer[: len(ids)] != ids or not prompt.startswith(before):
            return False
        # a template may put a space before a reply (SmolVLM), which the model then samples too;
        # SentencePiece writes it into the first token
        said = prompt[len(before) :], self.template.decode(longer[len(ids) :])
        return any(text.removeprefix(" ").startswith(reply.removeprefix(" ")) for text in said)

    @staticmethod
    def _said(entry: PlainMessage) -> str:
        content = entry.get("content") or ""
        return content if isinstance(content, str) else "".join(part["text"] for part in content)
