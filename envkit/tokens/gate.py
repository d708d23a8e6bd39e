"""The check of a rule against full renders of canned conversations, on ids.

For each conversation the template writes everything once; what the rule writes for the last
observations must be its end, from the closer of the last reply on. The last reply carries a marker,
so a rule that cuts anywhere else is found out.
"""

from collections.abc import Iterator, Sequence

from envkit.errors import TemplateError
from envkit.tokens.delta import DeltaRenderer, ToolSchemas
from envkit.tokens.probes import PROBE_TOOLS
from envkit.tokens.rules import RoleRule
from envkit.tokens.template import PlainMessage
from envkit.tokens.writer import Writer

MARKER = "Rm7Kq"
_NASTY = "  \n\tedges \u00e9 \u4e16\u754c \U0001f680 <b>&\"'</b> {{ x }} \\n\r\n "
_THOUGHT = "<think>\nhm, 2+2\n</think>\n\n"
Case = tuple[list[PlainMessage], list[PlainMessage]]
"""History with the marked reply at its end, and the observations that follow it."""


def verify(
    renderer: DeltaRenderer, rule: RoleRule, tools: ToolSchemas, notes: list[str]
) -> tuple[int, str]:
    """Return how many conversations agree, and what is wrong ("" when nothing is).

    Args:
        renderer: Renders both sides.
        rule: What is checked.
        tools: The codec's tools; other tools and none are tried as well.
        notes: Gets the conversations that the template itself refuses.
    """
    cases = _user_cases(renderer.writer) if rule.role == "user" else _tool_cases(renderer, rule)
    agreed = 0
    for history, observations in cases:
        for given in _distinct([tools, None, PROBE_TOOLS]):
            try:
                full = renderer.template.render([*history, *observations], tools=given)
            except TemplateError as error:
                notes.append(f"{rule.role}, canned conversation: {error}")
                continue
            if MARKER not in full:
                continue
            problem = _compare(renderer, rule, (history, observations), given, full)
            if problem:
                return agreed, problem
            agreed += 1
    return agreed, "" if agreed else "the template renders no canned conversation"


def _compare(
    renderer: DeltaRenderer, rule: RoleRule, case: Case, tools: ToolSchemas, full: str
) -> str:
    history, observations = case
    try:
        tail = renderer.tail(rule, observations, history=history, tools=tools)
    except TemplateError as error:
        return str(error)
    if not full.endswith(tail):
        return f"expected the end {full[-len(tail) :]!r}, got {tail!r}"
    head = full[: len(full) - len(tail)]
    if MARKER not in head or rule.closer in head[head.rfind(MARKER) :]:
        return f"the cut before {tail[:40]!r} is not at the end of the last reply"
    whole, ids = renderer.template.encode(full), renderer.template.encode(tail)
    if whole[len(whole) - len(ids) :] != ids or ids[:1] != [rule.closer_id]:
        return f"the ids of {tail[:60]!r} differ from those in the whole conversation"
    return ""


def _distinct(candidates: Sequence[ToolSchemas]) -> Iterator[ToolSchemas]:
    seen: list[ToolSchemas] = []
    for candidate in candidates:
        given = candidate or None
        if given not in seen:
            seen.append(given)
            yield given


def _user_cases(writer: Writer) -> Iterator[Case]:
    say = writer.say
    system, first = say("system", "Be terse."), say("user", "Solve 2+2.")
    final = say("assistant", f"It is four. {MARKER}")
    thinking = say("assistant", f"{_THOUGHT}It is four. {MARKER}")
    word, later = say("assistant", "Hm."), say("user", "And now?")
    thought = say("assistant", f"{_THOUGHT}Hm.")
    for text in ("Are you sure?", _NASTY, "", "\nline\n"):
        yield [first, final], [say("user", text)]
    yield [system, first, final], [say("user", "Next.")]
    yield [first, word, later, final], [say("user", "Next.")]
    yield [system, first, thought, later, thinking], [say("user", _NASTY)]
    yield [first, thinking], [say("user", "Next.")]
    yield [first, final], [say("user", "one"), say("user", "two")]
    result = writer.result("21")
    yield [first, say("assistant", "call"), result, final], [say("user", "Next.")]


def _tool_cases(renderer: DeltaRenderer, rule: RoleRule) -> Iterator[Case]:
    writer = renderer.writer
    first, later = writer.say("user", "Weather?"), writer.say("user", "And there?")
    word = writer.say("assistant", "Cold.")

    def reply(*numbers: int, text: str = "", marked: bool = True) -> PlainMessage:
        said = f"{text}{MARKER if marked else ''}"
        if rule.variant.calls == "none":
            return writer.say("assistant", said)
        made: PlainMessage = {"role": "assistant"}
        if rule.variant.content != "absent":
            made["content"] = writer.content(
                text or ("w" if rule.variant.content == "mark" else "")
            )
        as_text = rule.variant.arguments == "text"
        made["tool_calls"] = [
            writer.call("f", f"call{i:05d}", {"q": said or "x"}, as_text=as_text) for i in numbers
        ]
        return made

    def result(number: int, text: str = "21") -> PlainMessage:
        return writer.result(text, call_id=f"call{number:05d}")

    for text in ("21", _NASTY, "", '{"temp": "\u00e9", "a": [1]}'):
        yield [first, reply(0)], [result(0, text)]
    yield [writer.say("system", "Be terse."), first, reply(0)], [result(0)]
    earlier = reply(0, marked=False)
    yield [first, earlier, result(0), reply(1)], [result(1)]
    yield [first, earlier, result(0), word, later, reply(1)], [result(1, _NASTY)]
    yield [first, reply(0, text=_THOUGHT)], [result(0)]
    yield [first, reply(0, 1)], [result(0), result(1, " 25\n")]
    yield [first, reply(0)], [result(0), writer.say("user", "Hurry up.")]
