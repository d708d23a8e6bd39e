"""Texts encoded in remembered parts have the ids of the whole text."""

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.templates import SPECS, default_codec, load_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from envkit.messages import message
from envkit.tokens import chunks
from envkit.tokens.chunks import Chunks, cutting_marks

_SLOW = [name for name in SPECS if name != "qwen3"]
NAMES = ["qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in _SLOW)]
PIECES = [
    "a",
    "I",
    " ",
    "  ",
    "\n",
    "<",
    "|",
    "im_",
    ">",
    "\u00e9",
    "e\u0301",
    "\u4e2d",
    "7",
    "\u2581",
]


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_a_text_have_the_ids_of_the_whole(name: str) -> None:
    template = default_codec(name)._template
    added = [one.content for one in load_tokenizer(name).added_tokens_decoder.values()]
    marks = template._chunks._marks
    known = [] if marks is None else [one for one in added if marks.fullmatch(one)]

    @given(st.lists(st.sampled_from([*PIECES, *known * 4, *added[:8], *added[-8:]]), max_size=24))
    def compare(pieces: list[str]) -> None:
        text = "".join(pieces)
        assert template.encode_prompt(text) == list(template.encode(text))

    compare()


@pytest.mark.parametrize("name", NAMES)
def test_every_family_is_cut(name: str) -> None:
    assert default_codec(name)._template._chunks._marks is not None


def test_prompt_costs_only_what_is_new() -> None:
    texts: list[str] = []

    def encode(text: str) -> list[int]:
        texts.append(text)
        return [*text.encode()]

    known = Chunks(encode, ["<s>", "<e>"])
    assert known.encode("x<s>a<e><s>b<e>") == [*b"x<s>a<e><s>b<e>"]
    assert known.encode("x<s>a<e><s>c<e>") == [*b"x<s>a<e><s>c<e>"]
    assert texts == ["x", "<s>a", "<e>", "<s>b", "<s>c"]


def test_memory_forgets_what_is_no_longer_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MAX_CHARACTERS", 100)
    texts: list[str] = []

    def encode(text: str) -> list[int]:
        texts.append(text)
        return [*text.encode()]

    known = Chunks(encode, ["<s>"])
    for number in range(1000):
        assert known.encode(f"<s>kept<s>{number:05d}") == [*f"<s>kept<s>{number:05d}".encode()]
        held = [*known._newer, *known._older]
        assert sum(map(len, held)) <= 220
    assert texts.count("<s>kept") == 1
    assert known.encode("<s>00000") == [*b"<s>00000"]
    assert texts.count("<s>00000") == 2


def _token(content: str, **options: bool) -> Any:
    flags = {"normalized": False, "lstrip": False, "single_word": False, **options}
    return SimpleNamespace(content=content, **flags)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([_token("<s>")], ["<s>"]),
        ([_token("<s>", normalized=True)], []),
        ([_token("<s>", lstrip=True)], []),
        ([_token("<s>", single_word=True)], []),
        ([_token("<s>"), _token("a<")], []),
        ([_token("<s>"), _token("a<s>b")], []),
        ([_token("<s>"), _token("<s>b")], ["<s>"]),
        ([_token("<s>"), _token("<")], ["<s>", "<"]),
        ([_token("<s>"), _token("<t>")], ["<s>"]),
    ],
)
def test_text_is_cut_only_where_no_other_token_can_begin(
    tokens: list[Any], expected: list[str]
) -> None:
    tokenizer = SimpleNamespace(added_tokens_decoder=dict(enumerate(tokens)))
    found = cutting_marks(tokenizer, lambda text: [*text.encode()], "<s>hello", ("", "a "))
    assert found == expected


def test_text_is_not_cut_where_a_cut_changes_ids() -> None:
    tokenizer = SimpleNamespace(added_tokens_decoder={0: _token("<s>")})

    def merging(text: str) -> list[int]:
        return [*text.replace(" <s>", "#").encode()]

    assert cutting_marks(tokenizer, merging, "<s>hello", ("", "a ")) == []


def test_codec_remembers_the_messages_of_earlier_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = default_codec("qwen3")
    first = [message("user", "one"), message("assistant", "two"), message("user", "three")]
    codec.encode_prompt(first)
    asked: list[str] = []
    encode = codec._template._chunks._encode

    def counted(text: str) -> Any:
        asked.append(text)
        return encode(text)

    monkeypatch.setattr(codec._template._chunks, "_encode", counted)
    codec.encode_prompt([*first[:2], message("user", "another")])
    assert asked == ["<|im_start|>user\nanother"]
