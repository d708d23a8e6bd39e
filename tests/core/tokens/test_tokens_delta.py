"""The text after a reply, from a stand-in or a real conversation, and the ids to append."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fakes.boundaries import at_limit
from fakes.small_chat import identity, ids_of, small_template, text_writer
from hypothesis import given

from envkit.errors import TemplateError
from envkit.tokens.delta import DeltaRenderer, join
from envkit.tokens.rules import Dependency, ObservationRole, RoleRule, Variant
from envkit.tokens.writer import PLAIN_REPLY

SHOWS = (
    # First the conversation, then what the template was given; a stand-in reply shows as "Zq".
    "{% for m in messages %}{{ m.content if m.content is string }}"
    "{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}{{ a.a }}{{ a.zz }}"
    "{% endfor %}<end>{% endfor %}"
    "{% for m in messages %} {{ m.role }}"
    "={% if m.content is string %}{{ m.content[:2] }}{% else %}"
    "{% for p in m.content or [] %}{{ p.text or p.type }}+{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.id }}){% endfor %}{% endfor %}"
    "{% for tool in tools or [] %} tool{% endfor %}{% if add_generation_prompt %} <bot>{% endif %}"
)
ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls | length > 1 or m.content == 'bad' %}"
    "{{ raise_exception('too much') }}{% endif %}{% endfor %}" + SHOWS
)
ALL = Variant(content="empty", calls="all")
ONE = Variant(content="empty", calls="one")
USER = [{"role": "user", "content": "So."}]
TOOL = [{"role": "tool", "content": "21", "name": "add", "tool_call_id": "id1"}]
SAID = {"role": "assistant", "content": "Yes."}
CALLED = {
    "role": "assistant",
    "content": "Yes.",
    "tool_calls": [
        {"id": "real1", "function": {"name": "sum", "arguments": {"q": 1}}},
        {"id": "real2", "function": {"name": "max", "arguments": {"q": 2}}},
    ],
}
SYSTEMS = [{"role": "system", "content": "Be"}, {"role": "system", "content": "it"}]
TALK = [*SYSTEMS, {"role": "user", "content": "Hi"}, SAID, {"role": "user", "content": "ok"}]


def rule_of(
    *depends: Dependency,
    role: ObservationRole = "user",
    variant: Variant = PLAIN_REPLY,
    **more: Any,
) -> RoleRule:
    facts: dict[str, Any] = {"closer": "<end>", "closer_is_stop": True, **more}
    facts.setdefault("closer_id", identity(facts["closer"]))
    return RoleRule(role=role, variant=variant, depends=frozenset(depends), **facts)


def renderer_of(text: str = SHOWS, **variables: Any) -> DeltaRenderer:
    return DeltaRenderer(small_template(text, **variables), text_writer())


def given_to(rule: RoleRule, observed: Sequence[Any], **context: Any) -> str:
    """Return what the template got, without its conversation."""
    text = renderer_of(context.pop("template", SHOWS)).after_reply(rule, observed, **context)
    assert text.startswith("<end>")
    return text[text.rfind("<end>") + len("<end> ") :]


# ---- the stand-in conversation


def test_delta_is_the_text_after_a_stand_in_reply() -> None:
    text = renderer_of().after_reply(rule_of(), USER)
    assert text == "<end>So.<end> user=u assistant=Zq user=So <bot>"


def test_delta_leaves_out_the_next_header_on_request() -> None:
    shown = given_to(rule_of(), USER, generation_prompt=False)
    assert shown == "user=u assistant=Zq user=So"


def test_delta_has_tools_only_where_the_template_repeats_them() -> None:
    tools = [{"type": "function"}, {"type": "function"}]
    assert " tool" not in given_to(rule_of(), USER, tools=tools)
    assert given_to(rule_of(Dependency.TOOLS), USER, tools=tools).count(" tool") == 2
    assert " tool" not in given_to(rule_of(Dependency.TOOLS), USER)


@given(images=at_limit(1))
def test_delta_has_earlier_images_only_where_the_template_numbers_them(images: int) -> None:
    plain = "user=u assistant=Zq user=So <bot>"
    numbered = plain.replace("=u ", f"={'image+' * images}u+ ") if images else plain
    assert given_to(rule_of(), USER, earlier_images=images) == plain
    assert given_to(rule_of(Dependency.IMAGES), USER, earlier_images=images) == numbered


def test_delta_counts_no_earlier_images_by_default() -> None:
    assert given_to(rule_of(Dependency.IMAGES), USER) == "user=u assistant=Zq user=So <bot>"


# ---- what a rule reads of the conversation


@pytest.mark.parametrize("part", [Dependency.SYSTEM, Dependency.RECENT, Dependency.HISTORY])
def test_delta_asks_for_the_history_that_its_rule_reads(part: Dependency) -> None:
    with pytest.raises(TemplateError, match=f"depends on the {part} of the conversation; pass"):
        given_to(rule_of(part, Dependency.TOOLS), USER)


def test_delta_needs_no_history_for_other_dependencies() -> None:
    others = (Dependency.TOOLS, Dependency.IMAGES, Dependency.REPLY, Dependency.CALL_NAME)
    assert given_to(rule_of(*others), USER) == "user=u assistant=Zq user=So <bot>"


@pytest.mark.parametrize("depends", [(), (Dependency.TOOLS,), (Dependency.CALL_ID,)])
def test_delta_ignores_a_history_that_its_rule_does_not_read(depends: Any) -> None:
    shown = given_to(rule_of(*depends), USER, history=[*TALK, SAID])
    assert shown == "user=u assistant=Zq user=So <bot>"


def test_delta_reads_only_system_prompts_where_the_rule_says_so() -> None:
    shown = given_to(rule_of(Dependency.SYSTEM), USER, history=[*TALK, SAID])
    assert shown == "system=Be system=it user=u assistant=Zq user=So <bot>"


def test_delta_reads_the_turns_since_the_last_user_message_and_the_real_reply() -> None:
    shown = given_to(rule_of(Dependency.RECENT), USER, history=[*TALK, SAID, *TOOL, SAID])
    assert shown == "user=ok assistant=Ye tool=21 assistant=Ye user=So <bot>"


def test_delta_reads_every_message_where_the_rule_says_so() -> None:
    shown = given_to(rule_of(Dependency.HISTORY), USER, history=[*TALK, SAID])
    assert shown == ("system=Be system=it user=Hi assistant=Ye user=ok assistant=Ye user=So <bot>")


@pytest.mark.parametrize("part", [Dependency.RECENT, Dependency.HISTORY])
@pytest.mark.parametrize(
    ("reply", "variant", "shown"),
    [
        (SAID, PLAIN_REPLY, "assistant=Ye"),
        (SAID, ALL, "assistant=(f call00000)"),
        (CALLED, PLAIN_REPLY, "assistant=Zq"),
        (CALLED, ALL, "assistant=Ye(sum real1)(max real2)"),
    ],
)
def test_delta_renders_the_real_reply_if_it_has_the_form_of_the_rule(
    part: Dependency, reply: Any, variant: Variant, shown: str
) -> None:
    history = [{"role": "user", "content": "Hi"}, reply]
    rule = rule_of(part, variant=variant)
    assert given_to(rule, USER, history=history) == f"user=Hi {shown} user=So <bot>"


def test_delta_renders_a_stand_in_if_the_rule_reads_no_turns() -> None:
    rule = rule_of(Dependency.SYSTEM, variant=ALL)
    shown = given_to(rule, USER, history=[*SYSTEMS, CALLED])
    assert "assistant=(sum real1)(max real2)" in shown


# ---- calls


def test_delta_calls_what_its_tool_results_answer() -> None:
    rule = rule_of(role="tool", variant=ALL)
    nameless = {"role": "tool", "content": "22"}
    shown = given_to(rule, [*TOOL, nameless, *USER])
    assert "assistant=(add id1)(f call00001) tool=21 tool=22 user=So" in shown
    assert "assistant=(f call00000) " in given_to(rule, USER)


@pytest.mark.parametrize(
    ("role", "depends", "calls"),
    [
        ("tool", (), "(add id1)"),
        ("tool", (Dependency.CALL_NAME,), "(sum real1)(max real2)"),
        ("tool", (Dependency.CALL_ID,), "(sum real1)(max real2)"),
        ("user", (), "(sum real1)(max real2)"),
    ],
)
def test_delta_repeats_the_real_calls_where_the_template_reads_them(
    role: Any, depends: Any, calls: str
) -> None:
    rule = rule_of(*depends, role=role, variant=ALL)
    assert f"assistant={calls} " in given_to(rule, TOOL, history=[*TALK, CALLED])


def test_delta_reads_calls_in_every_written_form() -> None:
    calls = [{"name": "sum"}, {"function": {"name": "max"}}, {"id": "x", "name": "min"}]
    reply = {"role": "assistant", "tool_calls": calls}
    shown = given_to(rule_of(variant=ALL), USER, history=[*USER, reply])
    assert "(sum call00000)(max call00001)(min x) " in shown


@pytest.mark.parametrize(
    ("part", "key"), [(Dependency.CALL_NAME, "name"), (Dependency.CALL_ID, "tool_call_id")]
)
@pytest.mark.parametrize("history", [(), [*TALK, SAID]])
def test_delta_asks_for_the_parts_of_a_call_that_the_template_writes(
    part: Dependency, key: str, history: Any
) -> None:
    rule = rule_of(part, role="tool", variant=ALL)
    lacking = {name: value for name, value in TOOL[0].items() if name != key}
    with pytest.raises(TemplateError, match=rf"must have the keys \['{key}'\]"):
        given_to(rule, [*TOOL, lacking], history=history)
    assert "(add id1) " in given_to(rule, [*TOOL, *USER], history=history)
    assert given_to(rule, [lacking], history=[*TALK, CALLED])


def test_delta_calls_once_where_the_template_takes_one_call_per_reply() -> None:
    rule = rule_of(role="tool", variant=ALL)
    other = {**TOOL[0], "name": "max"}
    for results in ([*TOOL], [*TOOL, other], [*TOOL, other, other]):
        assert "assistant=(add id1) tool=21" in given_to(rule, results, template=ONE_CALL)
    tools = [{"type": "function"}]
    rule = rule_of(Dependency.TOOLS, role="tool", variant=ALL)
    for asked in (True, False):
        shown = given_to(
            rule, [*TOOL, other], template=ONE_CALL, tools=tools, generation_prompt=asked
        )
        assert shown.split()[3:] == ["tool=21", "tool=21", "tool", *["<bot>"] * asked]


@pytest.mark.parametrize("variant", [ALL, ONE, PLAIN_REPLY])
@pytest.mark.parametrize("results", [1, 2])
def test_delta_replaces_no_rejected_reply_except_by_fewer_calls(
    variant: Variant, results: int
) -> None:
    # A stand-in would be accepted, but the text after it may differ.
    one = [*CALLED["tool_calls"]][:1]
    reply: dict[str, Any] = {"role": "assistant", "content": "bad"}
    if variant is not PLAIN_REPLY:
        reply["tool_calls"] = one
    template = small_template(
        ONE_CALL.replace("m.content == 'bad'", "(m.content or '')[:3] == 'bad'")
    )
    rule = rule_of(Dependency.HISTORY, role="tool", variant=variant)
    context: dict[str, Any] = {"history": [*USER, reply]}
    renderer = DeltaRenderer(template, text_writer())
    if variant is ALL and results == 2:
        assert renderer.after_reply(rule, TOOL * results, **context)
        return
    with pytest.raises(TemplateError, match="too much"):
        renderer.after_reply(rule, TOOL * results, **context)


def test_calls_are_spelled_out_only_in_plain_replies_before_tool_messages() -> None:
    renderer = renderer_of()
    other = {"role": "tool", "content": "22"}
    history = [*USER, SAID, *TOOL, other, *USER, SAID, *USER, *TOOL, CALLED, *TOOL, SAID]
    assert renderer.with_calls(history) == history
    assert renderer.with_calls(history) is not history
    renderer.call_variant = ALL
    written = renderer.with_calls(history)
    assert written[1] == renderer.writer.calling(
        ALL, [("add", "id1"), ("f", "call00001")], text="", argument="x"
    )
    assert [*written[:1], *written[2:]] == [*history[:1], *history[2:]]
    rule = rule_of(Dependency.HISTORY)
    shown = renderer.after_reply(rule, USER, history=history)
    assert "user=So assistant=(add id1)(f call00001) tool=21 tool=22 user=So" in shown
    assert "tool=21 assistant=Ye user=So" in shown


# ---- the tail


@pytest.mark.parametrize("before", ["", "\n", "ab"])
def test_tail_starts_with_the_first_closer(before: str) -> None:
    renderer = renderer_of(
        "{% for m in messages %}{{ m.content }}{{ x }}<end>{% endfor %}", x=before
    )
    assert renderer.after_reply(rule_of(), USER) == f"{before}<end>So.{before}<end>"
    assert renderer.tail(rule_of(), USER) == f"<end>So.{before}<end>"
    assert renderer.tail(rule_of(Dependency.HISTORY), USER, history=[*USER, SAID])


def test_tail_refuses_a_reply_without_the_closer() -> None:
    with pytest.raises(TemplateError, match="does not close the reply with '<stop>' before these"):
        renderer_of().tail(rule_of(closer="<stop>"), USER)


# ---- joining with the sampled ids

END, STOP, OTHER = (identity(token) for token in ("<end>", "<stop>", "<img>"))
TAIL = [END, 5, END, 6]


def joined(sampled: Any, *, mismatch: str = "accept", ids: Any = TAIL, **rule: Any) -> list[int]:
    return join(
        small_template(SHOWS),
        rule_of(**rule),
        ids,
        sampled,
        stop_ids=frozenset({END, STOP}),
        mismatch=mismatch,
    )


@pytest.mark.parametrize("mismatch", ["accept", "append", "raise"])
@pytest.mark.parametrize("opener", [True, False])
def test_join_appends_no_closer_that_the_model_sampled(mismatch: str, opener: bool) -> None:
    for sampled in ([END], [7, END], [STOP, END], np.array([7, END])):
        assert joined(sampled, mismatch=mismatch, opener=opener, prefix="\n") == [5, END, 6]


@pytest.mark.parametrize("mismatch", ["accept", "append", "raise"])
def test_join_closes_a_reply_that_was_cut_off(mismatch: str) -> None:
    for sampled in ([], [7], [END, 7], [STOP, 7], np.array([], np.int64), np.array([OTHER])):
        assert joined(sampled, mismatch=mismatch) == TAIL


def test_join_treats_another_stop_token_by_its_policy() -> None:
    for sampled in ([STOP], [7, STOP], [END, STOP]):
        assert joined(sampled, mismatch="accept", prefix="\n") == [5, END, 6]
        assert joined(sampled, mismatch="append", prefix="\n") == TAIL
        with pytest.raises(TemplateError, match=rf"stop token {STOP}, but .*'<end>' \({END}\)"):
            joined(sampled, mismatch="raise")


def test_join_keeps_the_next_messages_token_after_another_stop_token() -> None:
    assert joined([STOP], mismatch="accept", opener=True) == TAIL
    assert joined([STOP], mismatch="append", opener=True) == TAIL


@pytest.mark.parametrize("prefix", ["\n", " \n ", "ab", "<img>"])
def test_join_writes_the_text_before_the_closer_after_a_cut(prefix: str) -> None:
    assert joined([7], prefix=prefix) == [*ids_of(prefix), *TAIL]
    assert joined([7], prefix=prefix, opener=True) == TAIL


@pytest.mark.parametrize("prefix", ["", " ", "   "])
def test_join_writes_no_spaces_before_the_closer(prefix: str) -> None:
    assert joined([7], prefix=prefix) == TAIL


@pytest.mark.parametrize("ids", [[], [STOP], [STOP, END], [5, END]])
def test_join_refuses_a_tail_that_does_not_start_with_the_closer(ids: list[int]) -> None:
    with pytest.raises(TemplateError, match="does not start the text '<end>'"):
        joined([7], ids=ids)
