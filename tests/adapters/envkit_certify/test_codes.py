"""Codes in which an answer may be hidden."""

import base64
import codecs
import zlib
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envkit_certify.codes import MORSE, VIEWS, forms_of, shows
from envkit_certify.forms import Form

HIDDEN: dict[str, Callable[[str], str]] = {
    "backwards": lambda gold: gold[::-1],
    "ROT13 and ROT5": lambda gold: codecs.encode(gold, "rot13").translate(
        str.maketrans("0123456789", "5678901234")
    ),
    "shifted by 4": lambda gold: "".join(
        chr((ord(c) - 65 + 4) % 26 + 65) if c.isalpha() else c for c in gold
    ),
    "base64": lambda gold: base64.b64encode(f"id=3;{gold}".encode()).decode(),
    "base64, backwards": lambda gold: base64.b64encode(gold.encode()).decode()[::-1],
    "base32": lambda gold: base64.b32encode(gold.encode()).decode(),
    "base85": lambda gold: base64.b85encode(gold.encode()).decode(),
    "hexadecimal": lambda gold: gold.encode().hex(),
    "character codes": lambda gold: " ".join(str(ord(c)) for c in gold),
    "bits": lambda gold: " ".join(f"{ord(c):08b}" for c in gold),
    "Morse code": lambda gold: " ".join(MORSE[c.lower()] for c in gold),
    "URL quoting": lambda gold: "".join(f"%{ord(c):02x}" for c in gold),
    "look-alike or invisible characters": "\u200d".join,
    "spaced letters": " . ".join,
    "first letters of lines": lambda gold: "\n".join(f"{c} is a letter" for c in gold),
    "first letters of words": lambda gold: " ".join(f"{c}qqq" for c in gold),
    "every second character": ".".join,
}


@pytest.mark.parametrize("name", HIDDEN)
@given(
    gold=st.text("BCDFGHJKLMNPRSTVWZ", min_size=5, max_size=9),
    other=st.text("BCDFGHJKLMNPRSTVWZ", min_size=5, max_size=9),
)
def test_a_code_shows_its_answer_and_no_other(name: str, gold: str, other: str) -> None:
    text = HIDDEN[name](gold)

    if gold in text or gold == gold[::-1]:
        return
    assert name in VIEWS
    assert shows(name, text, gold)
    assert other[:5] in gold or not shows(name, text, other)


ESCAPED = st.lists(st.sampled_from([*"\\xuUN{}018fF", "a"]), max_size=40).map("".join)


@settings(max_examples=10)
@example(gold="000", text=r"\8")
@given(gold=st.text(min_size=0, max_size=12), text=st.text(max_size=200) | ESCAPED)
def test_no_text_makes_a_code_raise(gold: str, text: str) -> None:
    for name in VIEWS:
        assert shows(name, text, gold) in (True, False)
    assert all(isinstance(form, str) for _, form in forms_of(gold.replace("\ud800", "")))


def test_numbers_have_forms_of_their_own() -> None:
    found = list(forms_of("53"))

    assert {("one more", "54"), ("binary number", "110101"), ("number words", "fifty-three")} <= {
        *found
    }
    assert ("Roman number", "LIII") in found
    assert ("CRC-32", f"{zlib.crc32(b'53'):08x}") in found


@pytest.mark.parametrize(
    ("form", "answer", "reply"),
    [
        (Form("\\boxed{", "}"), '"', '\\boxed{"}'),
        (Form('{"answer": "', '"}'), 'a"b\n', '{"answer": "a\\"b\\n"}'),
        (Form('{"answer": ', "}"), "53", '{"answer": 53}'),
        (Form('{"answer": ', "}"), "null", '{"answer": null}'),
        (Form('{"answer": ', "}"), "nan", '{"answer": "nan"}'),
        (Form('{"answer": "', '"}').unquoted(), "[1]", '{"answer": [1]}'),
    ],
)
def test_form_writes_an_answer_as_its_place_needs(form: Form, answer: str, reply: str) -> None:
    assert form.reply(answer) == reply


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"\x66\u006f\U0000006f", "foo"),
        (r"\U0001f600 \146\157", "\N{GRINNING FACE} fo"),
        (r"\N{LATIN SMALL LETTER F}o", "fo"),
        (r"\N{NO SUCH NAME} \8 \x6 \.", r"\N{NO SUCH NAME} \8 \x6 \."),
    ],
)
def test_escapes_are_read_and_what_is_none_stays(text: str, read: str) -> None:
    assert VIEWS["escapes"][0](text) == read
