"""Tool calls in replies: every format, LaTeX, and hostile text."""

import json
from typing import Any

import pytest
from fakes.budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.reply import CUT_NOTICE, THOUGHTS, UNFINISHED, FinishReason, Reply
from envkit.toolcalls import ToolCallFormat, call_errors, parse_tool_calls
from envkit.toolcalls.tolerant_json import MAX_DEPTH, MalformedJson, decode, unescape
from envkit.tools import ToolSpec

GRADE = ToolSpec(
    name="calc_score",
    description="Score an answer.",
    parameters={
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
    },
)
SEARCH = ToolSpec(
    name="search",
    description="Search.",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "sites": {"type": "array", "items": {"type": "string"}},
            "fast": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        },
    },
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PLAIN_TEXT = TEXT.filter(lambda text: not set("\b\f\r\t\n") & set(text))
UNTAGGED_TEXT = PLAIN_TEXT.filter(lambda text: not set("<[{") & set(text))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | PLAIN_TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PLAIN_TEXT, inner, max_size=4),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(PLAIN_TEXT, VALUES, max_size=4)
NAMES = st.from_regex(r"[A-Za-z_][\w.-]{0,20}", fullmatch=True).filter(str.isascii)
FRAGMENTS = st.lists(
    st.sampled_from([
        "<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>",
        "<parameter=a>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
        "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]x", "<search>", "</search>",
        "</think>", '{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "parameters": {}}',
        '{"name": {}}', '"', "'", "\\", "{", "}", "[", "]", ",", ":", ";", "NaN", "-", "1e999",
        "\ud800", " \n", "f",
    ])
    | st.text(max_size=5),
    max_size=30,
).map("".join)  # fmt: skip


def hermes(arguments: dict[str, Any], name: str = "f") -> str:
    payload = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{payload}\n</tool_call>"


@settings(max_examples=examples(50))
@given(name=NAMES, arguments=ARGUMENTS, before=UNTAGGED_TEXT)
def test_hermes_round_trip(name: str, arguments: dict[str, Any], before: str) -> None:
    reply = before + hermes(arguments, name)

    parsed = parse_tool_calls(reply, ToolCallFormat.HERMES)

    assert [(call.name, call.arguments) for call in parsed.calls] == [(name, arguments)]
    assert parsed.errors == ()
    assert parsed.text == before.strip()


def glm(arguments: dict[str, Any], name: str = "f", *, space: str = "\n") -> str:
    """Write a call as the templates of GLM-4.5, and without the line breaks of 4.6, do."""
    pairs = (
        f"<arg_key>{key}</arg_key>{space}<arg_value>"
        f"{value if isinstance(value, str) else json.dumps(value)}</arg_value>{space}"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}{space}{''.join(pairs)}</tool_call>"


KEYS = st.from_regex(r"[A-Za-z_][\w. -]{0,20}[\w]", fullmatch=True).filter(str.isascii)


@settings(max_examples=examples(50))
@given(
    name=NAMES,
    arguments=st.dictionaries(KEYS, UNTAGGED_TEXT, max_size=4),
    before=UNTAGGED_TEXT,
    space=st.sampled_from(["", "\n"]),
)
def test_glm_round_trip(name: str, arguments: dict[str, str], before: str, space: str) -> None:
    tool = ToolSpec(name=name, description="", parameters={"type": "object", "properties": {}})
    reply = f"{before}{glm(arguments, name, space=space)}"
    parsed = parse_tool_calls(reply * 2, tools=[tool])
    assert [(call.name, call.arguments) for call in parsed.calls] == [(name, arguments)] * 2
    assert parsed.errors == ()


def test_glm_values_take_the_declared_type() -> None:
    given = {"query": "12", "limit": 12, "sites": ["a", "b"], "fast": None}
    (call,) = parse_tool_calls(glm(given, "search"), tools=[SEARCH]).calls
    assert call.arguments == given


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>", "'a' is not closed"),
        (glm({"a": "1"}).replace("</tool_call>", f"{glm({'a': '2'})[12:]}"), "'a' appears twice"),
        ("<tool_call>f<arg_key>a</arg_key>\n1</tool_call>", "unexpected '<arg_key>a</'"),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>x</tool_call>", "'x' in"),
        ("<tool_call>f\n<arg_key>a</arg_key><arg_value>1</arg_value>", "not closed by </tool_"),
        ("<tool_call>f\n</tool_call>", "tool call 1 cannot be read"),
    ],
)
def test_glm_call_that_is_broken_is_an_error(reply: str, problem: str) -> None:
    parsed = parse_tool_calls(reply)
    assert parsed.calls == ()
    assert problem in " ".join(parsed.errors)


@settings(max_examples=examples(50))
@given(name=NAMES, arguments=ARGUMENTS)
def test_llama_round_trip(name: str, arguments: dict[str, Any]) -> None:
    payload = json.dumps({"name": name, "parameters": arguments})
    tagged = f"<|python_tag|>{payload}"
    for reply, count in ((payload, 1), (tagged, 1), (f"{tagged}; {payload}", 2)):
        calls = parse_tool_calls(reply).calls
        assert [(call.name, call.arguments) for call in calls] == [(name, arguments)] * count


@settings(max_examples=examples(50))
@given(name=NAMES, arguments=ARGUMENTS)
def test_mistral_round_trip(name: str, arguments: dict[str, Any]) -> None:
    listed = json.dumps([{"name": name, "arguments": arguments, "id": "abcdef123"}])
    named = f"{name}[ARGS]{json.dumps(arguments)}"
    for reply in (f"[TOOL_CALLS]{listed}", f"[TOOL_CALLS] {named}"):
        (call,) = parse_tool_calls(reply).calls
        assert (call.name, call.arguments) == (name, arguments)


@settings(max_examples=examples(50))
@given(
    name=NAMES,
    arguments=st.dictionaries(NAMES, UNTAGGED_TEXT, max_size=4),
)
def test_qwen_xml_round_trip(name: str, arguments: dict[str, str]) -> None:
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    function = f"<function={name}>\n{parameters}</function>"
    for reply in (f"<tool_call>\n{function}\n</tool_call>", f"Well. {function}"):
        (call,) = parse_tool_calls(reply).calls
        assert (call.name, call.arguments) == (name, arguments)


@given(query=UNTAGGED_TEXT)
def test_tags_round_trip(query: str) -> None:
    parsed = parse_tool_calls(f"I look. <search>{query}</search>", tags={"search": "query"})

    assert [call.arguments for call in parsed.calls] == [{"query": query.strip()}]
    assert parsed.text == "I look."


@settings(max_examples=examples(200))
@given(reply=FRAGMENTS | st.text(), written=st.sampled_from(ToolCallFormat))
def test_parsing_never_raises_and_gives_json_data(reply: str, written: str) -> None:
    parsed = parse_tool_calls(reply, written, tools=[SEARCH], tags={"search": "query"})

    for call in parsed.calls:
        json.dumps(call.to_wire(), allow_nan=False).encode()
        assert isinstance(call_errors(call, [SEARCH, GRADE]), list)
    "".join((parsed.text, parsed.thinking, *parsed.errors)).encode()


@given(value=VALUES)
def test_tolerant_json_reads_what_json_writes(value: object) -> None:
    for ascii_only in (True, False):
        assert decode(json.dumps(value, ensure_ascii=ascii_only)) == value


@given(text=st.text())
def test_tolerant_json_agrees_with_json_or_refuses(text: str) -> None:
    try:
        strict = json.loads(text)
    except (ValueError, RecursionError):
        return
    if "\\" not in text and not set("NIna") & set(text):
        assert decode(text) == strict


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\frac{5}{2}", r"\frac{5}{2}"),
        (r"\boxed{30}", r"\boxed{30}"),
        (r"2\sqrt{221}", r"2\sqrt{221}"),
        (r"30^\circ", r"30^\circ"),
        (r"\theta = \tan 3 \times \text{cm}", r"\theta = \tan 3 \times \text{cm}"),
        (r"\right) \rho \neq \beta", r"\right) \rho \neq \beta"),
        (r"\\frac{5}{2}", r"\frac{5}{2}"),
        (r"\underline{x}", r"\underline{x}"),
        (r"50\% \$3 \{x\} \,", r"50\% \$3 \{x\} \,"),
        (r"a\nb\tc \u00e9 \"q\" \/", 'a\nb\tc é "q" /'),
        (r"one\nubiquitous\nu = 3\tand\not", "one\nubiquitous\nu = 3\tand\not"),
        (r"it\'s", "it's"),
        (r"\ud83d\ude00 \ud800", "\U0001f600 \ufffd"),
    ],
)
def test_latex_keeps_its_backslashes_and_escapes_keep_their_meaning(
    written: str, meant: str
) -> None:
    for quote in ('"', "'"):
        if quote not in written:
            arguments = f"{{'x': {quote}{written}{quote}}}"
            reply = f"<tool_call>{{'name': 'f', 'arguments': {arguments}}}</tool_call>"
            assert parse_tool_calls(reply).calls[0].arguments == {"x": meant}
    assert unescape(written) == meant


def test_latex_survives_arguments_inside_a_string() -> None:
    inner = r"{\"answer\": \"\\frac{5}{2}\"}"
    reply = f'<tool_call>{{"name": "calc_score", "arguments": "{inner}"}}</tool_call>'

    assert parse_tool_calls(reply).calls[0].arguments == {"answer": r"\frac{5}{2}"}


@pytest.mark.parametrize(
    ("payload", "part"),
    [
        ('{"name": "f", "arguments": [1]}', "must be an object, got a list"),
        ('{"name": "f", "arguments": "5"}', "must be an object, got 5"),
        ('{"name": "f", "arguments": "no json"}', "is not valid JSON"),
        ('{"name": {}, "arguments": {}}', "'name' must be a tool's name"),
        ('{"arguments": {}}', "'name' must be a tool's name, got nothing"),
        ('{"name": "f", "arguments": {"a": NaN}}', "got 'NaN"),
        ('{"name": "f", "arguments": {"a": -Infinity}}', "got '-Infinity"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "out of range"),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', "duplicate key 'a'"),
        ('{"name": "f", "arguments": {"a": "x}', "unterminated string"),
        ('{"name": "f", "arguments": {"a": 1', "the text ends"),
        ('"f"', "got a string"),
        ("", "the text ends"),
        ('{"name": "f"} and more', "unexpected 'and more"),
        ("[" * 100_000, f"nested more than {MAX_DEPTH} deep"),
        ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", "a number of 5000 digits"),
    ],
)
def test_an_unreadable_call_is_an_error_sentence(payload: str, part: str) -> None:
    parsed = parse_tool_calls(f"<tool_call>\n{payload}\n</tool_call>")

    assert parsed.calls == ()
    assert len(parsed.errors) == 1
    assert part in parsed.errors[0]


@pytest.mark.parametrize(
    "reply",
    [
        '<tool_call>{"name": "f", "arguments": {"a": 1,},}</tool_call>',
        "<tool_call>{'name': 'f', 'arguments': {'a': 1}}</tool_call>",
        '<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>',
        '<tool_call>{"function": {"name": "f", "arguments": "{\\"a\\": 1}"}}</tool_call>',
        '<tool_call>{"function": "f", "parameters": {"a": 1}}</tool_call>',
        '{"type": "function", "name": "f", "parameters": {"a": 1}}',
    ],
)
def test_a_forgivable_call_is_read(reply: str) -> None:
    parsed = parse_tool_calls(reply)

    assert [(call.name, call.arguments) for call in parsed.calls] == [("f", {"a": 1})]
    assert parsed.errors == ()


def test_a_closing_tag_inside_a_string_does_not_end_the_call() -> None:
    arguments = {"code": "print('</tool_call>')"}

    parsed = parse_tool_calls(hermes(arguments) + " then " + hermes({"b": 2}))

    assert [call.arguments for call in parsed.calls] == [arguments, {"b": 2}]
    assert parsed.text == "then"


def test_a_good_call_after_a_broken_one_is_read() -> None:
    parsed = parse_tool_calls('<tool_call>{"name": <tool_call>{"name": "g"}</tool_call>')

    assert [call.name for call in parsed.calls] == ["g"]
    assert len(parsed.errors) == 1


def test_calls_inside_thinking_are_thoughts() -> None:
    parsed = parse_tool_calls(f"<think>maybe {hermes({})}</think>\n\nNo: {hermes({'b': 1})}")

    assert [call.arguments for call in parsed.calls] == [{"b": 1}]
    assert parsed.thinking == f"maybe {hermes({})}"
    assert parsed.text == "No:"


def test_a_reply_without_a_call_is_text() -> None:
    for reply in (
        "The answer is 5.",
        '{"name": "Bob", "age": 3}',
        '{"answer": 5}',
        "{x | x > 3}",
        "",
    ):
        parsed = parse_tool_calls(reply)
        assert (parsed.text, parsed.calls, parsed.errors) == (reply, (), ())


def test_call_ids_are_the_models_own_or_nine_characters() -> None:
    parsed = parse_tool_calls('[TOOL_CALLS][{"name": "f", "id": "Zz1234567"}, {"name": "g"}]')

    assert [call.id for call in parsed.calls] == ["Zz1234567", "call00001"]


def test_qwen_xml_values_take_the_declared_type() -> None:
    values = {"query": "007", "limit": "5", "sites": '["a", "b"]', "fast": "true", "other": "1"}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>" for key, value in values.items())

    (call,) = parse_tool_calls(f"<function=search>{body}</function>", tools=[SEARCH]).calls

    assert call.arguments == {
        "query": "007",
        "limit": 5,
        "sites": ["a", "b"],
        "fast": True,
        "other": "1",
    }
    assert call_errors(call, [SEARCH]) != []  # `other` is not an argument of search


def test_qwen_xml_refuses_doubled_parameters() -> None:
    body = "<parameter=a>1</parameter><parameter=a>2</parameter>"

    doubled = parse_tool_calls(f"<function=f>{body}</function>")

    assert not doubled.calls
    assert "appears twice" in doubled.errors[0]


def test_a_qwen_xml_value_may_contain_the_mark_that_closes_a_function() -> None:
    reply = "<function=f><parameter=a>\ngrep '</function>' x\n</parameter></function> done"

    parsed = parse_tool_calls(reply)

    assert [call.arguments for call in parsed.calls] == [{"a": "grep '</function>' x"}]
    assert (parsed.errors, parsed.text) == ((), "done")


PARAMETERS = ("a>\nrm -r /d/x\n", "b>\n2\n")
XML = (
    "<function=f>"
    + "".join(f"<parameter={one}</parameter>\n" for one in PARAMETERS)
    + "</function>"
)
WHOLE_CALLS = {
    "hermes": hermes({"a": "rm -r /d/x", "b": [1, {"c": 2}]}),
    "qwen_xml": f"<tool_call>\n{XML}\n</tool_call>",
    "bare_xml": XML,
    "glm": glm({"a": "rm -r /d/x", "b": "2"}),
    "llama": '{"name": "f", "parameters": {"a": "rm -r /d/x"}}',
    "python_tag": '<|python_tag|>{"name": "f", "parameters": {"a": "rm -r /d/x"}}',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"a": "rm -r /d/x"}}]',
    "mistral_name": '[TOOL_CALLS]f[ARGS]{"a": "rm -r /d/x"}',
    "tags": "<search>rm -r /d/x</search>",
}


@pytest.mark.parametrize("call", WHOLE_CALLS.values(), ids=WHOLE_CALLS)
def test_no_part_of_a_call_is_a_call(call: str) -> None:
    tags = {"search": "query"}

    assert len(parse_tool_calls("I act. " * call.startswith("<") + call, tags=tags).calls) == 1
    for end in range(len(call)):
        assert parse_tool_calls(call[:end], tags=tags).calls == (), call[:end]
        cut = Reply(text=call[:end], finish=FinishReason.LENGTH)
        assert parse_tool_calls(cut, tags=tags).errors == (CUT_NOTICE,)


@pytest.mark.parametrize("call", WHOLE_CALLS.values(), ids=WHOLE_CALLS)
@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.ABORT])
def test_a_cut_reply_runs_none_of_its_calls(call: str, finish: FinishReason) -> None:
    parsed = parse_tool_calls(Reply(text=call, finish=finish), tags={"search": "query"})

    assert (parsed.calls, parsed.text, parsed.errors) == ((), "", (CUT_NOTICE,))


@pytest.mark.parametrize(("opening", "closing"), THOUGHTS.items())
@pytest.mark.parametrize("call", WHOLE_CALLS.values(), ids=WHOLE_CALLS)
def test_a_call_in_a_thought_is_never_run(call: str, opening: str, closing: str) -> None:
    tags = {"search": "query"}
    by_model = parse_tool_calls(f"Well. {opening}maybe {call}", tags=tags)
    by_prompt = parse_tool_calls(Reply(text=call, opened=opening), tags=tags)
    closed = parse_tool_calls(Reply(text=f"{call}{closing}{call}", opened=opening), tags=tags)

    assert (by_model.calls, by_model.text) == ((), "Well.")
    assert (by_prompt.calls, by_prompt.errors, by_prompt.text) == ((), (UNFINISHED,), "")
    assert len(closed.calls) == 1


def test_an_unclosed_tag_is_an_error() -> None:
    parsed = parse_tool_calls("<search>cats", tags={"search": "query"})

    assert parsed.errors == ("tool call 1 cannot be read: <search> is not closed by </search>",)


def test_call_errors_name_the_tools_and_the_arguments() -> None:
    unknown, wrong, right = parse_tool_calls(
        "".join(hermes(a, n) for n, a in [("cale", {}), ("calc_score", {"answer": 5})])
        + hermes({"answer": "5"}, "calc_score")
    ).calls

    assert call_errors(unknown, [GRADE]) == ["there is no tool 'cale'; the tools are: calc_score"]
    assert call_errors(wrong, [GRADE]) == [
        "calc_score: arguments.answer: 5 is not of type 'string'"
    ]
    assert call_errors(right, [GRADE]) == []


def test_wrong_options_are_reported_to_the_caller() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'hermes'"):
        parse_tool_calls("", "hermess")
    with pytest.raises(ConfigurationError, match="needs tags"):
        parse_tool_calls("", "tags")


@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        '<tool_call>{"name": "f"}',
        '<tool_call>{"a',
        '<tool_call>"</tool_call>',
        "<tool_call>[['",
        "<function=f>",
        "<parameter=a>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]f ",
        '[TOOL_CALLS]["',
        "<search>",
        "{",
        "\\",
        " ",
        '{"name":"f"} ',
        '"a",',
    ],
)
def test_hostile_repetition_takes_linear_work(unit: str) -> None:
    """60 kB of each: quadratic work would take minutes, and the test run would stop on it."""
    for head in ("", "<tool_call>[", '<|python_tag|>{"name": "f"}', "[TOOL_CALLS]["):
        for tail in ("", "</tool_call>", "</search>"):
            reply = head + unit * (60_000 // len(unit)) + tail
            parse_tool_calls(reply, tags={"search": "query"})


def test_long_arguments_are_read() -> None:
    arguments = {"text": "x\\y\n" * 25_000, "rows": list(range(10_000))}

    assert parse_tool_calls(hermes(arguments)).calls[0].arguments == arguments


def test_malformed_json_says_where() -> None:
    with pytest.raises(MalformedJson, match="expected ':', got '1}' at character 5"):
        decode('{"a" 1}')
