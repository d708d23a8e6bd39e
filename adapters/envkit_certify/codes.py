"""Codes in which a text may hide an answer, and what a text says once they are read."""

import base64
import binascii
import contextlib
import hashlib
import re
import string
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

_LETTERS: Final = string.ascii_lowercase
MORSE: Final = MappingProxyType(
    dict(
        zip(
            string.ascii_lowercase + string.digits,
            re.findall(
                r"\S+",
                ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - "
                "..- ...- .-- -..- -.-- --.. ----- .---- ..--- ...-- ....- ..... -.... --... ---.. "
                "----.",
            ),
            strict=True,
        )
    )
)
_READ_MORSE: Final = MappingProxyType({code: letter for letter, code in MORSE.items()})
_ONES: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SPELLED: Final = (
    "alfa", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett",
    "kilo", "lima", "mike", "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango",
    "uniform", "victor", "whiskey", "xray", "yankee", "zulu",
)  # fmt: skip
_LOOKALIKE: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u03b1\u03bf\u03bd\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
    "aeopcxyiABEKMHOPCTXaovABEZHIKMNOPTYX",
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9+/=_-]{3,}|[!-u]{5,}")
_SEEN: Final = 6000
"""Characters of a text that are read."""


def _shifted(text: str, by: int, digits: int = 0) -> str:
    old = _LETTERS + _LETTERS.upper() + string.digits
    new = "".join(
        line[by % len(line) :] + line[: by % len(line)] for line in (_LETTERS, _LETTERS.upper())
    )
    return text.translate(str.maketrans(old, new + string.digits[digits:] + string.digits[:digits]))


def _rot47(text: str) -> str:
    return "".join(chr(33 + (ord(c) + 14) % 94) if 33 <= ord(c) <= 126 else c for c in text)


def _tokens_by(decode: Callable[[str], bytes]) -> Callable[[str], str]:
    def read(text: str) -> str:
        found: list[str] = []
        for token in {*_TOKEN.findall(text), *re.split(r"[\s\"']+", text)}:
            try:
                data = decode(token)
            except (ValueError, binascii.Error):
                continue
            for raw in (data, _unpacked(data)):
                said = raw.decode("utf-8", "replace")
                if said and said.isprintable() and "\ufffd" not in said:
                    found.append(said)
        return " ".join(found)

    return read


def _unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, 1000)
    except zlib.error:
        return b""


def _padded(token: str) -> bytes:
    core = token.rstrip("=")
    return base64.b64decode(core + "=" * (-len(core) % 4), altchars=b"-_", validate=True)


def _characters(pattern: str, base: int, offset: int = 0) -> Callable[[str], str]:
    """Read numbers as characters, such as the bits of ASCII or the places of letters."""

    def read(text: str) -> str:
        numbers = [int(found, base) + offset for found in re.findall(pattern, text)]
        return "".join(chr(n) if 32 <= n < 127 else " " for n in numbers)

    return read


def _bits(text: str) -> str:
    bits = "".join("01"[c in "1\u200c\u200d"] for c in text if c in "01\u200b\u200c\u200d")
    return "".join(
        chr(n) if 32 <= n < 127 else " "
        for width in (8, 7)
        for at in range(0, len(bits) - width + 1, width)
        for n in [int(bits[at : at + width], 2)]
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text)


def _each(at: int, split: Callable[[str], list[str]]) -> Callable[[str], str]:
    return lambda text: "".join(part.strip()[at] for part in split(text) if part.strip())


def _spaced(text: str) -> str:
    return re.sub(r"[\W_]+", "", text)


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).translate(_LOOKALIKE)
    return "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Mn"))


_ESCAPE: Final = re.compile(
    r"\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U000([\da-fA-F]{5})|([0-7]{1,3})|N\{([\w -]+)\})",
    re.ASCII,
)
"""An escape of Python or JSON; the `unicode_escape` codec warns of what it does not know."""


def _escaped(found: re.Match[str]) -> str:
    *codes, octal, name = found.groups()
    if name is not None:
        with contextlib.suppress(KeyError):
            return unicodedata.lookup(name)
        return found.group()
    return chr(int(octal, 8) if octal is not None else int(next(filter(None, codes)), 16))


def _from_words(text: str) -> str:
    value = {word: str(number) for number, word in enumerate(_ONES)} | {
        word: str(20 + 10 * number) for number, word in enumerate(_TENS)
    }
    value |= {word: word[0] for word in _SPELLED}
    return "".join(value.get(word.lower(), " ") for word in _words(text))


VIEWS: Final[Mapping[str, tuple[Callable[[str], str], str]]] = MappingProxyType(
    {
        "backwards": (lambda text: text[::-1], "backward|revers|palindrom|mirror"),
        **{
            f"shifted by {by}": (lambda text, by=by: _shifted(text, -by), "cipher|shift|encr|decr")
            for by in range(1, 26)
        },
        **{
            f"digits shifted by {by}": (
                lambda text, by=by: _shifted(text, 0, 10 - by),
                "cipher|shift|encr|decr",
            )
            for by in range(1, 10)
        },
        "ROT13 and ROT5": (lambda text: _shifted(text, 13, 5), "cipher|shift|encr|decr|rot"),
        "ROT47": (_rot47, "cipher|shift|encr|decr|rot"),
        "the other way round in the alphabet": (
            lambda text: text.translate(
                str.maketrans(_LETTERS + _LETTERS.upper(), _LETTERS[::-1] + _LETTERS[::-1].upper())
            ),
            "cipher|encr|decr|atbash",
        ),
        "base64": (_tokens_by(_padded), "base|encod|decod"),
        "base64, backwards": (lambda text: _tokens_by(_padded)(text[::-1]), "base|encod|decod"),
        "base32": (
            _tokens_by(lambda t: base64.b32decode(t.rstrip("=") + "=" * (-len(t.rstrip("=")) % 8))),
            "base|encod|decod",
        ),
        "base85": (_tokens_by(base64.b85decode), "base|encod|decod"),
        "Ascii85": (_tokens_by(base64.a85decode), "base|encod|decod"),
        "hexadecimal": (
            _tokens_by(lambda t: bytes.fromhex(t.removeprefix("0x"))),
            "base|hex|encod|decod",
        ),
        "character codes": (_characters(r"\d{2,3}", 10), "ascii|code|ordinal|unicode"),
        "hexadecimal character codes": (
            _characters(r"(?:0x|\\x|\\u00|&#x|U\+00)([0-9a-fA-F]{2})", 16),
            "ascii|code|hex|unicode",
        ),
        "octal character codes": (_characters(r"\\?0?([0-7]{2,3})", 8), "ascii|code|octal"),
        "letters by their number": (_characters(r"\d{1,2}", 10, 64), "letter|alphabet|a=1"),
        "letters by their number from 0": (_characters(r"\d{1,2}", 10, 65), "letter|alphabet|a=0"),
        "bits": (_bits, "binar|base|bit"),
        "Morse code": (
            lambda text: "".join(_READ_MORSE.get(t, " ") for t in re.findall(r"[.-]+", text)),
            "morse",
        ),
        "URL quoting": (unquote, "url|encod|decod"),
        "escapes": (lambda text: _ESCAPE.sub(_escaped, text), "escape|unicode|encod|decod"),
        "look-alike or invisible characters": (_folded, "unicode"),
        "spaced letters": (_spaced, "letter|space|join|concat|jumble"),
        "words for characters": (_from_words, "spell|word"),
        "first letters of words": (_each(0, _words), "letter|acrostic|acronym|initial"),
        "last letters of words": (_each(-1, _words), "letter|acrostic|last"),
        "first letters of lines": (_each(0, str.splitlines), "letter|acrostic|initial"),
        "last letters of lines": (_each(-1, str.splitlines), "letter|acrostic|last"),
        "capitals": (lambda text: "".join(re.findall(r"[A-Z0-9]", text)), "capital|upper|letter"),
        "every second character": (lambda text: text[::2] + " " + text[1::2], "letter|character"),
        "lengths of words": (
            lambda text: "".join(str(len(word)) for word in text.split()),
            "length|letter",
        ),
    }
)
"""What a text says in a code, and the words by which a question names that code itself."""


@lru_cache(maxsize=4096)
def view(name: str, text: str) -> str:
    """Return what a text says in a code; "" if it says nothing."""
    try:
        found = VIEWS[name][0](text[:_SEEN])
    except (ValueError, UnicodeError):
        return ""
    return "" if found == text else found.casefold()


def is_named(name: str, text: str) -> bool:
    """Return whether a text names the code itself, as a task about codes does."""
    words = VIEWS[name][1] if name in VIEWS else ""
    return bool(words) and re.search(words, text, re.IGNORECASE) is not None


def is_layout(name: str, gold: str) -> bool:
    """Return whether a question may show a number in this code by its layout, such as 1 000."""
    return name in _RUN_TOGETHER and not any(character.isalpha() for character in gold)


def shows(name: str, text: str, gold: str) -> bool:
    """Return whether a text in a code holds an answer."""
    key = _spaced(gold).casefold() if name in _RUN_TOGETHER else gold.casefold()
    if len(key) < 3:
        return False
    found = view(name, text)
    return key in found and gold.casefold() not in text.casefold()


_RUN_TOGETHER: Final = frozenset(
    name
    for name in VIEWS
    if name.split()[0] in ("spaced", "words", "first", "last", "capitals", "character", "letters")
    or name in ("bits", "Morse code", "lengths of words", "hexadecimal character codes")
    or name in ("octal character codes", "every second character")
)


def forms_of(gold: str) -> Iterator[tuple[str, str]]:
    """Yield what an answer turns into, which cannot or need not be read back, by code."""
    data = gold.encode()
    for digest in ("md5", "sha1", "sha256", "sha512", "blake2b"):
        yield f"{digest} digest", hashlib.new(digest, data, usedforsecurity=False).hexdigest()[:16]
    yield "CRC-32", f"{zlib.crc32(data):08x}"
    yield "CRC-32", str(zlib.crc32(data))
    yield "Adler-32", str(zlib.adler32(data))
    yield "hexadecimal", data.hex()
    yield "base64", base64.b64encode(data).decode().rstrip("=")
    if not re.fullmatch(r"-?\d{1,9}", gold):
        return
    value = int(gold)
    if abs(value) >= 2:
        for base, written in (("binary", f"{value:b}"), ("hexadecimal", f"{value:x}")):
            if len(written) > 1 and written != gold:
                yield f"{base} number", written
        yield "octal number", f"{value:o}" if abs(value) > 7 else "-"
        yield "number words", _in_words(abs(value))
        yield "Roman number", _roman(abs(value))
    for name, other in {
        "one more": value + 1,
        "one less": value - 1,
        "ten times it": value * 10,
        "twice it": value * 2,
        "its negative": -value,
        "its square": value * value,
        "it and 1000": value + 1000,
        "it and 100": value + 100,
        "it and 7": value + 7,
        "it and 42": value + 42,
    }.items():
        yield name, str(other)


def _in_words(value: int) -> str:
    if value < 20:
        return _ONES[value]
    if value < 100:
        rest = f"-{_ONES[value % 10]}" if value % 10 else ""
        return _TENS[value // 10 - 2] + rest
    if value < 1000:
        return f"{_ONES[value // 100]} hundred" + (
            f" and {_in_words(value % 100)}" if value % 100 else ""
        )
    return f"{_in_words(value // 1000 % 1000)} thousand" if value % 1000 == 0 else "-"


def _roman(value: int) -> str:
    if not 2 <= value < 4000:
        return "-"
    marks = zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"],
        strict=True,
    )
    found = ""
    for number, mark in marks:
        found, value = found + mark * (value // number), value % number
    return found
