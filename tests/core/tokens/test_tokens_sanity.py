"""What the comparison of a delta with a full render finds, and what it accepts."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.small_chat import identity, ids_of, small_template, template_with

from envkit.errors import TemplateError
from envkit.images import Image
from envkit.tokens import Encoded, SanityMode, SanityReport, SanityStatus
from envkit.tokens.rules import RoleRule
from envkit.tokens.sanity import LONG_IDS, LastReply, WholeImages, check_delta
from envkit.tokens.template import ChatTemplate
from envkit.tokens.writer import PLAIN_REPLY

EQUAL, WHITESPACE, DIFFERENT, UNCHECKED = SanityStatus
END, STOP, IMG, LONG = (identity(token) for token in ("<end>", "<stop>", "<img>", "<end>!"))
BODY = (
    "{{ m.content if m.content is string else (m.content or []) | map(attribute='text') | join }}"
    "{% for c in m.tool_calls or [] %}{% set f = c.function or c %}[{{ c.id }} {{ f.name }} "
    "{{ f.arguments if f.arguments is string else f.arguments | tojson }}]{% endfor %}"
)
CHAT = (
    "{% for m in messages %}{{ m.role }}:" + BODY + "<end>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
PREFIXED = CHAT.replace("<end>", "{{ before if m.role == 'assistant' }}<end>")
USER = {"role": "user", "content": "u"}
SAID = {"role": "assistant", "content": "w"}
OBSERVED = [{"role": "user", "content": "So."}]
TALK = [USER, SAID, USER, SAID]
AFTER = "\nuser:So.<end>\nassistant:"


def check(
    after: str | Sequence[int] = AFTER,
    *,
    template: str | ChatTemplate = CHAT,
    history: Sequence[Any] = TALK,
    observed: Sequence[Any] = OBSERVED,
    sampled: Any = (5, END),
    stops: Sequence[int] = (END, STOP),
    closer: str = "<end>",
    tools: Any = None,
    train: Sequence[int] | None = None,
    images: tuple[Any, ...] = (),
    process: Callable[[str], WholeImages | None] | None = None,
    adds: bool = False,
    **variables: Any,
) -> SanityReport:
    """Check what was appended after a reply, by default the right text after a closed one."""
    if isinstance(template, str):
        template = small_template(template, **variables)
    wire = ids_of(after) if isinstance(after, str) else list(after)
    encoded = Encoded(
        wire_ids=tuple(wire), train_ids=tuple(wire if train is None else train), images=images
    )
    rule = RoleRule(
        role="user",
        variant=PLAIN_REPLY,
        closer=closer,
        closer_id=identity(closer),
        closer_is_stop=True,
    )
    reply = LastReply(
        index=len(history) - 1,
        sampled_ids=sampled,
        rule=rule,
        stop_ids=frozenset(stops),
        adds_closer=adds,
    )
    conversation = [*history, *observed]
    return check_delta(template, lambda: conversation, encoded, reply, tools=tools, process=process)


@pytest.mark.parametrize(
    ("status", "modes"),
    [
        (EQUAL, ["strict", "ignore_strippable", "off"]),
        (WHITESPACE, ["ignore_strippable", "off"]),
        (DIFFERENT, ["off"]),
    ],
)
def test_mode_accepts_only_the_differences_that_it_names(
    status: SanityStatus, modes: list[SanityMode]
) -> None:
    every: tuple[SanityMode, ...] = ("strict", "ignore_strippable", "off")
    assert [mode for mode in every if status.passes(mode)] == modes


# ---- how the reply ended

CLOSED = [(END,), (5, END), (STOP, END), np.array([5, END])]
CUT = [(), (5,), (END, 5), (STOP, 5), np.array([END, 5])]
STOPPED = [(STOP,), (5, STOP), (END, STOP)]


@pytest.mark.parametrize("sampled", CLOSED)
def test_closer_that_the_model_sampled_stands_once(sampled: Any) -> None:
    assert check(AFTER, sampled=sampled) == SanityReport(status=EQUAL)
    assert check(f"<end>{AFTER}", sampled=sampled).status is DIFFERENT


@pytest.mark.parametrize("sampled", CUT)
def test_closer_of_a_reply_that_was_cut_off_is_in_the_delta(sampled: Any) -> None:
    assert check(f"<end>{AFTER}", sampled=sampled) == SanityReport(status=EQUAL)
    for wrong in (AFTER, f"<end><end>{AFTER}", f"<stop>{AFTER}"):
        assert check(wrong, sampled=sampled).status is DIFFERENT


@pytest.mark.parametrize("sampled", STOPPED)
def test_another_stop_token_replaces_the_closer_or_comes_before_it(sampled: Any) -> None:
    given = {False: AFTER, True: f"<end>{AFTER}"}
    for adds, right in given.items():
        assert check(right, sampled=sampled, adds=adds) == SanityReport(status=EQUAL)
        for wrong in (given[not adds], f"<end><end>{AFTER}", f"<stop>{AFTER}", ""):
            assert check(wrong, sampled=sampled, adds=adds).status is DIFFERENT
    assert check(AFTER, sampled=sampled, stops=[END]).status is DIFFERENT


def test_stop_id_without_a_name_is_no_closer() -> None:
    assert check(AFTER, stops=[END, 5, 10**6]).status is EQUAL


def test_closer_may_be_another_stop_token_than_that_of_the_rule() -> None:
    template = CHAT.replace("<end>", "{{ '<stop>' if m.role == 'assistant' else '<end>' }}")
    assert check(AFTER, template=template, sampled=[STOP]).status is EQUAL
    assert check(f"<stop>{AFTER}", template=template, sampled=[5]).status is EQUAL
    assert check(f"<end>{AFTER}", template=template, sampled=[5]).status is DIFFERENT


@pytest.mark.parametrize("adds", [False, True])
def test_closer_of_the_rule_may_be_replaced_by_the_stop_token_of_the_render(adds: bool) -> None:
    template = CHAT.replace("<end>", "{{ '<stop>' if m.role == 'assistant' else '<end>' }}")
    context: dict[str, Any] = {"template": template, "sampled": [5, END], "adds": adds}
    for right in (AFTER, f"<stop>{AFTER}"):
        assert check(right, **context) == SanityReport(status=EQUAL)
    for wrong in ("", f"<end>{AFTER}", f"<stop><stop>{AFTER}", f"x<stop>{AFTER}"):
        assert check(wrong, **context).status is DIFFERENT


def test_longer_one_of_two_closers_counts() -> None:
    template = CHAT.replace("<end>", "{{ '<end>!' if m.role == 'assistant' else '<end>' }}")
    for closers in ([END, LONG], [LONG, END]):
        assert check(AFTER, template=template, sampled=[LONG], stops=closers).status is EQUAL


def test_text_of_a_cut_reply_before_its_closer_may_be_left_out_from_the_left() -> None:
    for before in ("", "\n", "ab", " a\nb "):
        for lead in {before, "", "\n", " ", before[-2:]}:
            given = f"{lead}<end>{AFTER}"
            report = check(given, template=PREFIXED, before=before, sampled=[5])
            assert report == SanityReport(status=EQUAL), (before, lead)
        given = f"x{before}<end>{AFTER}"
        report = check(given, template=PREFIXED, before=before, sampled=[5])
        assert report.status is DIFFERENT
    for lead in ("a", "ba", "b b"):
        given = f"{lead}<end>{AFTER}"
        assert check(given, template=PREFIXED, before="ab", sampled=[5]).status is DIFFERENT


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("sampled", [[END], [STOP]])
@pytest.mark.parametrize("stops", [[END, STOP], [STOP]])
def test_text_before_a_closer_excuses_only_a_cut_reply(
    sampled: Any, stops: Any, adds: bool
) -> None:
    # Without white space, this text looks like the closer.
    context: dict[str, Any] = {"template": PREFIXED, "before": "< end>", "stops": stops}
    right = f"<end>{AFTER}" if sampled == [STOP] and adds else AFTER
    assert check(right, sampled=sampled, adds=adds, **context) == SanityReport(status=EQUAL)
    for lead in ("<end>", "<end><end>", "< end>"):
        report = check(f"{lead}{right}", sampled=sampled, adds=adds, **context)
        assert report.status is DIFFERENT, lead
    assert check(f"< end><end>{AFTER}", sampled=[5], adds=adds, **context).status is EQUAL


# ---- differences


def test_delta_of_another_text_is_different() -> None:
    report = check("\nuser:No.<end>\nassistant:")
    assert report.status is DIFFERENT
    assert report.expected == f"<end>{AFTER}"
    assert report.found == "<end>\nuser:No.<end>\nassistant:"
    assert report.reason == ""


def test_delta_without_any_one_of_its_tokens_is_not_equal() -> None:
    ids = ids_of(AFTER)
    for at in range(len(ids)):
        lost = [*ids[:at], *ids[at + 1 :]]
        expected = WHITESPACE if ids[at] == ids_of("\n")[0] else DIFFERENT
        assert check(lost).status is expected
        assert check(ids, train=lost).status is expected


def test_same_text_in_other_ids_counts_as_white_space() -> None:
    letters = [one for letter in "user" for one in ids_of(letter)]
    split = [*ids_of("\n"), *letters, *ids_of(AFTER.removeprefix("\nuser"))]
    assert len(split) > len(ids_of(AFTER))
    report = check(split)
    assert report.status is WHITESPACE
    assert report.expected == report.found == f"<end>{AFTER}"


def test_empty_delta_is_different() -> None:
    assert check([]).status is DIFFERENT


# ---- images


def whole(text: str, **facts: Any) -> WholeImages:
    """Return a processor's output that writes every image twice."""
    doubled = ids_of(text.replace("<img>", "<img><img>"))
    tensors = {"pixel_values": np.zeros((2, 3))}
    known: dict[str, Any] = {"ids": doubled, "tensors": tensors, "ours": tensors, **facts}
    return WholeImages(**known)


SEEN = [{"role": "user", "content": "<img>So."}]
HAS_IMAGES: dict[str, Any] = {
    "images": (Image.from_array(np.zeros((4, 4, 3), np.uint8)),),
    "history": [{"role": "user", "content": "<img>u"}, SAID],
    "observed": SEEN,
}
ONCE, TWICE = (f"\nuser:{'<img>' * count}So.<end>\nassistant:" for count in (1, 2))


def test_image_tokens_are_those_of_the_processor() -> None:
    right, wrong = ids_of(TWICE), ids_of(ONCE)
    report = check(ONCE, train=right, process=whole, **HAS_IMAGES)
    assert report == SanityReport(status=EQUAL)
    report = check(ONCE, train=wrong, process=whole, **HAS_IMAGES)
    assert report.status is DIFFERENT
    assert (report.expected, report.found) == (f"<end>{TWICE}", f"<end>{ONCE}")


def test_processor_gets_the_full_render() -> None:
    texts: list[str] = []

    def process(text: str) -> WholeImages:
        texts.append(text)
        return whole(text)

    assert check(ONCE, train=ids_of(TWICE), process=process, **HAS_IMAGES).status is EQUAL
    assert texts == [f"user:<img>u<end>\nassistant:w<end>{ONCE}"]
    assert check("other", train=ids_of(TWICE), process=process, **HAS_IMAGES).status is DIFFERENT
    assert check(AFTER, process=process).status is EQUAL
    assert len(texts) == 1


def read_no_text(text: str) -> None:
    del text


@pytest.mark.parametrize("process", [None, read_no_text])
def test_only_placeholders_are_compared_without_a_processor(process: Any) -> None:
    assert check(ONCE, train=[7], process=process, **HAS_IMAGES).status is EQUAL
    assert check(AFTER, train=[7], process=process, **HAS_IMAGES).status is DIFFERENT
    assert check(AFTER, train=[7], process=process).status is DIFFERENT


def test_image_tensors_are_those_of_the_processor() -> None:
    def process(text: str) -> WholeImages:
        return whole(text, ours={"pixel_values": np.ones((2, 3))})

    report = check(ONCE, train=ids_of(TWICE), process=process, **HAS_IMAGES)
    assert report.status is DIFFERENT
    assert report.expected == "image tensor pixel_values of shape (2, 3)"


@pytest.mark.parametrize(
    ("tensors", "ours", "expected", "found"),
    [
        ({"a": np.zeros(2)}, {}, "a of shape (2,)", "no a"),
        ({}, {"a": np.zeros(2)}, "no a", "a of shape (2,)"),
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}, "a of shape (2,)", "a of shape (3,)"),
        ({"a": np.zeros(2)}, {"a": np.ones(2)}, "a of shape (2,)", "a of shape (2,)"),
        (
            {"a": np.zeros(2), "b": np.zeros(1)},
            {"a": np.zeros(2), "b": np.ones(1)},
            "b of shape (1,)",
            "b of shape (1,)",
        ),
    ],
)
def test_first_image_tensor_that_differs_is_named(
    tensors: Any, ours: Any, expected: str, found: str
) -> None:
    report = WholeImages(ids=[], tensors=tensors, ours=ours).difference()
    assert report == SanityReport(
        status=DIFFERENT, expected=f"image tensor {expected}", found=f"image tensor {found}"
    )
    assert WholeImages(ids=[], tensors=tensors, ours=dict(tensors)).difference() is None


# ---- what is rendered


def test_full_render_has_the_tools_and_variables_of_the_codec() -> None:
    template = CHAT + "{{ tools | length if tools else 'no' }} tools, {{ mood }}"
    tools = ({"type": "function", "function": {"name": "f"}},)
    for given, shown in ((tools, "1"), (None, "no")):
        after = f"{AFTER}{shown} tools, calm"
        assert check(after, template=template, tools=given, mood="calm").status is EQUAL


def test_reply_may_contain_its_closer_and_end_in_white_space() -> None:
    trimming = CHAT.replace("m.content if", "m.content | trim if", 1)
    for text in ("", " ", "a<end>b", "Yes.\n", " a \n ", "<end>"):
        history = [USER, {"role": "assistant", "content": text}]
        for template in (CHAT, trimming):
            assert check(history=history, template=template).status is EQUAL, text


@pytest.mark.parametrize("content", [[{"type": "text", "text": "w"}], [], None, ""])
def test_reply_is_located_whatever_its_content(content: Any) -> None:
    reply = {"role": "assistant", "content": content}
    assert check(history=[*TALK, USER, reply]).status is EQUAL
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check(history=[USER, {**reply, "content": parts}]).status is EQUAL
    assert check(history=[USER, {"role": "assistant", "tool_calls": []}]).status is EQUAL


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": "id1",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    } | more


@pytest.mark.parametrize(
    "last",
    [
        call({"a": 1}),
        call({}),
        call(None),
        call('{"a": 1}'),
        call("{}"),
        call("[1]"),
        call("cut {"),
        call(""),
        {"name": "f", "arguments": {"a": 1}},
        {"name": "f", "arguments": "cut"},
    ],
)
@pytest.mark.parametrize("content", ["", "Let me see.", None])
def test_reply_with_calls_is_located_by_its_last_call(last: Any, content: Any) -> None:
    history = [USER, SAID, USER, {"role": "assistant", "content": content}]
    for calls in ([last], [call({"b": 2}), last]):
        history[-1] = {**history[-1], "tool_calls": calls}
        for observed in (OBSERVED, [{"role": "tool", "content": "21"}, *OBSERVED]):
            first = "\ntool:21<end>" if len(observed) > 1 else ""
            for after, status in ((AFTER, EQUAL), ("\nuser:No.<end>\nassistant:", DIFFERENT)):
                report = check(first + after, history=history, observed=observed)
                assert report.status is status, report


@pytest.mark.parametrize(
    "arguments", [{"a": "x<end>y"}, '{"a": "x<end>y"}', '["x<end>y"]', "cut <end> {"]
)
def test_call_may_contain_the_closer(arguments: Any) -> None:
    for calls in ([call(arguments)], [call(arguments), call(arguments)]):
        history = [USER, {"role": "assistant", "content": "w", "tool_calls": calls}]
        assert check(history=history) == SanityReport(status=EQUAL)
        assert check(f"y<end>{AFTER}", history=history).status is DIFFERENT


@pytest.mark.parametrize("content", ["w", "", None, "a<end>b", [{"type": "text", "text": "w"}]])
@pytest.mark.parametrize("written", ["", "[{{ (m.tool_calls or []) | length }} calls]"])
def test_reply_whose_calls_the_template_leaves_out_is_located_by_its_text(
    content: Any, written: str
) -> None:
    template = CHAT.replace(BODY, BODY.partition("{% for c")[0] + written)
    ending = "[0 calls]" if written else ""
    after = f"\nuser:So.{ending}<end>\nassistant:"
    reply = {"role": "assistant", "content": content, "tool_calls": [call({}), call({"a": 1})]}
    context: dict[str, Any] = {"template": template, "history": [USER, reply]}
    assert check(after, **context) == SanityReport(status=EQUAL)
    assert check(f"<end>{after}", sampled=[5], **context) == SanityReport(status=EQUAL)
    assert check(after.replace("So", "No"), **context).status is DIFFERENT
    assert check(f"<end>{after}", **context).status is DIFFERENT


def test_call_that_is_located_keeps_its_other_parts() -> None:
    strict = CHAT.replace(
        "{% set f",
        "{% if not c.id or not c.function.name or c.function.arguments.a != 1 %}"
        "{{ raise_exception('incomplete') }}{% endif %}{% set f",
    )
    calls = [call({"a": 1}), call({"a": 1})]
    history = [USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    assert check(template=strict, history=history).status is EQUAL


def test_closer_is_found_where_a_mark_changes_the_render_before_it() -> None:
    # The length of the reply is written first; the mark makes it longer.
    counted = "{{ messages[1].content | length }}" + PREFIXED
    history = [USER, SAID]
    for before in ("", "\n", "ab"):
        same: dict[str, Any] = {"template": counted, "history": history, "before": before}
        assert check(AFTER, **same).status is EQUAL
        for lead in {"", before}:
            assert check(f"{lead}<end>{AFTER}", sampled=[5], **same).status is EQUAL
        for lead in ("x", f"w{before}", f":w{before}"):
            assert check(f"{lead}<end>{AFTER}", sampled=[5], **same).status is DIFFERENT
        assert check("\nuser:No.<end>\nassistant:", **same).status is DIFFERENT


def test_closing_text_without_a_token_is_compared_as_text() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{{ '<end>' if m.role == 'assistant' and m.content[:1] != 'w' }}\n{% endfor %}"
    )
    after = "\nuser:So.\n"
    assert check(after, template=template, sampled=[5]).status is EQUAL
    report = check(f"<end>{after}", template=template, sampled=[5])
    assert (report.status, report.expected, report.found) == (DIFFERENT, after, f"<end>{after}")
    assert check(after, template=template, sampled=[END]).status is DIFFERENT


def test_first_closer_of_a_conversation_may_be_that_of_the_reply() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{{ '<end>' if m.role == 'assistant' }}\n{% endfor %}"
    )
    for history in ([USER, SAID], TALK):
        assert check("\nuser:So.\n", template=template, history=history).status is EQUAL
        wrong = check("\nuser:No.\n", template=template, history=history)
        assert wrong.status is DIFFERENT


# ---- a template that rejects the reply


@pytest.mark.parametrize("as_parts", [False, True])
def test_reply_that_the_template_rejects_is_replaced_by_a_word(as_parts: bool) -> None:
    bad: Any = [{"type": "text", "text": "bad"}] if as_parts else "bad"
    text = "m.content[0].text" if as_parts else "m.content"
    template = (
        "{% for m in messages %}{% if m.content %}{% if " + text + "[:3] == 'bad' and "
        "m.role == 'assistant' %}{{ raise_exception('bad') }}{% endif %}{% endif %}{{ m.role }}:"
        "{% if m.content %}{{ " + text + " }}{% endif %}"
        "{% for c in m.tool_calls or [] %}!{% endfor %}<end>\n{% endfor %}assistant:"
    )
    so: Any = [{"type": "text", "text": "bad So."}] if as_parts else "bad So."
    history = [
        *({**USER, "content": bad}, {"role": "assistant", "tool_calls": [call({})]}),
        *({**USER, "content": bad}, {"role": "assistant", "content": bad}),
    ]
    observed = [{"role": "user", "content": so}]
    context: dict[str, Any] = {"template": template, "history": history, "observed": observed}
    report = check("\nuser:bad So.<end>\nassistant:", **context)
    assert report == SanityReport(status=EQUAL)
    assert check("\nuser:word<end>\nassistant:", **context).status is DIFFERENT


# ---- what cannot be compared


def reason(**context: Any) -> str:
    report = check(**context)
    assert report.status is UNCHECKED
    assert (report.expected, report.found) == ("", "")
    return report.reason


def test_template_that_rejects_the_conversation_is_unchecked() -> None:
    template = "{{ raise_exception('never') }}"
    assert "the chat template rejects the conversation: never" in reason(template=template)


@pytest.mark.parametrize(("written", "times"), [("", 0), ("{{ m.content }} " * 2, 2)])
def test_reply_that_is_not_written_once_is_unchecked(written: str, times: int) -> None:
    template = CHAT.replace(
        BODY, f"{{% if m.role == 'user' %}}{BODY}{{% else %}}{written}{{% endif %}}"
    )
    found = reason(template=template)
    assert found.endswith(f": the template writes the reply {times} times")


@pytest.mark.parametrize("end", ["{{ messages[1].content | length }}", "<end>"])
def test_mark_that_changes_the_render_after_the_reply_is_unchecked(end: str) -> None:
    counted = "{{ messages[1].content | length }}" + CHAT
    template = (counted + end) if "<end>" not in end else counted.replace("<end>", "")
    right = f"{AFTER}1" if "<end>" not in end else "user:So.assistant:"
    found = reason(after=right, template=template, history=[USER, SAID])
    assert "a mark after the reply changes the render elsewhere" in found


@pytest.mark.parametrize("times", [0, 2])
def test_delta_that_a_render_does_not_end_with_is_different_even_if_no_reply_is_found(
    times: int,
) -> None:
    written = "{{ m.content }} " * times
    template = CHAT.replace(
        BODY, f"{{% if m.role == 'user' %}}{BODY}{{% else %}}{written}{{% endif %}}"
    )
    assert check(AFTER, template=template).status is UNCHECKED
    for wrong in (AFTER.replace("So", "No"), AFTER[:-1], AFTER + "x", AFTER.replace("<end>", "")):
        report = check(wrong, template=template)
        assert report.status in (DIFFERENT, WHITESPACE)


UNWRITTEN = CHAT.replace(BODY, f"{{% if m.role == 'user' %}}{BODY}{{% endif %}}")
"""A template that leaves replies out, so the end of a reply is not found."""


@pytest.mark.parametrize("sampled", CUT)
def test_text_before_the_closer_of_a_cut_reply_is_not_compared_if_no_reply_is_found(
    sampled: Any,
) -> None:
    for lead in ("", "\n", "x", "user", "<stop>"):
        given = f"{lead}<end>{AFTER}"
        assert check(given, template=UNWRITTEN, sampled=sampled).status is UNCHECKED
        wrong = given.replace("So", "No")
        assert check(wrong, template=UNWRITTEN, sampled=sampled).status is DIFFERENT
    twice = check(f"<end><end>{AFTER}", template=UNWRITTEN, sampled=sampled)
    assert twice.status is DIFFERENT
    for given in ("So.", f"x{AFTER}".replace("<end>", "")):
        report = check(given, template=UNWRITTEN, sampled=sampled)
        assert (report.status, report.found) == (DIFFERENT, given)


@pytest.mark.parametrize("sampled", [*CLOSED, *STOPPED])
def test_text_before_the_delta_of_a_closed_reply_is_different_if_no_reply_is_found(
    sampled: Any,
) -> None:
    assert check(AFTER, template=UNWRITTEN, sampled=sampled).status is UNCHECKED
    for lead in ("\n", "x", "user", "<stop>", "x<end>"):
        report = check(f"{lead}{AFTER}", template=UNWRITTEN, sampled=sampled)
        assert report.status in (DIFFERENT, WHITESPACE), lead


def test_closer_that_the_tokenizer_writes_otherwise_is_unchecked() -> None:
    assert check(AFTER, template=CHAT.replace("<end>", "<stop>"), stops=[END]).status is DIFFERENT
    longer = CHAT.replace("<end>", "{{ '<end>!' if m.role == 'assistant' else '<end>' }}")
    message = f"the closer of the reply is not encoded as {END}"
    assert message in reason(template=longer, stops=[END])


def test_closer_that_merges_with_the_reply_is_unchecked() -> None:
    text = "{% for m in messages %}{{ m.content }}{{ '<end>' if m.content[:1] == 'w' }}{% endfor %}"
    template = template_with("w<end>", text)
    found = reason(after="So.", template=template, history=[USER, SAID])
    assert f"the closer of the reply is not encoded as {END}" in found


def test_error_of_foreign_code_is_a_reason() -> None:
    def process(text: str) -> WholeImages:
        raise TemplateError("broken processor")

    found = reason(after=ONCE, process=process, **HAS_IMAGES)
    assert "broken processor" in found


def test_long_conversations_begin_where_the_page_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "concepts" / "ledger.md"

    found = re.search(r"so above ([\d,]+)\s+ids", page.read_text(encoding="utf-8"))

    assert found is not None
    assert int(found[1].replace(",", "")) == LONG_IDS
