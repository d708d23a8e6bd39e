"""How a server prepares a conversation for a chat template, as vLLM does.

Source of every rule here: vLLM 0.32, `vllm/renderers/hf.py` and
`vllm/entrypoints/anthropic/serving.py`. A server decides from the template's text alone, so that a
prompt can be equal to a server's only by deciding in the same way.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import Any, Final

from jinja2 import TemplateError as JinjaError
from jinja2 import meta, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from envkit.errors import TemplateError
from envkit.tokens.jinja import compile_template
from envkit.tokens.probes import PROBE_TOOLS
from envkit.tokens.template import ChatTemplate, PlainMessage

_EDGES: Final = ("", "plain", "  \n edges \u00e9 \n ")
_RESULT: Final = "Rs4Pq"
_THOUGHT: Final = "<think>\nq\n</think>\n\n"
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_PLACES: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of every template that are not the client's to set."""


class ServedTemplate:
    """What a server decides about one template."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._tree = compile_template(template.text).environment.parse(template.text)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether a server passes content as lists of parts; otherwise it joins texts by lines."""
        try:
            return _loops_over_content(self._tree)
        except _UnknownTargetError:
            return False

    @cached_property
    def flattens(self) -> bool:
        """Whether a list with one text renders like that text, so that a text may stand for it."""
        return all(
            self._outcome(_talk(text, place, as_parts=False), tools)
            == self._outcome(_talk(text, place, as_parts=True), tools)
            for text, place, tools in product(_EDGES, range(4), (None, PROBE_TOOLS))
        )

    @cached_property
    def takes_results(self) -> bool:
        """Whether the template writes a tool message after a structured call."""
        talk = _talk("", 3, as_parts=self.takes_parts)
        talk[-1]["content"] = _RESULT
        return any(_RESULT in (self._outcome(talk, tools) or "") for tools in (PROBE_TOOLS, None))

    @cached_property
    def leads_with_system(self) -> bool:
        """Whether Anthropic's system messages become one at the start, as the template needs."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        talk = [{"role": role, "content": "t"} for role in ("system", "user") * 2]
        try:
            environment.from_string(self._template.text).render(
                messages=talk, add_generation_prompt=False
            )
        except (JinjaError, TypeError):
            return True
        return False

    @cached_property
    def knows_developer(self) -> bool:
        """Whether the template names the role `developer`; otherwise it becomes `system`."""
        return any(f"{mark}developer{mark}" in self._template.text for mark in "\"'")

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that a client may set."""
        special: Any = getattr(self._template.tokenizer, "special_tokens_map", None) or {}
        return frozenset(meta.find_undeclared_variables(self._tree)) - _PLACES - set(special)

    @cached_property
    def effort_without_thinking(self) -> str:
        """The reasoning effort that turns thinking off, or else the lowest one."""
        without = self._with_effort("none")
        is_heeded = without is not None and all(
            self._with_effort(one) != without for one in _EFFORTS
        )
        return "none" if is_heeded else "low"

    def _with_effort(self, effort: str) -> str | None:
        """Return a short prompt; None if the template rejects the effort."""
        chosen: dict[str, Any] = {
            **self._template.kwargs,
            "reasoning_effort": effort,
            "enable_thinking": effort != "none",
        }
        try:
            other = ChatTemplate(self._template.tokenizer, self._template.text, kwargs=chosen)
            return other.render([{"role": "user", "content": "Hi"}])
        except TemplateError:
            return None

    def _outcome(self, messages: list[PlainMessage], tools: Any) -> str | None:  # noqa: ANN401
        try:
            return self._template.render(messages, tools=tools)
        except TemplateError:
            return None


def _talk(text: str, place: int, *, as_parts: bool) -> list[PlainMessage]:
    """Return a conversation with a text in the messages of one kind."""

    def say(role: str, said: str) -> PlainMessage:
        return {"role": role, "content": [{"type": "text", "text": said}] if as_parts else said}

    if place == 0:
        return [say("system", f"s{text}"), say("user", text)]
    if place == 1:
        return [say("user", f"u{text}"), say("assistant", f"{text}a"), say("user", text)]
    if place == 2:
        return [say("user", text), say("assistant", f"{_THOUGHT}{text}"), say("user", "u")]
    function = {"name": "f", "arguments": {"a": "x"}}
    call = {"type": "function", "id": "call00000", "function": function}
    reply = {**say("assistant", text), "tool_calls": [call]}
    if as_parts and not text:
        reply["content"] = []
    result: PlainMessage = {
        "role": "tool",
        "content": text,
        "name": "f",
        "tool_call_id": "call00000",
    }
    return [say("user", text), reply, result]


# ---- whether the template loops over the parts of a message's content


class _UnknownTargetError(Exception):
    """A loop or an assignment has a target that a server does not follow."""


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _UnknownTargetError
    return target.name


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Return whether an expression is a variable, or a key of it, or filters or slices that."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getattr):
        return node.attr == key and _reads_directly(node.node, name)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        value: object = node.arg.value  # pyright: ignore[reportUnknownMemberType]
        return value == key and _reads_directly(node.node, name)
    return False


def _reads_directly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _of_messages(tree: nodes.Template) -> set[str]:
    """Return the names that loops give to a message."""
    known, todo = {"messages"}, ["messages"]
    while todo:
        name = todo.pop()
        for assign in tree.find_all(nodes.Assign):
            if _reads(assign.node, name) and (target := _name(assign.target)) not in known:
                known.add(target)
                todo.append(target)
    loops = tree.find_all(nodes.For)
    return {_name(one.target) for one in loops if any(_reads(one.iter, name) for name in known)}


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = _of_messages(tree)
    in_macros: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        given = set(_content_parameters(tree, macro, messages))
        in_macros |= {id(loop): given for loop in macro.find_all(nodes.For)}
    for loop in tree.find_all(nodes.For):
        over = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        if (
            any(_reads(loop.iter, name, "content") for name in messages)
            or over in in_macros.get(id(loop), ())
            or (over == "content" and id(loop) not in in_macros)
        ):
            _name(loop.target)
            return True
    return False


def _content_parameters(
    tree: nodes.Template, macro: nodes.Macro, messages: set[str]
) -> Iterator[str]:
    """Yield a macro's parameters that some call gives the content of a message."""
    names = [one.name for one in macro.args]
    for call in tree.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given: list[tuple[str, nodes.Node]] = list(zip(names, call.args, strict=False))
        given += [(one.key, one.value) for one in call.kwargs if one.key in names]
        for name, value in given:
            if any(_reads(value, message, "content") for message in messages):
                yield name
